"""Charts of the group's history: loss over the whole run, times over the last minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.metrics import median
from ddptop.tui.paint.chart_marks import no_number
from ddptop.tui.paint.line import Line, beside
from ddptop.tui.paint.numbers import clock, count, fixed, known, loss
from ddptop.tui.scene import Scene
from ddptop.tui.views.plot import Cross, Curve, chart

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.frames import Column, History

__all__ = ["RECENT_S", "TWO_ABREAST", "Curve", "chart", "charts"]

RECENT_S = 300.0
"""What the charts of times look back on: long enough to see a change, short enough to see it now."""

TWO_ABREAST = 44
"""Cells from which two charts fit beside each other."""

LEAST_ROWS = 8
"""Rows per chart from which a second row of charts is worth having."""

SHARE_REACH = 10.0
"""Per cent: a healthy run's fraction of one is a thin line at the foot of its chart."""

NEWEST = 100
"""Points of the median in a title, as of the figures elsewhere."""


def charts(scene: Scene, width: int, height: int) -> list[Line]:
    """As many charts as are legible in the room, the most important first."""
    state = scene.place.charts
    state.plots.clear()
    if height < 3:
        return []
    columns = 2 if width >= TWO_ABREAST else 1
    bands = 2 if height >= 2 * LEAST_ROWS and columns == 2 else 1
    curves = _curves(scene)[: columns * bands]
    cross = None if state.at_s is None else Cross(state.at_s, _moment(scene))
    each, right = height // bands, (width + 1) // 2
    lines: list[Line] = []
    for band in range(bands):
        painted = []
        for column, curve in enumerate(curves[band * 2 : band * 2 + columns]):
            begun = len(state.plots)
            room = right - 1 if columns == 2 else width
            painted.append(chart(curve, room, each, scene.ascii_only, cross, state.plots))
            for at in range(begun, len(state.plots)):
                plot = state.plots[at]
                left = plot.left + column * right
                state.plots[at] = replace(plot, top=plot.top + band * each, left=left)
        block = beside(painted[0], painted[1], right) if len(painted) == 2 else painted[0]
        lines += block + [Line()] * (each - len(block) if band < bands - 1 else 0)
    return lines


def _curves(scene: Scene) -> list[Curve]:
    history, group, x = scene.frame.history, scene.frame.group, scene.frame.history.time_s
    young = len(x) and x[-1] - x[0] <= RECENT_S
    recent = Line("whole run" if young else f"last {RECENT_S / 60:.0f} min", "faint")
    steps = [_title("step ms", fixed(group.step_ms_p50)), Line("━ p50", "forward")]
    steps += [Line(f"┄ p95 {fixed(group.step_ms_p95)}", "faint"), recent]
    steps += [Line(f"peak {fixed(_peak(x, history.step_ms))}", "faint")]
    share = _waiting(history)
    waits = [_title("waiting %", fixed(_newest(share))), recent, Line("of the step, mean of ranks", "faint")]
    speed = [_title("busbw GB/s", fixed(group.busbw_gbps, 2)), recent]

    return [
        _loss(scene),
        Curve(
            steps, x, history.step_ms, "forward", span_s=RECENT_S, zero=True, step=history.step, band=True,
            read=lambda at: fixed(history.step_ms[at], 1, " ms"),
        ),
        Curve(
            waits, x, share, "waiting", span_s=RECENT_S, zero=True, step=history.step, filled=True,
            reach=SHARE_REACH, read=lambda at: fixed(share[at], 1, "%"),
        ),
        Curve(
            speed, x, history.busbw_gbps, "moving", span_s=RECENT_S, zero=True, step=history.step,
            read=lambda at: fixed(history.busbw_gbps[at], 2, " GB/s"),
        ),
    ]  # fmt: skip


def _loss(scene: Scene) -> Curve:
    history, group = scene.frame.history, scene.frame.group
    log = scene.place.charts.log_loss
    parts = [_title("loss", loss(group.loss_mean)), Line("━ mean", "accent")]
    parts += [Line("log", "dim")] if log else []
    if known(group.loss_max):
        parts.append(Line(f"┄ worst {loss(group.loss_max)}", "faint"))
        parts.append(Line(f"rank {group.loss_max_rank}" if group.loss_max_rank is not None else "", "faint"))
    kept = f"since step {count(history.step[0])}" if history.start else "whole run"
    began = scene.frame.run.started_at
    seen = [one.unix_s - began for one in scene.frame.happenings if one.kind == "nan"]
    seen += history.time_s[no_number(history.loss_mean, history.loss_max)].tolist()
    return Curve(
        [*parts, Line(kept, "faint")], history.time_s, history.loss_mean, "accent", behind=history.loss_max,
        step=history.step, nan_at=tuple(seen), log=log, read=lambda at: loss(history.loss_mean[at]),
    )  # fmt: skip


def _waiting(history: History) -> Column:
    """Share of every step that was spent waiting for a slower rank, in %, mean over ranks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 100.0 * history.wait_ms / history.step_ms
    return np.where(np.isfinite(share), share, np.nan)


def _newest(values: Column) -> float | None:
    """The median of the last points that are known."""
    there = values[-20 * NEWEST :]
    there = there[np.isfinite(there)][-NEWEST:]
    return float(median(there)) if len(there) else None


def _moment(scene: Scene) -> Callable[[int], tuple[str, ...]]:
    """Step and time of day of a point of the history."""
    history, began = scene.frame.history, scene.frame.run.started_at
    return lambda at: (f"step {count(history.step[at])}", clock(began + float(history.time_s[at])))


def _peak(x: Column, values: Column) -> float | None:
    """The largest of the last minutes: the curve itself may be clipped there."""
    if not len(x):
        return None
    recent = values[np.searchsorted(x, x[-1] - RECENT_S) :]
    there = recent[np.isfinite(recent)]
    return float(there.max()) if len(there) else None


def _title(name: str, value: str) -> Line:
    return Line(f"{name} ", "dim").add(value, "strong")
