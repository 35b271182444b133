"""The panels below the lanes of a step: what each rank did itself, the buckets, the steps around this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import UNKNOWN, count, counted, fixed, known, signed
from ddptop.frames.statistics import median
from ddptop.render import table
from ddptop.render.bucket_table import bucket_columns
from ddptop.render.evidence import draw_brief
from ddptop.render.line import Line
from ddptop.render.phases import PARTS, SHORT, draw_pairs
from ddptop.render.process_group_table import process_group_columns
from ddptop.render.rank_table import rank_mark
from ddptop.tui.keys import Do
from ddptop.tui.views.moment import Series, draw_moment, draw_newest, second_series
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band
from ddptop.tui.views.rank_table import FEW_RANKS, draw_ranks_now

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.detail import Lane, Timeline
    from ddptop.render.line import Piece
    from ddptop.tui.scene import Scene

LEAST_BAND, BAND = 9, 16
"""Lines of the panels: at least, and as many as they have before lanes take more than they need."""

STUCK_BAND = 22
"""Lines of the panels below the lanes of a step that is stuck: stacks are long."""

TWO_PANELS = 17
"""Lines of the band from which its columns have two panels."""

FIRST_SHARE = 3
"""Eighths of the width for the first column."""

MARKED, GAP = 2, 2
"""Cells for the mark of a rank, and between two columns."""

MARK: Piece = ("◆", "accent")
"""The mark of the step on the axis of the steps around it."""

WORK = ("data", "forward", "backward", "optimizer", "other")
"""Spans of a lane in which a rank works itself."""

SPAN_OF = {part.name: part.name for part in PARTS if part.name != "sync"} | {
    "wait": "waiting",
    "transfer": "moving",
}
"""By part of the step, the span of a lane."""


def draw_step_panels(scene: Scene, shown: Timeline, rank: int, width: int, height: int) -> list[Line]:
    """`height` lines of three columns. `rank`: of the lane under the cursor; where there is room, its step is
    compared with its usual one."""
    widths = (width * FIRST_SHARE // 8, (width - width * FIRST_SHARE // 8) // 2)
    last = width - sum(widths)
    is_high = height >= TWO_PANELS
    most = height - LEAST_BAND - 2 if is_high else height
    n_ranks = min(len(shown.lanes) + 2, most) if is_high else height
    n_buckets = max(1, len(scene.frame.buckets), len(scene.frame.process_groups)) + 2
    is_short = n_buckets + LEAST_BAND <= height
    n_buckets = min(n_buckets, most) if is_high or is_short else height
    ranks = [
        Panel(_title_of_ranks(shown), _draw_own_times(scene, shown, widths[0] - 1, n_ranks - 1), n_ranks)
    ]
    buckets = [_draw_buckets(scene, widths[1] - BORDER, n_buckets)]
    if is_high:
        usual = _draw_usual(scene, shown, rank, widths[0] - 1)
        ranks.append(Panel(f"rank {rank}: this step beside its median", usual))
    if is_high or is_short:
        what, title = second_series(scene.frame)
        second = _draw_steps_around(scene, shown.step, widths[1] - BORDER, height - n_buckets, what)
        buckets.append(Panel(f"{title} around this one", second))
    steps = _draw_steps_around(scene, shown.step, last - BORDER, height, "steps")
    columns = [
        PanelColumn(widths[0], ranks),
        PanelColumn(widths[1], buckets),
        PanelColumn(last, [Panel("steps around this one", steps)]),
    ]
    return draw_band(columns, height)


def draw_stuck_panels(scene: Scene, width: int, height: int) -> list[Line]:
    """`height` lines: where the ranks are that the stall is due to, all ranks, and the steps before it."""
    last = width * FIRST_SHARE // 8
    left, half = width - last, height // 2
    evidence = draw_brief(scene, left - 1, height)
    rows = min(len(evidence) + 2, height - LEAST_BAND)
    where = Panel("where they are", evidence, rows, key="7", opens=Do.VIEW("stall"))
    ranks = Panel(
        "ranks",
        draw_ranks_now(
            scene, left - 1, height - rows - 1, tall=2 if len(scene.frame.ranks.state) <= FEW_RANKS else 1
        ),
        key="1",
        opens=Do.VIEW("overview"),
    )
    what, title = second_series(scene.frame)
    before = [
        Panel("steps before it", draw_newest(scene, (last - BORDER, half - 1), "steps"), half),
        Panel(f"{title} before it", draw_newest(scene, (last - BORDER, height - half - 1), what)),
    ]
    return draw_band([PanelColumn(left, [where, ranks]), PanelColumn(last, before)], height)


def _draw_steps_around(scene: Scene, step: int, width: int, height: int, what: Series) -> list[Line]:
    """Below a title: the steps around this one, which is marked."""
    history = scene.frame.history
    if not len(history.step):
        return draw_newest(scene, (width, height - 1), what)
    places = np.flatnonzero(history.step <= step)
    at_s = float(history.time_s[places[-1] if len(places) else 0])
    return draw_moment(scene, at_s, MARK, (width, height - 1), what, is_calm=True)


def _draw_usual(scene: Scene, shown: Timeline, rank: int, width: int) -> list[Line]:
    """Each part of the rank's step beside its median over the recent steps."""
    lane = next((lane for lane in shown.lanes if lane.rank == rank), None)
    if lane is None or rank >= len(scene.breakdown.known) or not scene.breakdown.known[rank]:
        return [Line("its usual step is not known", "faint")]
    now_ms, usual_ms = dict.fromkeys(SPAN_OF.values(), 0.0), scene.breakdown.ms[:, rank]
    for span in lane.spans:
        if span.name in now_ms:
            now_ms[span.name] += span.end_ms - span.begin_ms
    pairs = [
        (part, now_ms[SPAN_OF[part.name]], float(ms))
        for part, ms in zip(PARTS, usual_ms, strict=False)
        if part.name in SPAN_OF
    ]
    return draw_pairs(pairs, ("step", "median", "ms"), width, scene.ascii_only)


