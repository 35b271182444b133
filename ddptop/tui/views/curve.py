"""One chart: a title, a scale, a curve over time or over steps, an axis with events, marks where data are
missing, and a crosshair."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ddptop.frames.statistics import quantiles_of_bins
from ddptop.render.chart import (
    Axis,
    Mark,
    Scale,
    TimeAxis,
    Track,
    bin_values,
    join_holes,
    mark_cells,
    step_ticks,
)
from ddptop.render.curves import Canvas, draw_areas
from ddptop.render.line import Line, Piece, Role, combine_roles, join_parts
from ddptop.render.phases import PARTS, join_cells
from ddptop.render.text import text_width
from ddptop.tui.scene import Plot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddptop.frames.columns import Column, Indices

GUTTER = 3
"""Cells for the labels of a scale; more where they need them."""

P50_P95 = (0.5, 0.95)

_MARKS: dict[Mark, tuple[str, Role, str]] = {
    "lost": ("✗", "warn", "✗ steps missing"),
    "nan": ("▲", "warn", "▲ NaN"),
    "thinned": ("·", "faint", "· steps left out"),
}


BEYOND = "↑"
"""In the top row where a series goes on above the scale, and in the title before its largest value."""

CONTOURS: Mapping[Role, Role] = {"area": "edge"}
"""By the role of an area, that of its upper edge: a line over a quiet ground, also where nothing happens."""

CONTOUR = 0.75
"""Cells that such an edge is high. As a cell has two colours only, one much lower than a whole cell would
change with where in its cell it lies. One down to a lower neighbour would hide the area of a series that
goes up and down, and look like a second figure."""

AXIS_FROM = 3
"""Lines of a chart, with its title, from which one is its axis: a low chart loses detail first."""

MIDDLE_FROM = 7
"""Rows of a chart from which the middle of its scale is labelled."""

TICKS_APART = 10
"""Cells between two ticks of the axis, on average at least."""

LABELS_APART = 2
"""Cells between two of its labels at least: closer ones read as one. One of the two is left out."""


STACK = {
    "data": "data_ms",
    "forward": "forward_ms",
    "backward": "own_backward_ms",
    "other": "other_ms",
    "optimizer": "optimizer_ms",
    "transfer": "transfer_ms",
    "wait": "wait_ms",
}
"""Parts of the step over time, from the bottom up, and their columns in `History` and `RankSteps`: waiting is
on top, so that what is left without it is seen. Neighbours differ in lightness. Four parts are dark and three
are bright, so one pair cannot: backward and other differ by a hue that colour-blind eyes keep apart as well,
which other and transfer do not."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What the axis shows besides its labels."""

    origin: float = 0.0
    """What the labels have where x is 0: Unix seconds, or the number of a step."""
    ticks: Callable[[float, float, int], list[tuple[float, str]]] = step_ticks
    events: tuple[tuple[float, str, Role], ...] = ()
    """x, sign and role."""
    episodes: tuple[tuple[float, float], ...] = ()
    """From x to x a rank was a straggler: the axis is doubled there."""
    activities: tuple[tuple[float, float, str, Role], ...] = ()
    """From x to x some rank evaluated or saved: sign and role."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What a chart shows."""

    title: list[Line]
    """Parts of it, the most important first: as many as fit."""
    x: Column
    """Seconds."""
    newest: tuple[int, ...] = field(default=(0,), kw_only=True)
    """The parts of the title with figures of the newest step, which change more often than the curve."""
    n_names: int = field(default=1, kw_only=True)
    """Parts of the title that come before the figure of a peak: the areas would have no name without them."""
    main: Column
    role: Role
    behind: Column | None = None
    """A faint curve over the area of the mean: the largest of every bin, or with `behind_x` the mean."""
    behind_x: Column | None = None
    """Its own x, where it is another run's; the scale then holds both."""
    span_s: float | None = None
    """None: all that is kept."""
    grows: bool = False
    """Whether its time becomes longer while the run goes on."""
    zero: bool = False
    """Whether the scale starts at 0: for times always, or jitter would look like a change."""
    reach: float | None = None
    """A value that the scale holds in any case: a little of something small must not look like much."""
    figure: float | None = None
    """The figure in the title, which the scale holds as well: the curve has means of many steps."""
    step: Column | None = None
    """Step numbers of the points: where some are missing, the chart marks it."""
    nan_at: tuple[float, ...] = ()
    """Moments at which a loss was no number."""
    log: bool = False
    """On a logarithmic axis."""
    band: bool = False
    """The median of every bin, and a faint curve of the 95th percentile; else the mean."""
    waste: Column | None = None
    """How much of `main` was waiting: the upper part of the area, in its own colour."""
    early: int = 0
    """How many points at the begin are bins of steps."""
    p95: Column | None = None
    """95th percentile of the steps of each point."""
    extremes: tuple[Column, Column] | None = None
    """The least and the largest of each point, a dot each: in the median of many steps peaks vanish."""
    stack: Column | None = None
    """(parts of `STACK`, points) ms: `main` divided into parts, drawn on top of each other."""
    happened: Happened = field(default_factory=Happened)
    read: Callable[[int], str] | None = None
    """The value of a point in words, for the crosshair."""
    gutter: int = GUTTER
    """Cells for the labels of the scale, at least."""
    scale_before: Scale | None = None
    """Scale of its last drawing, which it keeps while it can."""
    empty: str = ""
    """Why no value will be known; empty where one may come."""


