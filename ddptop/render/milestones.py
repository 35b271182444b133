"""How far the ranks have come on the way to their first step, as a bar for each over the seconds since the
launch: a part for each thing that it did, and what it does now up to the right edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import duration
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.start import TIMES, AlikeRanks, alike_ranks
from ddptop.render.chart import TimeAxis
from ddptop.render.line import Line
from ddptop.render.phases import StepPart, draw_parts_bar
from ddptop.render.text import fit_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.start import StartStatus
    from ddptop.render.context import RenderContext

STAGES: Mapping[str, StepPart] = {
    "torch_s": StepPart("import of torch", "░", "i", "other"),
    "init_s": StepPart("script", "▪", "c", "data"),
    "group_s": StepPart("process group", "≈", "g", "transfer"),
    "ddp_s": StepPart("model", "▄", "m", "optimizer"),
    "model_s": StepPart("DDP()", "▓", "D", "backward"),
    "batch_s": StepPart("first batch", "▪", "d", "data"),
    "forward_s": StepPart("script", "░", "c", "other"),
    "backward_s": StepPart("forward", "█", "F", "forward"),
    "step_s": StepPart("backward", "▓", "B", "backward"),
}
"""By the milestone that ends it, as `RankStart` names it: what a rank does until then."""

WITHOUT_DDP = StepPart("model and first step", "█", "F", "forward")
"""After the process group, of a rank without DistributedDataParallel: it has no milestones in between."""

WAITS = StepPart("waits", "▒", "w", "wait")

LABEL = 16
"""Cells before the bars at most."""

LEAST_BAR = 20
"""Cells of a bar below which it says nothing."""


def draw_milestones(context: RenderContext, width: int, height: int) -> list[Line]:
    """At most `height` lines: the seconds, and a bar for each rank, or for ranks that have come equally far
    where there is no room for each. Empty where nothing is known of the start."""
    start, frame = context.frame.start, context.frame
    if start is None or height < 2:
        return []
    rows = [AlikeRanks((one,), one.rank in start.behind) for one in start.ranks]
    rows = rows if len(rows) < height else alike_ranks(start)
    names = [ranks_phrase(row.ranks, len(start.ranks)) for row in rows]
    label = min(LABEL, max(map(len, names)) + 1)
    if width - label < LEAST_BAR:
        return []
    axis = TimeAxis(0.0, frame.unix_s - frame.run.started_at, width - label - 1)
    tall = 2 if 2 * len(rows) < height else 1
    lines = [Line(" " * (label + 1)).extend(axis.draw_numbers("s"))]
    for name, row in zip(names, rows, strict=True):
        is_due = row.is_behind and frame.stall is not None
        for line_of_row in range(tall):
            line = Line(fit_text(name if line_of_row == 0 else "", label), "bad" if is_due else "dim")
            bar = _draw_bar(start, row, axis, context.ascii_only, labelled=line_of_row == 0)
            lines.append(line.add("│", "rule").extend(bar))
    return lines[:height]


def _draw_bar(
    start: StartStatus, row: AlikeRanks, axis: TimeAxis, ascii_only: bool, *, labelled: bool
) -> Line:
    """From the start of the process on; of several ranks up to the last of them."""
    known = [(name, last_s) for name in TIMES if (last_s := _last_time(row, name)) is not None]
    if not known:
        return Line("has not reported" if labelled else "", "faint")
    stages = [_stage_after(row, name) for name, _ in known]
    ends_s = [time_s for _, time_s in known]
    if known[-1][0] == "step_s":  # the end of the way
        stages.pop()
    else:
        stages[-1] = WAITS if start.behind and not row.is_behind else stages[-1]
        ends_s.append(axis.end_ms)
    edges_s = np.maximum.accumulate(np.minimum(ends_s, axis.end_ms))
    edges = edges_s / axis.end_ms * axis.width
    texts = [
        _texts(stage, lasted_s) if labelled else ()
        for stage, lasted_s in zip(stages, np.diff(edges_s), strict=True)
    ]
    begin = round(float(edges[0]))
    bar = draw_parts_bar(np.maximum(edges - begin, 0.0), stages, texts, ascii_only)
    return Line(" " * begin).extend(bar)


def _stage_after(row: AlikeRanks, name: str) -> StepPart:
    """What a rank does from a milestone on: a next one without a time was passed soon before one with it."""
    following = [*TIMES, "step_s"][[*TIMES].index(name) + 1]
    never_ddp = row.milestone in ("recorded", "step") and _last_time(row, "model_s") is None
    return WITHOUT_DDP if following == "ddp_s" and never_ddp else STAGES[following]


def _texts(stage: StepPart, lasted_s: float) -> Sequence[str]:
    return f"{stage.name} {duration(lasted_s)}", stage.name


def _last_time(row: AlikeRanks, name: str) -> float | None:
    times_s = row.time_range(name)
    return None if times_s is None else times_s[1]
