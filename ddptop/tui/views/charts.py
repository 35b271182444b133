"""Charts of the group's history: loss over the whole run, times over the last minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.braille import Canvas, rows
from ddptop.tui.paint.chart import Axis, Scale, binned, joined
from ddptop.tui.paint.line import Line, Role, beside, gather
from ddptop.tui.paint.numbers import count, fixed, known, loss
from ddptop.tui.paint.text import cells
from ddptop.tui.scene import Scene

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column

RECENT_S = 300.0
"""What the charts of times look back on: long enough to see a change, short enough to see it now."""

TWO_ABREAST = 44
"""Cells from which two charts fit beside each other."""

LEAST_ROWS = 8
"""Rows per chart from which a second row of charts is worth having."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a chart shows."""

    title: list[Line]
    """Parts of it, the most important first: as many as fit."""
    x: Column
    """Seconds."""
    main: Column
    role: Role
    behind: Column | None = None
    """Drawn faintly behind the mean: the largest of every bin."""
    span_s: float | None = None
    """None: all that is kept."""
    zero: bool = False
    """Whether the scale starts at 0: for times always, or jitter would look like news."""


def charts(scene: Scene, width: int, height: int) -> list[Line]:
    """As many charts as are legible in the room, the most important first."""
    if height < 3:
        return []
    curves = _curves(scene)
    columns = 2 if width >= TWO_ABREAST else 1
    bands = 2 if height >= 2 * LEAST_ROWS and columns == 2 else 1
    each, right = height // bands, (width + 1) // 2
    lines: list[Line] = []
    for band in range(bands):
        pair = curves[band * 2 : band * 2 + columns]
        painted = [
            chart(curve, right - 1 if columns == 2 else width, each, scene.ascii_only) for curve in pair
        ]
        lines += beside(painted[0], painted[1], right) if len(painted) == 2 else painted[0]
    return lines


def chart(curve: Curve, width: int, height: int, ascii_only: bool) -> list[Line]:
    """A title and `height - 1` rows of curve, its scale on the left."""
    if not len(curve.x) or not np.isfinite(curve.main).any():
        return [gather(curve.title[:1], width), Line("  nothing to draw yet", "faint")]
    across = 1 if ascii_only else 2
    axis = Axis.over(curve.x, 2, curve.span_s)
    scale, gutter = Scale(0.0, 1.0), 0
    for _ in range(2):  # the width of the labels depends on the scale, which depends on the width
        axis = Axis.over(curve.x, max(2, (width - gutter - 1) * across), curve.span_s)
        main = binned(curve.main, axis.edges(curve.x), "mean")
        scale = Scale.of(main, curve.zero)
        gutter = max(cells(scale.label(scale.high)), cells(scale.label(scale.low)))
    behind = None
    if curve.behind is not None:
        behind = _canvas(binned(curve.behind, axis.edges(curve.x), "max"), scale, across, height - 1)
    front = _canvas(main, scale, across, height - 1)
    lines = [gather(curve.title, width, 1)]
    for at, picture in enumerate(rows(front, behind, curve.role, ascii_only)):
        label = {0: scale.label(scale.high), height - 2: scale.label(scale.low)}.get(at, "")
        lines.append(Line(label.rjust(gutter), "faint").add("│", "rule").extend(picture))
    return lines


def _canvas(values: Column, scale: Scale, across: int, height: int) -> Canvas:
    values = joined(values)
    canvas = Canvas((len(values) * 2 // across + 1) // 2, height)
    canvas.curve(values if across == 2 else np.repeat(values, 2), scale)
    return canvas


def _curves(scene: Scene) -> list[Curve]:
    history, group, x = scene.frame.history, scene.frame.group, scene.frame.history.time_s
    young = len(x) and x[-1] - x[0] <= RECENT_S
    recent = Line("whole run" if young else f"last {RECENT_S / 60:.0f} min", "faint")
    steps = [_title("step ms", fixed(group.step_ms_p50)), Line(f"p95 {fixed(group.step_ms_p95)}", "dim")]
    steps += [recent, Line(f"┄ peak {fixed(_peak(x, history.step_ms))}", "faint")]
    waits = [_title("waiting ms", fixed(group.wait_ms)), recent]
    speed = [_title("busbw GB/s", fixed(group.busbw_gbps, 2)), recent]
    return [
        Curve(_loss_title(scene), x, history.loss_mean, "accent", behind=history.loss_max),
        Curve(steps, x, history.step_ms, "forward", behind=history.step_ms, span_s=RECENT_S, zero=True),
        Curve(waits, x, history.wait_ms, "optimizer", span_s=RECENT_S, zero=True),
        Curve(speed, x, history.busbw_gbps, "moving", span_s=RECENT_S, zero=True),
    ]


def _loss_title(scene: Scene) -> list[Line]:
    history, group = scene.frame.history, scene.frame.group
    parts = [_title("loss", loss(group.loss_mean)), Line("━ mean", "accent")]
    if known(group.loss_max):
        parts.append(Line(f"┄ worst {loss(group.loss_max)}", "faint"))
        parts.append(Line(f"rank {group.loss_max_rank}" if group.loss_max_rank is not None else "", "faint"))
    kept = f"since step {count(history.step[0])}" if history.start else "whole run"
    return [*parts, Line(kept, "faint")]


def _peak(x: Column, values: Column) -> float | None:
    """The largest of the last minutes: the curve itself may be clipped there."""
    if not len(x):
        return None
    recent = values[np.searchsorted(x, x[-1] - RECENT_S) :]
    there = recent[np.isfinite(recent)]
    return float(there.max()) if len(there) else None


def _title(name: str, value: str) -> Line:
    return Line(f"{name} ", "dim").add(value, "strong")