@dataclass(frozen=True, slots=True)
class Cross:
    """The position of the crosshair."""

    at_s: float
    moment: Callable[[int], tuple[str, ...]]
    """Step and time of a point in words."""


class Chart(NamedTuple):
    """A chart in lines; line 0 is its title."""

    lines: list[Line]
    plot: Plot | None
    """Where the curve is; None: there is nothing to draw."""
    title: list[Line]
    """The parts of the title, of which line 0 has as many as fit."""
    newest: tuple[int, ...]
    """Indices of the parts of the title that have figures of the newest step."""
    scale: Scale | None = None

    @property
    def left(self) -> int:
        """The first cell of the curve; 0 where none is drawn."""
        return 0 if self.plot is None else self.plot.left


def draw_chart(
    curve: Curve, width: int, height: int, ascii_only: bool, cross: Cross | None = None, apart: int = 0
) -> Chart:
    """A title and `height - 1` rows of curve, its scale on the left.

    `apart`: cells at its right end that the title leaves free, before the title of the next chart.
    """
    values = curve.main
    if curve.log:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = np.where(values > 0, np.log10(values), np.nan)
    if not len(curve.x) or not np.isfinite(values).any():
        title = curve.title[:1]
        reason = Line(f"  {curve.empty or 'nothing to draw yet'}", "faint").cut(width)
        return Chart([join_parts(title, width), reason], None, title, (0,))
    across = 1 if ascii_only or curve.stack is not None else 2
    drawn = _Drawn.of(curve, values, width, across)
    axis, gutter = drawn.axis, drawn.gutter
    below = 1 if height >= AXIS_FROM else 0
    faint = drawn.faint_dots(curve, height - 1 - below, across)
    pictures = drawn.picture(curve, faint, height - 1 - below, across, ascii_only)
    marks = {} if curve.step is None else mark_cells(axis, across, curve.step, curve.x, curve.nan_at)
    clipped, peak, most = drawn.clipped(across, len(pictures))
    largest = drawn.scale.label(most) if clipped else ""
    beside = _find_room(pictures[0], clipped, peak, len(largest), width - gutter - 1) if clipped else None
    if pictures:
        signs: dict[int, Piece] = dict.fromkeys(clipped, (BEYOND, "dim"))
        if beside is not None:
            signs |= {beside + place: (sign, "dim") for place, sign in enumerate(largest)}
        pictures[0] = _put_signs(pictures[0], signs)
    cell_s = axis.bin_s * across
    room = max(1, width - gutter - 1)
    plot = Plot(1, gutter + 1, room, len(pictures), axis.begin_s, cell_s, float(curve.x[-1]))
    is_dashed = faint is not None and bool(np.isfinite(faint).any())
    title = curve.title if is_dashed else _title_without_dash(curve)
    severe = sorted({*marks.values()} - {"thinned"})
    title = [*title, *(Line(_MARKS[mark][2], _MARKS[mark][1]) for mark in severe)]
    newest = curve.newest
    if clipped and beside is None:
        title.insert(curve.n_names, Line(f"{BEYOND} up to {largest}", "dim"))
        newest = tuple(index + (index >= curve.n_names) for index in newest)
    if "thinned" in marks.values():
        place = _explain_dots(title, max(curve.n_names, newest[0] + 1 if newest else 0), width - apart)
        newest = tuple(index + (place is not None and index >= place) for index in newest)
        if place is None:  # a sign that nothing explains
            marks = {column: mark for column, mark in marks.items() if mark != "thinned"}
    if pictures:
        pictures[-1] = _put_signs(pictures[-1], {column: _MARKS[mark][:2] for column, mark in marks.items()})
    if cross is not None:
        column = int((cross.at_s - axis.begin_s) / cell_s)
        if 0 <= column < room:
            pictures = [_draw_crosshair(line, column) for line in pictures]
            title = [curve.title[0], *_draw_reading(curve, cross, axis, column, cell_s)]
            newest = curve.newest[:1]
    lines = [join_parts(title, width - apart, 1)]
    labels = drawn.labels(len(pictures))
    for row, picture in enumerate(pictures):
        lines.append(Line(labels.get(row, "").rjust(gutter), "faint").add("│", "rule").extend(picture))
    if below:
        lines.append(Line(" " * gutter).add("└", "rule").extend(_draw_axis(curve, axis, room)))
    return Chart(lines, plot, title, newest, drawn.scale)


