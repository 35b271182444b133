"""The axes of charts: bins of a time axis, the scale of values, gaps; and the time axis of the timeline."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ddptop.frames.numbers import clock, fixed, significant
from ddptop.frames.statistics import median
from ddptop.render.line import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.render.line import Role

DAY_S = 86_400

FINEST_S = 0.05
"""Cells are this long, or a step of the ladder longer."""

FEWEST_RUNGS, RUNGS = 8, 32
"""Lengths of a cell from one to its double, of a run that has just begun and of one that lasts minutes: a
chart over a whole run ends at its border within 11 and 3 %, and with another length it changes by no more."""

LEAST_GROWING_S = 60.0
"""A chart of a run that goes on has room for so many seconds, and is filled from the left: the axis stays for
the first minute, in which it would change most often."""

STEADY_S = 10.0
"""While a run goes on, the length of a cell changes about as often: with it the whole curve does, down to its
noise."""

JOINED_GAP, NEAR_GAPS = 3.0, 8
"""A hole is drawn through while it is at most so many times the usual distance between points: the
median, or that of so many before or after it, for it changes where figures are not known in every step."""


KEPT_SHARE = 0.6
"""A scale stays while the series needs at least this share of it."""

ROUNDING = 1e-6
"""Share of a scale by which an end of it may be wrong after rounding: less than a dot."""

WRITTEN_OUT = 5
"""Below this power of ten a label of a logarithmic scale has all its digits: 100, and not 1e+02."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis of a chart: `columns` bins of `bin_s` seconds, the first at `begin_s`."""

    begin_s: float
    bin_s: float
    columns: int

    @classmethod
    def over_time(
        cls, time_s: Column, cells: int, span_s: float | None, across: int = 1, *, grows: bool = False
    ) -> Axis:
        """The last `span_s` seconds, or everything. Edges lie on multiples of a cell: they stay put.

        `across`: bins of a cell. However many, the same time is shown. `grows`: there will be more time to
        show in the next picture.
        """
        first_s, last_s = float(time_s[0]), float(time_s[-1])
        lasts_s = last_s - first_s
        whole = span_s is None or lasts_s <= span_s
        shown_s = max(min(lasts_s, span_s or lasts_s), LEAST_GROWING_S if grows else 0.0)
        n_rungs = count_rungs(shown_s) if grows else RUNGS
        cell_s = round_to_ladder(shown_s / max(1, cells - 1), n_rungs)
        first = math.floor(first_s / cell_s) if whole else math.floor(last_s / cell_s) - cells + 1
        return cls(first * cell_s, cell_s / across, cells * across)

    def bin_edges(self, time_s: Column) -> Indices:
        """Index of the first point of every bin, and one more."""
        bounds = self.begin_s + self.bin_s * np.arange(self.columns + 1)
        bounds[-1] += self.bin_s * 1e-6
        return np.searchsorted(time_s, bounds)


def count_rungs(shown_s: float) -> int:
    """How many lengths of a cell there are from one to its double in a chart over so many seconds: as many as
    let each stay for STEADY_S."""
    n_rungs = FEWEST_RUNGS
    while n_rungs < RUNGS and 2 * n_rungs * STEADY_S <= shown_s:
        n_rungs *= 2
    return n_rungs


def round_to_ladder(at_least: float, n_rungs: int = RUNGS) -> float:
    """The next allowed length of a cell, in seconds: a chart is at least n_rungs / (n_rungs + 1) full."""
    step = FINEST_S
    while 2 * step <= at_least:
        step *= 2
    return max(step, math.ceil(at_least / step * n_rungs) * step / n_rungs)


def bin_values(values: Column, edges: Indices, how: str) -> Column:
    """(bins,) the `mean`, `min` or `max` of the finite values of each bin; NaN where it has none."""
    columns = len(edges) - 1
    result = np.full(columns, np.nan)
    filled = edges[1:] > edges[:-1]
    if not filled.any():
        return result
    low, high = int(edges[0]), int(edges[-1])
    inside, starts = values[low:high], (edges[:-1] - low)[filled]
    if how == "mean":
        is_finite = np.isfinite(inside)
        total = np.add.reduceat(np.where(is_finite, inside, 0.0), starts)
        number = np.add.reduceat(is_finite.astype(float), starts)
        result[filled] = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
    else:
        reduce = np.fmin if how == "min" else np.fmax
        result[filled] = reduce.reduceat(inside, starts)
    return result


