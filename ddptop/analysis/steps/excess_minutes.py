"""The excess of every rank over the last minutes, in bins of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.history import RankMinutes

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices

SPAN_S = 1_800.0
"""At least so much is kept: what the charts over the last minutes show."""

FINEST_S = 0.5
"""First length of a bin. It doubles when the bins are full, until they span SPAN_S."""

MOST_BINS, CELLS = 512, 2**19
"""Bins, and most cells (ranks x bins) of twelve bytes: from 1,024 ranks on there are fewer bins."""


class ExcessMinutes:
    """Mean and largest excess of each rank in each bin in which a step ended.

    Bins begin at multiples of their length, which depends on the steps alone: so a replay has the same ones.
    """

    def __init__(self, world: int) -> None:
        self._bins = min(MOST_BINS, max(2, CELLS // max(1, world)))
        self._bin_s = FINEST_S
        self._number: Indices = np.empty(0, np.int64)
        """(bins,) begin of each bin, divided by its length."""
        self._cells: Column = np.empty((0, 3, world), np.float32)
        """(bins, 3, ranks): steps in which the excess is known, their sum and the largest, in ms."""
        self._count = 0

    def add(self, end_s: Column, excess_ms: Column | None) -> None:
        """Add n steps, oldest first: when they ended (n,), and (n, ranks) ms; NaN or None: unknown."""
        if excess_ms is None:
            return
        if not self._count:
            self._number = np.empty(self._bins, np.int64)
            self._cells = np.empty((self._bins, *self._cells.shape[1:]), np.float32)
        end_s, excess_ms = end_s[-self._bins :], excess_ms[-self._bins :]
        there = np.isfinite(excess_ms)
        steps = np.stack([there, np.where(there, excess_ms, 0.0), excess_ms], axis=1)
        while True:
            number = np.floor(end_s / self._bin_s).astype(np.int64)
            if self._count:  # a clock that is set back moves no step to an earlier bin
                number = np.maximum(number, self._number[self._count - 1])
            number, cells = _folded(np.maximum.accumulate(number), steps)
            joins = int(self._count > 0 and number[0] == self._number[self._count - 1])
            if self._count + len(number) - joins <= self._bins:
                break
            self._make_room()
        if joins:
            last = self._cells[self._count - 1]
            last[:2] += cells[0, :2]
            last[2] = np.fmax(last[2], cells[0, 2])
        until = self._count + len(number) - joins
        self._number[self._count : until] = number[joins:]
        self._cells[self._count : until] = cells[joins:]
        self._count = until

    def of(self, rank: int) -> RankMinutes | None:
        """The bins of one rank, oldest first; None: no step had own times."""
        if not self._count:
            return None
        known, total, largest = np.asarray(self._cells[: self._count, :, rank].T, np.float64)
        mean = np.full(self._count, np.nan)
        np.divide(total, known, out=mean, where=known > 0)
        middle = np.asarray((self._number[: self._count] + 0.5) * self._bin_s, np.float64)
        return RankMinutes(middle, np.asarray(mean, np.float64), largest)

    def _make_room(self) -> None:
        """Two bins become one; where bins are long enough, the oldest quarter is forgotten."""
        number, cells = self._number[: self._count], self._cells[: self._count]
        if self._bins * self._bin_s < SPAN_S * 4 / 3:
            self._bin_s *= 2
            number, cells = _folded(number // 2, cells)
        else:
            number, cells = number[-(-self._bins // 4) :].copy(), cells[-(-self._bins // 4) :].copy()
        self._count = len(number)
        self._number[: self._count], self._cells[: self._count] = number, cells


def _folded(number: Indices, cells: Column) -> tuple[Indices, Column]:
    """Rows of equal number, which follow each other, as one row each."""
    starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
    sums = np.add.reduceat(cells[:, :2], starts, axis=0)
    return number[starts], np.concatenate([sums, np.fmax.reduceat(cells[:, 2:], starts, axis=0)], axis=1)
