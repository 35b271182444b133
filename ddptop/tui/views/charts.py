"""Charts of the group's history: loss over the whole run, times over the last minutes.

A chart has a title, a scale, a curve or an area over time, marks where data are missing, and a crosshair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import median
from ddptop.render.chart import Axis, Mark, Scale, binned, joined, no_number, quantiles
from ddptop.render.chart import cells as marked_cells
from ddptop.render.curves import Canvas, area, rows, stacked
from ddptop.render.line import Line, Piece, Role, beside, gather
from ddptop.render.numbers import clock, count, fixed, known, loss
from ddptop.render.phases import PARTS, SHORT
from ddptop.render.text import cells
from ddptop.tui.scene import Plot, Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.history import History

GUTTER = 3
"""Cells for the labels of a scale; more where they need them."""

P50_P95 = (0.5, 0.95)

_MARKS: dict[Mark, tuple[str, Role, str]] = {
    "lost": ("✗", "warn", "✗ steps lost"),
    "nan": ("▲", "warn", "▲ NaN"),
    "thinned": ("·", "faint", "· thinned"),
}


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
    """Drawn faintly behind the mean: the largest of every bin, or with `behind_x` the mean."""
    behind_x: Column | None = None
    """Its own x, where it is another run's; the scale then holds both."""
    span_s: float | None = None
    """None: all that is kept."""
    zero: bool = False
    """Whether the scale starts at 0: for times always, or jitter would look like news."""
    reach: float | None = None
    """A value that the scale holds in any case: a little of something small must not look like much."""
    step: Column | None = None
    """Step numbers of the points: where some are missing, the chart says so."""
    nan_at: tuple[float, ...] = ()
    """Moments at which a loss was no number."""
    log: bool = False
    """On a logarithmic axis."""
    band: bool = False
    """The median of every bin, and faintly behind it up to the 95th percentile; else the mean."""
    filled: bool = False
    """An area in blocks."""
    stack: Column | None = None
    """(parts of `STACK`, points) ms: `main` divided into parts, drawn on top of each other."""
    read: Callable[[int], str] | None = None
    """The value of a point in words, for the crosshair."""


@dataclass(frozen=True, slots=True)
class Cross:
    """The position of the crosshair."""

    at_s: float
    moment: Callable[[int], tuple[str, ...]]
    """Step and time of a point in words."""