def join_holes(values: Column, n_begun: int = 0) -> Column:
    """Small holes filled in straight lines; a real gap stays a gap.

    `n_begun`: of so many of these values the time has come. The newest that is known is held until there,
    unless the next is overdue.
    """
    known_at = np.flatnonzero(np.isfinite(values))
    if len(known_at) < 2:
        return values
    steps = np.diff(known_at)
    result = np.interp(np.arange(len(values)), known_at, values[known_at], left=np.nan, right=np.nan)
    # np.interp has filled the wide gaps too: they are opened again.
    for start in np.flatnonzero(steps > JOINED_GAP * median(steps)):
        near = steps[max(0, start - NEAR_GAPS) : start], steps[start + 1 : start + 1 + NEAR_GAPS]
        if all(steps[start] > JOINED_GAP * median(gaps) for gaps in near if len(gaps)):
            result[known_at[start] + 1 : known_at[start + 1]] = np.nan
    newest = int(known_at[-1])
    if n_begun - newest <= JOINED_GAP * median(steps[-NEAR_GAPS:]):
        result[newest:n_begun] = values[newest]
    return result


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of values that a chart shows."""

    low: float
    high: float
    log: bool = False
    """Values are decimal logarithms."""

    @classmethod
    def of_logs(cls, main: Column, figure: float | None = None) -> Scale:
        """A range of tenths that holds decimal logarithms, and that of a figure."""
        finite = main[np.isfinite(main)]
        if figure is not None and 0 < figure < math.inf:
            finite = np.append(finite, math.log10(figure))
        if not len(finite):
            return cls(0.0, 1.0, log=True)
        low, high = math.floor(float(finite.min()) * 10) / 10, math.ceil(float(finite.max()) * 10) / 10
        return cls(low, high if high > low else low + 0.1, log=True)

    @classmethod
    def around_series(cls, main: Column, zero: bool, figure: float | None = None) -> Scale:
        """A round range that holds the series, without peaks far above the rest, and a figure."""
        finite = main[np.isfinite(main)]
        if not len(finite):
            return cls(0.0, 1.0)
        low, top = (0.0 if zero else float(finite.min())), float(finite.max())
        # A percentile, not the maximum: one slow step of a checkpoint would flatten the whole curve.
        usual = float(
            np.interp(0.95 * (len(finite) - 1), np.arange(len(finite)), np.sort(finite))
        )  # a percentile
        if zero:  # of a far end, times may be negative
            top = max(0.0, min(top, 2.0 * usual) if usual > 0 else top)
        if figure is not None and math.isfinite(figure):
            low, top = min(low, figure), max(top, figure)
        # A flat series has no span; its own size then gives the unit.
        unit = _round_unit((top - low) or abs(top) or 1.0)
        while True:  # the range in whole units may be so much larger that its own unit is coarser
            ends = math.floor(low / unit) * unit, math.ceil(top / unit * (1 + 1e-9)) * unit
            if ends[1] <= ends[0]:
                return cls(ends[0], ends[0] + unit)
            if (coarser := _round_unit(ends[1] - ends[0])) <= unit * (1 + 1e-9):
                return cls(*ends)
            unit = coarser

    def settle(self, before: Scale | None) -> Scale:
        """`before`, while it holds this range and is not much larger: if the scale followed every peak that
        comes and goes, the whole curve would move up and down with it."""
        if before is None or before.log != self.log:
            return self
        is_held = before.low <= self.low and self.high <= before.high
        is_near = self.high - self.low >= KEPT_SHARE * (before.high - before.low)
        return before if is_held and is_near else self

    def holds(self, value: float | None) -> bool:
        """Whether a value lies in this range; true where it has no place on such a scale at all."""
        if value is None or not math.isfinite(value) or (self.log and value <= 0):
            return True
        place = math.log10(value) if self.log else value
        least = ROUNDING * (self.high - self.low)
        return self.low - least <= place <= self.high + least

    def label(self, value: float) -> str:
        """A value of this scale with the decimals that it needs and no more."""
        if self.log:
            text = significant(10.0**value, 2)
            return fixed(float(text), 0) if 2 <= value < WRITTEN_OUT else text
        unit = _round_unit(self.high - self.low)
        digits = max(0, -math.floor(math.log10(unit) + 1e-9))
        return fixed(value, digits) if digits <= 6 and abs(value) < 1e7 else significant(value, 2)


def _round_unit(span: float) -> float:
    """A fifth of the span or less: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return max(factor * power for factor in (1.0, 2.0, 5.0) if factor * power <= span / 5 * (1 + 1e-9))


