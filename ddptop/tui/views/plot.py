"""One chart: a title, a scale, a curve or an area in time, marks of what its data lack, a crosshair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.blocks import area
from ddptop.tui.paint.braille import Canvas, rows
from ddptop.tui.paint.chart import Axis, Scale, binned, joined, quantiles
from ddptop.tui.paint.chart_marks import Mark
from ddptop.tui.paint.chart_marks import cells as marked_cells
from ddptop.tui.paint.line import Line, Role, gather
from ddptop.tui.paint.text import cells
from ddptop.tui.views.chart_state import Plot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.frames import Column

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
    read: Callable[[int], str] | None = None
    """The value of a point in words, for the crosshair."""


@dataclass(frozen=True, slots=True)
class Cross:
    """Where the crosshair stands."""

    at_s: float
    moment: Callable[[int], tuple[str, ...]]
    """Step and time of a point in words."""


def chart(
    curve: Curve,
    width: int,
    height: int,
    ascii_only: bool,
    cross: Cross | None = None,
    painted: list[Plot] | None = None,
) -> list[Line]:
    """A title and `height - 1` rows of curve, its scale on the left.

    `painted` takes note of where the curve was painted; its line 0 is the title.
    """
    values = curve.main
    if curve.log:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(values > 0, np.log10(values), np.nan)
    if not len(curve.x) or not np.isfinite(values).any():
        return [gather(curve.title[:1], width), Line("  nothing to draw yet", "faint")]
    across = 1 if ascii_only or curve.filled else 2
    drawn = _Drawn.of(curve, values, width, across)
    axis, gutter = drawn.axis, drawn.gutter
    pictures = drawn.picture(curve, height - 1, across, ascii_only)
    marks = {} if curve.step is None else marked_cells(axis, across, curve.step, curve.x, curve.nan_at)
    if pictures:
        pictures[-1] = _with_marks(pictures[-1], marks)
    cell_s = axis.bin_s * across
    room = max(1, width - gutter - 1)
    if painted is not None:
        painted.append(Plot(1, gutter + 1, room, height - 1, axis.begin_s, cell_s, float(curve.x[-1])))
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
    return lines


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A curve in bins on its axis and scale."""

    axis: Axis
    scale: Scale
    gutter: int
    main: Column
    high: Column | None
    behind: Column | None

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
        return cls(axis, scale, gutter, main, high, behind)

    def picture(self, curve: Curve, height: int, across: int, ascii_only: bool) -> list[Line]:
        """`height` lines."""
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
    told: Column = np.flatnonzero(np.isfinite(curve.main[first:last])) + first
    if not np.isfinite(curve.main[at]) and len(told):
        at = int(told[np.argmin(np.abs(curve.x[told] - cross.at_s))])
    value = curve.read(at) if curve.read is not None else ""
    return [Line("┊ ", "dim").add(value, "strong"), *(Line(part, "dim") for part in cross.moment(at))]