def chart(
    curve: Curve, width: int, height: int, ascii_only: bool, cross: Cross | None = None
) -> tuple[list[Line], Plot | None]:
    """A title and `height - 1` rows of curve, its scale on the left; where the curve is, line 0 the title."""
    values = curve.main
    if curve.log:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(values > 0, np.log10(values), np.nan)
    if not len(curve.x) or not np.isfinite(values).any():
        return [gather(curve.title[:1], width), Line("  nothing to draw yet", "faint")], None
    across = 1 if ascii_only or curve.filled or curve.stack is not None else 2
    drawn = _Drawn.of(curve, values, width, across)
    axis, gutter = drawn.axis, drawn.gutter
    pictures = drawn.picture(curve, height - 1, across, ascii_only)
    marks = {} if curve.step is None else marked_cells(axis, across, curve.step, curve.x, curve.nan_at)
    if pictures:
        pictures[-1] = _with_marks(pictures[-1], marks)
    cell_s = axis.bin_s * across
    room = max(1, width - gutter - 1)
    plot = Plot(1, gutter + 1, room, height - 1, axis.begin_s, cell_s, float(curve.x[-1]))
    title = [*curve.title, *(Line(_MARKS[mark][2], _MARKS[mark][1]) for mark in sorted(set(marks.values())))]
    if cross is not None:
        column = int((cross.at_s - axis.begin_s) / cell_s)
        if 0 <= column < room:
            pictures = [_crossed(line, column) for line in pictures]
            title = [curve.title[0], *_reading(curve, cross, axis, column, cell_s)]
    lines = [gather(title, width, 1)]
    labels = {0: drawn.scale.label(drawn.scale.high), height - 2: drawn.scale.label(drawn.scale.low)}
    for at, picture in enumerate(pictures):
        lines.append(Line(labels.get(at, "").rjust(gutter), "faint").add("│", "rule").extend(picture))
    return lines, plot


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A curve in bins on its axis and scale."""

    axis: Axis
    scale: Scale
    gutter: int
    main: Column
    high: Column | None
    behind: Column | None
    stack: Column | None

    @classmethod
    def of(cls, curve: Curve, values: Column, width: int, across: int) -> _Drawn:
        axis, gutter = Axis.over(curve.x, 2, curve.span_s), GUTTER
        high: Column | None = None
        behind: Column | None = None
        for _ in range(2):  # the width of the labels depends on the scale, which depends on the width
            axis = Axis.over(curve.x, max(2, (width - gutter - 1) * across), curve.span_s)
            edges = axis.edges(curve.x)
            if curve.band:
                main, high = quantiles(values, edges, P50_P95)
            else:
                main = binned(values, edges, "mean")
            behind = _behind(curve, axis)
            both = main if behind is None or curve.behind_x is None else np.concatenate([main, behind])
            scale = Scale.of_logs(both) if curve.log else Scale.of(both, curve.zero)
            if curve.reach is not None:
                scale = replace(scale, high=max(scale.high, curve.reach))
            needed = max(cells(scale.label(scale.high)), cells(scale.label(scale.low)))
            if needed <= gutter:
                break
            gutter = needed
        stack = None
        if curve.stack is not None:
            stack = np.stack([joined(binned(part, edges, "mean")) for part in curve.stack])
        return cls(axis, scale, gutter, main, high, behind, stack)

    def picture(self, curve: Curve, height: int, across: int, ascii_only: bool) -> list[Line]:
        """`height` lines."""
        if self.stack is not None:
            return stacked(self.stack, self.scale, height, looks(ascii_only))
        if curve.filled:
            return area(joined(self.main), self.scale, height, curve.role, ascii_only)
        behind = None
        if self.high is not None:
            behind = _canvas(len(self.main), across, height)
            low, high = (_dots(joined(values), across) for values in (self.main, self.high))
            behind.between(low, high, self.scale)
        elif self.behind is not None:
            behind = _canvas(len(self.main), across, height)
            behind.curve(_dots(joined(self.behind), across), self.scale)
        front = _canvas(len(self.main), across, height)
        front.curve(_dots(joined(self.main), across), self.scale)
        return rows(front, behind, curve.role, ascii_only)


def _behind(curve: Curve, axis: Axis) -> Column | None:
    if curve.behind is None:
        return None
    if curve.behind_x is not None:
        return binned(curve.behind, axis.edges(curve.behind_x), "mean")
    behind = binned(curve.behind, axis.edges(curve.x), "max")
    if not curve.log:
        return behind
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log10(behind))


def _canvas(columns: int, across: int, height: int) -> Canvas:
    return Canvas((columns * 2 // across + 1) // 2, height)


def _dots(values: Column, across: int) -> Column:
    """One value per dot column."""
    return values if across == 2 else np.repeat(values, 2)


def _with_marks(line: Line, marks: dict[int, Mark]) -> Line:
    for column, mark in marks.items():
        sign, role, _ = _MARKS[mark]
        line = _put(line, column, sign, role)
    return line


def _crossed(line: Line, column: int) -> Line:
    """The crosshair leaves what is drawn: it only fills what is blank."""
    text = str(line)
    return _put(line, column, "┊", "dim") if column >= len(text) or text[column] == " " else line


def _put(line: Line, column: int, sign: str, role: Role) -> Line:
    """The line with one cell replaced. Every sign of a chart is one cell wide."""
    changed, at = Line(), 0
    for text, own in line.pieces:
        inside = column - at
        if 0 <= inside < len(text):
            changed.add(text[:inside], own).add(sign, role).add(text[inside + 1 :], own)
        else:
            changed.add(text, own)
        at += len(text)
    return changed if column < at else changed.pad(column).add(sign, role)


def _reading(curve: Curve, cross: Cross, axis: Axis, column: int, cell_s: float) -> list[Line]:
    """What the crosshair reads: the point nearest to it, where its cell has any. The value comes first."""
    begin_s = axis.begin_s + column * cell_s
    first, last = (int(np.searchsorted(curve.x, edge)) for edge in (begin_s, begin_s + cell_s))
    if first == last:
        return [Line("┊ no step here", "dim")]
    at = first + int(np.argmin(np.abs(curve.x[first:last] - cross.at_s)))
    finite: Indices = np.flatnonzero(np.isfinite(curve.main[first:last])) + first
    if not np.isfinite(curve.main[at]) and len(finite):
        at = int(finite[np.argmin(np.abs(curve.x[finite] - cross.at_s))])
    value = curve.read(at) if curve.read is not None else ""
    return [Line("┊ ", "dim").add(value, "strong"), *(Line(part, "dim") for part in cross.moment(at))]


__all__ = ["RECENT_S", "TWO_ABREAST", "Curve", "chart", "charts"]

STACK = {
    "data": "data_ms",
    "forward": "forward_ms",
    "backward": "own_backward_ms",
    "optimizer": "optimizer_ms",
    "other": "other_ms",
    "transfer": "transfer_ms",
    "wait": "wait_ms",
}
"""Parts of the step over time, from the bottom up, and their columns of the history: waiting is on top, so
that what is left without it is seen."""


def looks(ascii_only: bool) -> list[Piece]:
    """Sign and role of each part in STACK."""
    parts = {part.name: (part.plain if ascii_only else part.glyph, part.role) for part in PARTS}
    return [parts[name] for name in STACK]


RECENT_S = 300.0
"""What the charts of times look back on: long enough to see a change, short enough to see it now."""

TWO_ABREAST = 44
"""Cells from which two charts fit beside each other."""

MIN_ROWS = 8
"""Rows per chart from which a second row of charts is worth having."""

SHARE_REACH = 10.0
"""Per cent: a healthy run's fraction of one is a thin line at the foot of its chart."""