Mark: TypeAlias = Literal["lost", "thinned", "nan"]

NEIGHBOURS = 8
"""Points on each side with which a jump of the step number is compared."""

TOO_FAR = 2
"""A jump of more than so many times the farthest of its neighbours: steps are missing there."""

SEEN_CELLS = 0.5
"""A hole shorter than this on the axis could not be seen anyway."""

RUN = 3
"""Equal jumps in a row from which a recording is taken to have been thinned."""

MAX_HOLES = 400
"""More than a chart has cells."""


def find_holes(step: Column, time_s: Column, cell_s: float) -> list[tuple[float, float]]:
    """(from, to) in seconds, where steps are missing that had been there before and after.

    A recording's own early history has points of some steps only, and a thinned recording as well: a jump
    counts where it is larger than those around it. Where the step number goes on by one, nothing is missing,
    however long the step took. A step number that falls is a restart.
    """
    if len(step) < 2:
        return []
    jump = np.diff(step)
    gaps = np.flatnonzero((jump > 1) & (np.diff(time_s) >= SEEN_CELLS * cell_s))
    holes_s = []
    for index in gaps[-MAX_HOLES:].tolist():
        near = np.concatenate(
            [jump[max(0, index - NEIGHBOURS) : index], jump[index + 1 : index + 1 + NEIGHBOURS]]
        )
        # A step number that falls is a restart, which says nothing about how often points are kept.
        near = near[near > 0]
        if not len(near) or jump[index] > TOO_FAR * near.max():
            holes_s.append((float(time_s[index]), float(time_s[index + 1])))
    return holes_s


def find_thinned(step: Column) -> Mask:
    """(points,) whether only every second, fourth, eighth ... step was kept around a point."""
    is_thinned: Mask = np.zeros(len(step), bool)
    jump = np.diff(step)
    if len(jump) < RUN or not (jump > 1).any():
        return is_thinned
    whole = jump.astype(np.int64)
    regular = (whole >= 2) & (whole & (whole - 1) == 0) & (step[:-1] % np.maximum(1, whole) == 0)
    same = regular[RUN - 1 :].copy()
    for back in range(1, RUN):
        same &= regular[RUN - 1 - back : len(regular) - back] & (
            whole[RUN - 1 :] == whole[RUN - 1 - back : len(whole) - back]
        )
    for offset in range(RUN + 1):
        is_thinned[offset : offset + len(same)] |= same
    return is_thinned


def no_number(mean: Column, largest: Column) -> Mask:
    """(points,) whether some rank's loss was reported and was not finite."""
    return np.asarray(np.isinf(mean) | (np.isnan(mean) & np.isfinite(largest)))


def mark_cells(
    axis: Axis, across: int, step: Column, time_s: Column, nan_at: Sequence[float]
) -> dict[int, Mark]:
    """Marks by cell of the axis; `nan_at`: moments at which a loss was no number. The most severe is kept."""
    cell_s = axis.bin_s * across
    count = axis.columns // across
    first = int(np.searchsorted(time_s, axis.begin_s))
    # A jump at the left edge is compared with points before it, which are not drawn.
    first = max(0, first - NEIGHBOURS)
    step, time_s = step[first:], time_s[first:]
    marks: dict[int, Mark] = {}

    def put_mark(at_s: float, mark: Mark) -> None:
        cell = int((at_s - axis.begin_s) / cell_s)
        if 0 <= cell < count and at_s >= axis.begin_s:
            marks[cell] = mark

    # What is written later replaces what was written before, so the most severe mark comes last.
    thinned_cells = np.unique(((time_s[find_thinned(step)] - axis.begin_s) / cell_s).astype(np.int64))
    marks.update({cell: "thinned" for cell in thinned_cells.tolist() if 0 <= cell < count})
    for begin_s, end_s in find_holes(step, time_s, cell_s):
        inside = axis.begin_s + (np.arange(count) + 0.5) * cell_s
        for cell in np.flatnonzero((inside > begin_s) & (inside < end_s)).tolist():
            marks[cell] = "lost"
    for at_s in nan_at:
        put_mark(at_s, "nan")
    return marks


TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, DAY_S)
"""Distances between two times of day on an axis."""


