"""A row of cells along an axis of time: pieces put on it, and the numbers above it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.render.line import Line

if TYPE_CHECKING:
    from ddptop.render.line import Role

LEAST_APART = 8
"""Cells between two numbers of the axis."""


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """`width` cells from `begin_ms` to `end_ms`."""

    begin_ms: float
    end_ms: float
    width: int

    def cell(self, ms: float) -> int:
        """The cell edge nearest to a moment; outside of the axis below 0 or beyond its width."""
        span = self.end_ms - self.begin_ms
        place = (ms - self.begin_ms) / span * self.width if span > 0 else 0.0
        return round(min(max(place, -1.0), self.width + 1.0))

    def numbers(self) -> Line:
        """Round numbers where they belong, in ms."""
        span = self.end_ms - self.begin_ms
        if span <= 0 or self.width < LEAST_APART:
            return Line()
        unit = _round_up(span * LEAST_APART / self.width)
        digits = max(0, -math.floor(math.log10(unit) + 1e-9))
        line = Line()
        for at in range(math.ceil(self.begin_ms / unit), math.floor(self.end_ms / unit) + 1):
            text, place = f"{at * unit:,.{digits}f}", self.cell(at * unit)
            if place < line.width + (1 if line.width else 0) or place + len(text) > self.width:
                continue
            line.pad(place).add(text, "faint")
        return line if line.width + 3 > self.width else line.add(" ms", "faint")


class Track:
    """One row of cells; what is put later covers what was put before."""

    def __init__(self, axis: TimeAxis) -> None:
        self._axis = axis
        self._cells: list[tuple[str, Role]] = [(" ", "text")] * axis.width

    def put(self, begin_ms: float, end_ms: float, sign: str, role: Role, *, least: int = 0) -> None:
        """A piece from one moment to another; `least`: cells that it takes however short it is."""
        first, stop = self._axis.cell(begin_ms), self._axis.cell(end_ms)
        seen = begin_ms <= self._axis.end_ms and end_ms >= self._axis.begin_ms
        if seen and stop - first < least:
            first = max(0, min(first, self._axis.width - least))
            stop = first + least
        for at in range(max(0, first), min(stop, self._axis.width)):
            self._cells[at] = (sign, role)

    def mark(self, at_ms: float, sign: str, role: Role) -> None:
        """A single sign at a moment, if that is on the axis."""
        at = min(self._axis.cell(at_ms), self._axis.width - 1)
        if at >= 0 and self._axis.begin_ms <= at_ms <= self._axis.end_ms:
            self._cells[at] = (sign, role)

    def line(self) -> Line:
        """The row."""
        line = Line()
        for role, run in itertools.groupby(self._cells, key=lambda cell: cell[1]):
            line.add("".join(sign for sign, _ in run), role)
        return line


def _round_up(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1 - 1e-9))