def _draw_buckets(scene: Scene, width: int, height: int) -> Panel:
    """The table of buckets, or of process groups: its first columns and rows, as many as fit."""
    frame = scene.frame
    rows, what, columns = len(frame.buckets), "bucket", bucket_columns(scene) if frame.buckets else []
    if not rows and frame.process_groups:
        rows, what, columns = len(frame.process_groups), "process group", process_group_columns(scene)
    title = f"{counted(rows, what)}, recent medians" if rows else "no bucket is timed"
    columns = table.fit_columns(columns, width)
    lines = [table.draw_head(columns)] if rows else []
    lines += [table.draw_row(columns, row) for row in range(min(rows, height - 2))]
    if rows > height - 2:
        lines[-1] = Line(f"and {counted(rows - height + 3, f'more {what}')}", "dim")
    return Panel(title, lines, height, key="3", opens=Do.VIEW("buckets"))


def _title_of_ranks(shown: Timeline) -> str:
    return "own time in this step, ms" if shown.detailed else "phases of this step, ms"


def _work_of(lane: Lane) -> dict[str, float]:
    """ms of each kind of work; where waiting is not told apart, backward holds it."""
    work = dict.fromkeys(WORK, 0.0)
    for span in lane.spans:
        if span.name in work:
            work[span.name] += span.end_ms - span.begin_ms
    return work


def _usual_of_others(own_ms: Column, index: int) -> float:
    """The median of the other lanes; NaN: there is none."""
    others = np.delete(own_ms, index)
    return float(median(others)) if len(others) else float("nan")


def _draw_own_times(scene: Scene, shown: Timeline, width: int, height: int) -> list[Line]:
    """A row for each lane, the longest own time first where it is known; how many more there are."""
    work = [_work_of(lane) for lane in shown.lanes]
    own_ms = np.array([sum(of_lane.values()) for of_lane in work])
    ranks = [lane.rank for lane in shown.lanes]
    longest_first = -np.round(own_ms, 1) if shown.detailed else np.zeros(len(work))
    order = sorted(range(len(work)), key=lambda index: (float(longest_first[index]), ranks[index]))
    more_ms = [float(own_ms[index]) - _usual_of_others(own_ms, index) for index in range(len(work))]
    columns = [table.measured_column("rank", [str(rank) for rank in ranks], 100)]
    columns += [
        table.measured_column(SHORT.get(name, name), [fixed(of_lane[name]) for of_lane in work], keep)
        for keep, name in zip((90, 88, 86, 84, 82), WORK, strict=True)
    ]
    if shown.detailed:  # else backward holds what is waited
        columns.append(table.measured_column("own", list(map(fixed, own_ms.tolist())), 98))
        more = [signed(ms) if known(ms) else UNKNOWN for ms in more_ms]
        columns.append(table.measured_column("more", more, 96))
    columns = table.fit_columns(columns, width - MARKED, GAP)
    lines = [Line(" " * MARKED).extend(table.draw_head(columns, GAP))]
    shown_rows = order if len(order) < height else order[: height - 2]
    for index in shown_rows:
        line = Line().add(*rank_mark(scene, ranks[index])).pad(MARKED)
        lines.append(line.extend(table.draw_row(columns, index, GAP)).spot(0, width, Do.RANK(ranks[index])))
    hidden = order[len(shown_rows) :]
    if hidden:
        least, most = fixed(float(own_ms[hidden].min())), fixed(float(own_ms[hidden].max()))
        span = least if least == most else f"{least} to {most}"
        lines.append(Line(f"  and {count(len(hidden))} more lanes: {span} ms", "dim").cut(width))
    return lines