def time_ticks(begin_s: float, end_s: float, most: int) -> list[tuple[float, str]]:
    """At most `most` round local times of day between two moments in Unix seconds, and their labels."""
    least = (end_s - begin_s) / max(1, most)
    unit = next((time_s for time_s in TIMES_S if time_s >= least), math.ceil(least / DAY_S) * DAY_S)
    # Round in local time: midnight is no multiple of a day in UTC.
    zone = time.localtime(end_s).tm_gmtoff
    first = math.ceil((begin_s + zone) / unit) * unit - zone
    return [
        (
            tick_s,
            time.strftime("%d %b", time.localtime(tick_s))
            if unit >= DAY_S
            else clock(tick_s, seconds=unit < 60),
        )
        for tick_s in range(first, math.ceil(end_s), unit)
    ]


def step_ticks(begin: float, end: float, most: int) -> list[tuple[float, str]]:
    """At most `most` round numbers of steps between two steps, and their labels."""
    unit = max(1, round(_round_up(max(1.0, end - begin) / max(1, most))))
    return [
        (float(tick), f"{tick:,}") for tick in range(math.ceil(begin / unit) * unit, math.ceil(end), unit)
    ]


MIN_APART = 8
"""Cells between two numbers of the axis."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """`width` cells from `begin_ms` to `end_ms`."""

    begin_ms: float
    end_ms: float
    width: int

    def cell(self, ms: float) -> int:
        """The cell edge nearest to a moment: below 0 before the axis, above its width behind it.

        A moment that is not known (NaN) lies before the axis.
        """
        if math.isnan(ms):
            return -1
        span = self.end_ms - self.begin_ms
        place = (ms - self.begin_ms) / span * self.width if span > 0 else 0.0
        # Clamped first: an infinite moment cannot be rounded.
        return round(min(max(place, -1.0), self.width + 1.0))

    def draw_numbers(self, unit_name: str = "ms") -> Line:
        """Round numbers where they belong, the unit behind the last that has room for it."""
        span = self.end_ms - self.begin_ms
        if span <= 0 or self.width < MIN_APART:
            return Line()
        unit = _round_up(span * MIN_APART / self.width)
        digits = max(0, -math.floor(math.log10(unit) + 1e-9))
        numbers: list[tuple[int, str]] = []
        end = 0
        for multiple in range(math.ceil(self.begin_ms / unit), math.floor(self.end_ms / unit) + 1):
            text, place = fixed(multiple * unit, digits), self.cell(multiple * unit)
            if place < end + (1 if numbers else 0) or place + len(text) > self.width:
                continue
            numbers.append((place, text))
            end = place + len(text)
        line, stop = Line(), self.width
        for index, (place, text) in reversed(list(enumerate(numbers))):
            if place + len(text) + 1 + len(unit_name) <= stop:
                numbers[index] = place, f"{text} {unit_name}"
                break
            stop = place - 1
        for place, text in numbers:
            line.pad(place).add(text, "faint")
        return line


class Track:
    """One row of cells; what is put later covers what was put before."""

    def __init__(self, axis: TimeAxis) -> None:
        self._axis = axis
        self._cells: list[tuple[str, Role]] = [(" ", "text")] * axis.width

    def put(self, begin_ms: float, end_ms: float, sign: str, role: Role, *, least: int = 0) -> None:
        """A piece from one moment to another; `least`: cells that it takes however short it is.

        Nothing is drawn where one of the two is not known (NaN).
        """
        if math.isnan(begin_ms + end_ms):
            return
        first, stop = self._axis.cell(begin_ms), self._axis.cell(end_ms)
        seen = begin_ms <= self._axis.end_ms and end_ms >= self._axis.begin_ms
        if seen and stop - first < least:
            first = max(0, min(first, self._axis.width - least))
            stop = first + least
        for cell in range(max(0, first), min(stop, self._axis.width)):
            self._cells[cell] = (sign, role)

    def mark(self, at_ms: float, sign: str, role: Role) -> None:
        """A single sign at a moment, if that is on the axis."""
        cell = min(self._axis.cell(at_ms), self._axis.width - 1)
        if cell >= 0 and self._axis.begin_ms <= at_ms <= self._axis.end_ms:
            self._cells[cell] = (sign, role)

    def write(self, first: int, text: str, role: Role) -> bool:
        """A text from a cell on; False where it does not fit."""
        if first < 0 or first + len(text) > self._axis.width:
            return False
        self._cells[first : first + len(text)] = [(letter, role) for letter in text]
        return True

    def line(self) -> Line:
        """The row."""
        runs = itertools.groupby(self._cells, key=lambda cell: cell[1])
        return Line().signs(("".join(sign for sign, _ in run), role) for role, run in runs)


def _round_up(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))