NEWEST = 100
"""Points of the median in a title, as of the figures elsewhere."""


def charts(scene: Scene, width: int, height: int, top: int = 0) -> tuple[list[Line], tuple[Plot, ...]]:
    """As many charts as are legible in the room, the most important first, and where they are.

    `top`: line of the screen on which they begin.
    """
    if height < 3:
        return [], ()
    columns = 2 if width >= TWO_ABREAST else 1
    bands = 2 if height >= 2 * MIN_ROWS and columns == 2 else 1
    curves = _curves(scene)[: columns * bands]
    at_s = scene.place.charts.at_s
    cross = None if at_s is None else Cross(at_s, _moment(scene))
    each, right = height // bands, (width + 1) // 2
    lines: list[Line] = []
    plots: list[Plot] = []
    for band in range(bands):
        blocks = []
        for column, curve in enumerate(curves[band * 2 : band * 2 + columns]):
            room = right - 1 if columns == 2 else width
            block, plot = chart(curve, room, each, scene.ascii_only, cross)
            blocks.append(block)
            if plot is not None:
                plots.append(replace(plot, top=plot.top + top + band * each, left=plot.left + column * right))
        both = beside(blocks[0], blocks[1], right) if len(blocks) == 2 else blocks[0]
        lines += both + [Line()] * (each - len(both) if band < bands - 1 else 0)
    return lines, tuple(plots)


def _curves(scene: Scene) -> list[Curve]:
    history, group, x = scene.frame.history, scene.frame.group, scene.frame.history.time_s
    young = len(x) and x[-1] - x[0] <= RECENT_S
    recent = Line("whole run" if young else f"last {RECENT_S / 60:.0f} min", "faint")
    steps = [_title("step ms", fixed(group.step_ms_p50)), Line("━ p50", "forward")]
    steps += [Line(f"┄ p95 {fixed(group.step_ms_p95)}", "faint"), recent]
    steps += [Line(f"peak {fixed(_peak(x, history.step_ms))}", "faint")]
    speed = [_title("busbw GB/s", fixed(group.busbw_gbps, 2)), recent]

    return [
        _loss(scene),
        Curve(
            steps, x, history.step_ms, "forward", span_s=RECENT_S, zero=True, step=history.step, band=True,
            read=lambda at: fixed(history.step_ms[at], 1, " ms"),
        ),
        _parts(scene, recent),
        Curve(
            speed, x, history.busbw_gbps, "transfer", span_s=RECENT_S, zero=True, step=history.step,
            read=lambda at: fixed(history.busbw_gbps[at], 2, " GB/s"),
        ),
    ]  # fmt: skip


def _parts(scene: Scene, recent: Line) -> Curve:
    """The parts of the step over time, where they are known of every step; else the share of waiting."""
    history, x = scene.frame.history, scene.frame.history.time_s
    stack = np.stack([getattr(history, name) for name in STACK.values()])
    whole = stack.sum(axis=0)
    share = _waiting(history)
    if not np.isfinite(whole[-NEWEST:]).any():
        waits = [_title("waiting", fixed(_newest(share), 1, "%")).add(" of step", "dim")]
        waits.append(Line("(mean over ranks, ", "faint").extend(recent).add(")", "faint"))
        return Curve(
            waits, x, share, "wait", span_s=RECENT_S, zero=True, step=history.step, filled=True,
            reach=SHARE_REACH, read=lambda at: fixed(share[at], 1, "%"),
        )  # fmt: skip
    title, signs = [Line("mean ms", "dim")], dict(zip(STACK, looks(scene.ascii_only), strict=True))
    for name in ("wait", "backward", "forward", "data", "transfer", "optimizer", "other"):
        usual = fixed(_newest(getattr(history, STACK[name])))
        title.append(Line(*signs[name]).add(f" {SHORT.get(name, name)} ", "dim").add(usual, "strong"))
    return Curve(
        [*title, recent], x, whole, "text", span_s=RECENT_S, zero=True, step=history.step, stack=stack,
        read=lambda at: f"{fixed(whole[at], 1, ' ms')}, waiting {fixed(share[at], 0, '%')}",
    )  # fmt: skip


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
    seen = [one.unix_s - began for one in scene.frame.events if one.kind == "nan"]
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
