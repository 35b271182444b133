"""How far the ranks have come on the way to their first step, as a bar for each over the seconds since the
launch: a part for each thing that it did, and what it does now up to the right edge."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.conditions import RED_STATES
from ddptop.frames.numbers import duration
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.start import TIMES, AlikeRanks, alike_ranks
from ddptop.frames.start_words import first_steps_phrase
from ddptop.frames.verdict import verdict
from ddptop.render.chart import TimeAxis
from ddptop.render.line import Line, join_in_lines, join_parts
from ddptop.render.phases import StepPart, draw_entry, draw_parts_bar
from ddptop.render.text import fit_text, wrap_clauses
from ddptop.render.trouble import without_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.start import StartStatus
    from ddptop.render.context import RenderContext
    from ddptop.render.line import Role

SCRIPT = StepPart("script", "░", "c", "other")

STAGES: Mapping[str, StepPart] = {
    "torch_s": StepPart("import of torch", "·", "i", "torch"),
    "init_s": SCRIPT,
    "group_s": StepPart("process group", "≡", "g", "sync"),
    "ddp_s": StepPart("model", "≈", "m", "transfer"),
    "model_s": StepPart("DDP()", "▄", "D", "optimizer"),
    "batch_s": StepPart("first batch", "▪", "d", "data"),
    "forward_s": SCRIPT,
    "backward_s": StepPart("forward", "█", "F", "forward"),
    "step_s": StepPart("backward", "▓", "B", "backward"),
}
"""By the milestone that ends it, as `RankStart` names it: what a rank does until then."""

SECONDS = "seconds after the launch"
"""What the axis of the bars counts."""

WITHOUT_DDP = StepPart("model and first step", "▓", "M", "backward")
"""After the process group, of a rank without DistributedDataParallel: it has no milestones in between."""

WAITS = StepPart("waits", "▒", "w", "wait")

LABEL = 16
"""Cells before the bars at most."""

TALLEST_START_BAR = 8
"""Lines of a bar, where there is room."""

LEAST_BAR = 20
"""Cells of a bar below which it says nothing."""


SPACED_FROM = 10
"""Lines of a page from which there are blank ones between its words: on a lower one bars and their legend
need them."""


def draw_before_first_step(
    context: RenderContext, width: int, height: int, *, says_why: bool = True
) -> list[Line]:
    """What a page says whose figures begin with the first step: why there is none, and how far the ranks have
    come. `says_why`: the page itself does not have the sentence of the verdict."""
    start = context.frame.start
    words = [Line("  No step is complete yet.", "dim")]
    has_bars = start is not None and width >= LABEL + LEAST_BAR
    if says_why and (not has_bars or height >= SPACED_FROM):  # on a low page the bars need the line
        words += _draw_reason(context, width, 1 if has_bars else max(1, height - 1))
    gap = [Line()] if height >= SPACED_FROM else []
    if start is None:
        return [*gap, *words][:height]
    title = [Line("S ", "accent").add(first_steps_phrase(start), "dim"), Line(SECONDS, "faint")]
    bars = draw_milestones(context, width, height - 1 - len(words) - 2 * len(gap))
    return [*gap, *words, *gap, Line("  ").extend(join_parts(title, width - 2)), *bars][:height]


def _draw_reason(context: RenderContext, width: int, most: int) -> list[Line]:
    """The sentence of the verdict on at most so many lines, of whole clauses; where there is room for its
    second line, that too."""
    shown = verdict(context.frame)
    role: Role = "bad" if shown.kind in RED_STATES else "text"
    sentence = context.clean(without_state(shown))
    ends = [end.start() for end in re.finditer("; | · |$", sentence)]
    fits = [end for end in ends if len(wrap_clauses(sentence[:end], width - 2)) <= most]
    parts = wrap_clauses(sentence[: max(fits, default=len(sentence))], width - 2)
    lines = [Line(f"  {text}", role) for text in parts[:most]]
    detail = wrap_clauses(context.clean(shown.detail), width - 2)
    has_room = context.frame.start is None and len(lines) + len(detail) <= most
    return [*lines, *(Line(f"  {text}", "dim") for text in (detail if has_room else ()))]


def draw_milestones(context: RenderContext, width: int, height: int) -> list[Line]:
    """At most `height` lines: the seconds, and a bar for each rank, or for ranks that have come equally far
    where there is no room for each; the seconds give way to these. Empty where nothing is known of the
    start."""
    start, frame = context.frame.start, context.frame
    if start is None or not start.ranks or height < 2:
        return []
    now_s = frame.unix_s - frame.run.started_at - start.launch_s
    if now_s <= 0:
        return []
    rows = [AlikeRanks((rank_start,), rank_start.rank in start.behind) for rank_start in start.ranks]
    rows = rows if len(rows) < height else alike_ranks(start)
    names = [ranks_phrase(row.ranks, len(start.ranks)) for row in rows]
    label = min(LABEL, max(map(len, names)) + 1)
    if width - label < LEAST_BAR:
        return []
    axis = TimeAxis(0.0, now_s, width - label - 1)
    has_axis = height > len(rows)
    seen = {stage.name: stage for row in rows for stage, *_ in _spans(start, row, axis.end_ms)}
    legend = join_in_lines(
        (draw_entry(stage, name, context.ascii_only) for name, stage in seen.items()), width
    )
    legend = legend[: max(0, height - has_axis - len(rows))]
    tall = max(1, min(TALLEST_START_BAR, (height - has_axis - len(legend)) // len(rows)))
    lines = [Line(" " * (label + 1)).extend(axis.draw_numbers("s"))] if has_axis else []
    for name, row in zip(names, rows, strict=True):
        is_due = row.is_behind and frame.stall is not None
        for line_of_row in range(tall):
            labelled = line_of_row == (tall - 1) // 2
            line = Line(fit_text(name if labelled else "", label), "bad" if is_due else "dim")
            bar = _draw_bar(start, row, axis, context.ascii_only, labelled=labelled)
            lines.append(line.add("│", "rule").extend(bar))
    return [*lines[:height], *legend]


def _draw_bar(
    start: StartStatus, row: AlikeRanks, axis: TimeAxis, ascii_only: bool, *, labelled: bool
) -> Line:
    """From the start of the process on; of several ranks up to the last of them."""
    spans = _spans(start, row, axis.end_ms)
    if not spans:
        return Line("has not reported" if labelled and not row.milestone else "", "faint")
    cells_per_s = axis.width / axis.end_ms
    begin = round(spans[0][1] * cells_per_s)
    edges = np.array([spans[0][1], *(end_s for *_, end_s in spans)]) * cells_per_s - begin
    texts = [
        (f"{stage.name} {duration(end_s - begin_s)}", stage.name) if labelled else ()
        for stage, begin_s, end_s in spans
    ]
    stages = [stage for stage, *_ in spans]
    return Line(" " * begin).extend(draw_parts_bar(np.maximum(edges, 0.0), stages, texts, ascii_only))


def _spans(start: StartStatus, row: AlikeRanks, now_s: float) -> list[tuple[StepPart, float, float]]:
    """What a rank did, from and until when, in seconds after the launch; of several ranks the last one."""
    # Clocks of hosts differ: one may say a moment before the launch, or after now.
    reached = [
        (name, min(max(last_s - start.launch_s, 0.0), now_s))
        for name in TIMES
        if (last_s := _last_time(row, name)) is not None
    ]
    if not reached:
        return []
    stages, times_s = [_stage_after(row, name) for name, _ in reached], [time_s for _, time_s in reached]
    if reached[-1][0] == "step_s":  # the end of the way
        stages.pop()
    else:
        stages[-1] = WAITS if start.behind and not row.is_behind else stages[-1]
        times_s.append(now_s)
    times_s = list(accumulate(times_s, max))
    return [*zip(stages, times_s, times_s[1:], strict=False)]


def _stage_after(row: AlikeRanks, name: str) -> StepPart:
    """What a rank does from a milestone on: a next one without a time was passed soon before one with it."""
    following = [*TIMES, "step_s"][[*TIMES].index(name) + 1]
    never_ddp = row.milestone in ("recorded", "step") and _last_time(row, "model_s") is None
    return WITHOUT_DDP if following == "ddp_s" and never_ddp else STAGES[following]


def _last_time(row: AlikeRanks, name: str) -> float | None:
    times_s = row.time_range(name)
    return None if times_s is None else times_s[1]