def _explain_dots(title: list[Line], after: int, width: int) -> int | None:
    """Put what the dots mean into a title, at its end or where there is no room for the whole of it after so
    many parts; return where, or None where it has no room at all."""
    for place in (len(title), after):
        for words in DOTS:
            with_words = [*title[:place], Line(words, "faint"), *title[place:]]
            if words in str(join_parts(with_words, width, 1)):
                title[:] = with_words
                return place
    return None


DOTS = (_MARKS["thinned"][2], "· left out")
"""What the dots mean, and the same in few cells."""

DASH = "┄ "
"""Before the name of a faint curve in a title."""


def without_dash(part: Line) -> Line:
    """A part of a title whose curve is not drawn: only its figure is left, where it was."""
    is_dashed = str(part).startswith(DASH)
    return part.mapped(lambda text: text.replace(DASH, " " * len(DASH), 1)) if is_dashed else part


def _title_without_dash(curve: Curve) -> list[Line]:
    """The title where the faint curve is not drawn: a name without a figure is left out."""
    return [
        without_dash(part) if index in curve.newest else Line() if str(part).startswith(DASH) else part
        for index, part in enumerate(curve.title)
    ]


def _draw_axis(curve: Curve, axis: Axis, width: int) -> Line:
    """Draw the axis: labels up to the newest moment, the episodes of a straggler, and the events."""
    end = axis.begin_s + axis.bin_s * axis.columns
    time_axis, happened = TimeAxis(axis.begin_s, end, width), curve.happened
    points = (curve.x, curve.behind_x)
    origin, newest = happened.origin, max(x[-1] for x in points if x is not None and len(x))
    track = Track(time_axis)
    taken = {min(time_axis.cell(time_s), width - 1) for time_s, _, _ in happened.events}
    track.put(axis.begin_s, end, "─", "rule")
    for begin, until in happened.episodes:
        track.put(begin, until, "═", "warn", least=1)
    for begin, until, sign, role in happened.activities:
        track.put(begin, until, sign, role, least=1)
    for time_s, label in happened.ticks(axis.begin_s + origin, end + origin, width // TICKS_APART):
        if time_s - origin > newest:
            break
        first, size = time_axis.cell(time_s - origin), len(label)
        # A label in part would be another time: beside an event it stands on the other side of its tick.
        for first_cell, text in ((first, f"┴{label}"), (first - size, f"{label}┴")):
            covered = {*range(first_cell, first_cell + size + 1)} - {first}
            if not taken & covered and track.write(first_cell, text, "faint"):
                taken |= {*range(min(covered) - LABELS_APART, max(covered) + LABELS_APART + 1)}
                break
    for time_s, sign, role in happened.events:
        track.mark(time_s, sign, role)
    return track.line()


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A curve in bins on its axis and scale."""

    axis: Axis
    scale: Scale
    gutter: int
    main: Column
    high: Column | None
    behind: Column | None
    extremes: tuple[Column, Column] | None
    stack: Column | None
    waste: Column | None
    n_begun: int
    """Bins up to the newest point."""

    @classmethod
    def of(cls, curve: Curve, values: Column, width: int, across: int) -> _Drawn:
        gutter = curve.gutter
        high: Column | None = None
        behind: Column | None = None
        while True:  # the width of the labels depends on the scale, and the scale on the width that is left
            cells = max(1, width - gutter - 1)
            axis = Axis.over_time(curve.x, cells, curve.span_s, across, grows=curve.grows)
            edges = axis.bin_edges(curve.x)
            if curve.band:
                main, high = quantiles_of_bins(values, edges, P50_P95)
                if curve.early and curve.p95 is not None:
                    of_bins = np.where(np.arange(len(values)) < curve.early, curve.p95, np.nan)
                    of_bins = bin_values(of_bins, edges, "mean")
                    high = np.where(np.isnan(of_bins), high, of_bins)
            else:
                main = bin_values(values, edges, "mean")
            behind = _bin_behind(curve, axis)
            scaled = main if behind is None or curve.behind_x is None else np.concatenate([main, behind])
            if curve.log:
                scale = Scale.of_logs(scaled, curve.figure)
            else:
                scale = Scale.around_series(scaled, curve.zero, curve.figure)
            if curve.reach is not None:
                scale = replace(scale, high=max(scale.high, curve.reach))
            scale = scale.settle(curve.scale_before)
            needed = max(text_width(scale.label(scale.high)), text_width(scale.label(scale.low)))
            if needed <= gutter:
                break
            # It only grows, so this ends; of a run that goes on by two cells, so that it seldom does.
            gutter = needed + (needed - GUTTER) % 2 * curve.grows
        n_begun = min(axis.columns, int((curve.x[-1] - axis.begin_s) / axis.bin_s) + 1)
        extremes = stack = None
        if curve.extremes is not None:
            least, largest = curve.extremes
            extremes = bin_values(least, edges, "min"), bin_values(largest, edges, "max")
        if curve.stack is not None:
            stack = np.stack([join_holes(bin_values(part, edges, "mean"), n_begun) for part in curve.stack])
        waste = None if curve.waste is None else join_holes(bin_values(curve.waste, edges, "mean"), n_begun)
        return cls(axis, scale, gutter, main, high, behind, extremes, stack, waste, n_begun)

    def clipped(self, across: int, height: int) -> tuple[list[int], int, float]:
        """Cells of `height` rows in which a series is cut off at the top, by more than a dot of a curve is
        high; the cell with the largest value there, and that value."""
        largest = None if self.extremes is None else self.extremes[1]
        series = [values for values in (self.main, self.high, self.behind, largest) if values is not None]
        tops = np.fmax.reduce(np.stack(series), axis=0)
        dot = (self.scale.high - self.scale.low) / max(1, 4 * height - 1)
        beyond = np.flatnonzero(tops > self.scale.high + dot)
        if not len(beyond):
            return [], 0, 0.0
        peak = int(beyond[np.argmax(tops[beyond])])
        return np.unique(beyond // across).tolist(), peak // across, float(tops[peak])

    def picture(
        self, curve: Curve, faint: Column | None, height: int, across: int, ascii_only: bool
    ) -> list[Line]:
        """`height` lines: areas in cells, and curves over them; `faint`: its dots."""
        if self.stack is not None:
            return draw_areas(self.stack, self.scale, height, choose_looks(ascii_only))
        main = _bin_dots(join_holes(self.main, self.n_begun), across)
        canvases: list[tuple[Canvas, Role]] = []
        width = (len(main) + 1) // 2
        if curve.behind_x is not None:  # two runs: an area would hide the other one's curve
            canvases.append((self._draw_line(main, width, height), curve.role))
        if faint is not None:
            canvases.append((self._draw_line(faint, width, height), "dim"))
        cell = self.cell(height)
        for values in self.extremes or ():
            canvas = Canvas(width, height)
            dots = _bin_dots(values, across)
            canvas.draw_points(np.where(np.abs(dots - main) > cell, dots, np.nan), self.scale)
            canvases.append((canvas, "dim"))
        cells = _mean_of_pairs(main)
        looks = [choose_area(curve.role, ascii_only)]
        if curve.behind_x is not None:
            cells = np.full(width, np.nan)
        waits = None
        if self.waste is not None:
            waits = np.clip(np.nan_to_num(_mean_of_pairs(_bin_dots(self.waste, across))), 0.0, cells)
        # An area begins at the foot of the scale.
        scale, above = (
            replace(self.scale, low=0.0, high=self.scale.high - self.scale.low),
            cells - self.scale.low,
        )
        parts = [above if waits is None else above - waits]
        if curve.role in CONTOURS and not ascii_only:
            contour = np.clip(CONTOUR * self.cell(height), 0.0, parts[0])
            parts = [parts[0] - contour, contour]
            looks.append((looks[0][0], CONTOURS[curve.role]))
        if waits is not None:
            parts.append(waits)
            looks.append(choose_area("wait", ascii_only))
        return draw_areas(np.stack(parts), scale, height, looks, canvases)

    def labels(self, height: int) -> dict[int, str]:
        """The labels of the scale by row, from the top: both ends, and the middle where a row lies on it and
        its label is as short."""
        scale, labels = self.scale, {}
        middle = scale.label((scale.low + scale.high) / 2)
        if height >= MIDDLE_FROM and height % 2 and text_width(middle) <= self.gutter:
            labels[height // 2] = middle
        # Of a single row the upper end: what has no other label begins at 0 in most charts.
        return labels | {height - 1: scale.label(scale.low)} | {0: scale.label(scale.high)}

    def cell(self, height: int) -> float:
        """What a cell of `height` rows is high."""
        return (self.scale.high - self.scale.low) / max(1, height)

    def faint_dots(self, curve: Curve, height: int, across: int) -> Column | None:
        """The faint curve, NaN where it is not drawn; None: there is none.

        What lies nearer to the edge of the area than a cell says nothing there, and would be noise on it.
        """
        faint = self.high if self.high is not None else self.behind
        if faint is None:
            return None
        dots = _bin_dots(join_holes(faint), across)
        if curve.behind_x is not None:
            return dots
        return np.where(dots > _bin_dots(join_holes(self.main), across) + self.cell(height), dots, np.nan)

    def _draw_line(self, values: Column, width: int, height: int) -> Canvas:
        canvas = Canvas(width, height)
        canvas.draw_curve(values, self.scale)
        return canvas


def _mean_of_pairs(values: Column) -> Column:
    """One value per cell of two dot columns: the mean of those that are known."""
    pairs = np.pad(values, (0, len(values) % 2), constant_values=np.nan).reshape(-1, 2)
    number = np.isfinite(pairs).sum(axis=1)
    sums = np.nansum(pairs, axis=1)
    return np.asarray(np.divide(sums, number, out=np.full(len(pairs), np.nan), where=number > 0))


def _bin_behind(curve: Curve, axis: Axis) -> Column | None:
    if curve.behind is None:
        return None
    if curve.behind_x is not None:
        behind = bin_values(curve.behind, axis.bin_edges(curve.behind_x), "mean")
    else:
        behind = bin_values(curve.behind, axis.bin_edges(curve.x), "max")
    if not curve.log:
        return behind
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log10(behind))


def _bin_dots(values: Column, across: int) -> Column:
    """One value per dot column."""
    return values if across == 2 else np.repeat(values, 2)


def _draw_crosshair(line: Line, column: int) -> Line:
    """The crosshair leaves edges and curves, and is drawn over areas."""
    cells = _split_cells(line, column + 1)
    sign, role = cells[column]
    front, _, behind = role.partition("/")
    if sign == " ":
        return _put_signs(line, {column: ("┊", "dim")})
    return (
        _put_signs(line, {column: ("┊", combine_roles("ink", cast("Role", behind)))})
        if front == behind
        else line
    )


def _find_room(line: Line, clipped: Sequence[int], peak: int, n_cells: int, width: int) -> int | None:
    """The first of `n_cells` blank cells right after the marks around the peak, else right before them; None:
    a curve or other marks are there."""
    cells, first, last = _split_cells(line, width), peak, peak
    while last + 1 in clipped:
        last += 1
    while first - 1 in clipped:
        first -= 1
    for begin in (last + 1, first - n_cells):
        room, around = range(begin, begin + n_cells), {begin - 1, begin + n_cells} - {first, last}
        is_blank = all(0 <= cell < width and cells[cell][0] == " " for cell in room)
        if is_blank and around.isdisjoint(clipped) and set(room).isdisjoint(clipped):
            return begin
    return None


def _split_cells(line: Line, least: int) -> list[Piece]:
    """The cells of a line, at least so many. Every sign of a chart is one cell wide."""
    cells: list[Piece] = [(sign, role) for text, role in line.pieces for sign in text]
    return cells + [(" ", "text")] * (least - len(cells))


def _put_signs(line: Line, signs: dict[int, Piece]) -> Line:
    """The line with some cells replaced, on the ground that they have."""
    cells = _split_cells(line, max(signs, default=-1) + 1)
    for column, (sign, role) in signs.items():
        front, _, behind = cells[column][1].partition("/")
        on_area = front == behind and "/" not in role
        # What is dim on the ground of the screen is as light as some areas.
        shown: Role = "ink" if role == "dim" else role
        cells[column] = (sign, combine_roles(shown, cast("Role", behind)) if on_area else role)
    return join_cells(cells)


def _draw_reading(curve: Curve, cross: Cross, axis: Axis, column: int, cell_s: float) -> list[Line]:
    """Write the value and the moment of the point nearest to the crosshair, if its cell has any."""
    begin_s = axis.begin_s + column * cell_s
    first, last = (int(np.searchsorted(curve.x, edge)) for edge in (begin_s, begin_s + cell_s))
    if first == last:
        return [Line("┊ no step here", "dim")]
    index = first + int(np.argmin(np.abs(curve.x[first:last] - cross.at_s)))
    finite: Indices = np.flatnonzero(np.isfinite(curve.main[first:last])) + first
    if not np.isfinite(curve.main[index]) and len(finite):
        index = int(finite[np.argmin(np.abs(curve.x[finite] - cross.at_s))])
    value = curve.read(index) if curve.read is not None else ""
    return [Line("┊ ", "dim").add(value, "strong"), *(Line(part, "dim") for part in cross.moment(index))]


def choose_area(role: Role, ascii_only: bool) -> Piece:
    """Sign and role of the area below a curve; that of waiting differs in text as well."""
    if role == "wait":
        return choose_looks(ascii_only)[tuple(STACK).index("wait")]
    return (":" if ascii_only else "█"), role


def draw_look(role: Role, ascii_only: bool, name: str) -> Line:
    """The look of an area and what it shows, for a title."""
    sign, _ = choose_area(role, ascii_only)
    return Line(sign, combine_roles(role, role)).add(name, "dim")


def choose_looks(ascii_only: bool) -> list[Piece]:
    """Sign and role of each part in STACK."""
    parts = {part.name: (part.plain if ascii_only else part.glyph, part.role) for part in PARTS}
    return [parts[name] for name in STACK]
