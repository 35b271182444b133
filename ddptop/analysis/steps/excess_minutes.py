"""The excess of every rank over the last minutes, in bins of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps.pairing import begins_of_runs
from ddptop.frames.history import RankMinutes

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices

SPAN_S = 1_800.0
"""At least so much is kept: what the charts over the last minutes show."""

FINEST_S = 0.5
"""First length of a bin. It doubles when the bins are full, until they span SPAN_S."""

MOST_BINS, CELLS = 512, 2**19
"""Bins, and most cells (ranks x bins) of twelve bytes: from 1,024 ranks on there are fewer bins."""


RECORDED_S, RECORDED_CELLS = 8.0, 2**16
"""Bins in a recording are at least so long. Of one call at most so many cells of four bytes are recorded."""


class Recorded(NamedTuple):
    """Bins for a recording."""

    end_s: float
    """The next call asks for bins from here on."""
    time_s: Column
    """(n,) middle of each bin, in seconds since the run started."""
    figures: Column
    """(2, n, ranks) ms: mean and largest; NaN: unknown."""


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

    def add(self, end_s: Column, excess: Column | None) -> None:
        """Add n steps, oldest first: when they ended (n,), and (n, ranks) ms; NaN or None: unknown."""
        if excess is not None:
            is_known = np.isfinite(excess)
            self._append(end_s, np.stack([is_known, np.where(is_known, excess, 0.0), excess], axis=1))

    def _append(self, at_s: Column, cells: Column) -> None:
        """Add rows of cells, (n, 3, ranks), at moments that do not come before those of the last bin."""
        if not len(self._number):
            self._number = np.empty(self._bins, np.int64)
            self._cells = np.empty((self._bins, *self._cells.shape[1:]), np.float32)
        # No more at once than the bins that are forgotten together: so it is the same for any number at once.
        most = max(1, self._bins // 4)
        for first in range(0, len(at_s), most):
            self._append_few(at_s[first : first + most], cells[first : first + most])

    def _append_few(self, at_s: Column, cells: Column) -> None:
        while True:
            number = np.floor(at_s / self._bin_s).astype(np.int64)
            if self._count:  # a clock that is set back moves no step to an earlier bin
                number = np.maximum(number, self._number[self._count - 1])
            number, rows = _folded(np.maximum.accumulate(number), cells)
            joins = int(self._count > 0 and number[0] == self._number[self._count - 1])
            if self._count + len(number) - joins <= self._bins:
                break
            self._make_room()
        if joins:
            last = self._cells[self._count - 1]
            last[:2] += rows[0, :2]
            last[2] = np.fmax(last[2], rows[0, 2])
        until = self._count + len(number) - joins
        self._number[self._count : until] = number[joins:]
        self._cells[self._count : until] = rows[joins:]
        self._count = until

    def of(self, rank: int) -> RankMinutes | None:
        """The bins of one rank, oldest first; None: no step had own times."""
        if not self._count:
            return None
        n_known, total, largest = np.asarray(self._cells[: self._count, :, rank], np.float64).T
        return RankMinutes(self._middles(), _mean_of_known(n_known, total), largest)

    def since(self, after_s: float, *, final: bool) -> Recorded:
        """What a recording keeps: bins of RECORDED_S that begin at `after_s` or later, RECORDED_CELLS at
        most. With `final` also the newest bin, to which steps are still added."""
        every = max(1, round(RECORDED_S / self._bin_s))
        number, length_s = self._number[: self._count] // every, every * self._bin_s
        is_since = number * length_s >= after_s
        if not final:
            is_since &= number < number[-1:].max(initial=0)
        if not is_since.any():
            return Recorded(after_s, np.empty(0), np.empty((2, 0, self._cells.shape[2])))
        number, cells = _folded(number[is_since], self._cells[: self._count][is_since])
        end_s = float(number[-1] + 1) * length_s
        most = max(1, RECORDED_CELLS // max(1, cells.shape[2]))
        number, cells = number[-most:], cells[-most:]
        figures = np.stack([_mean_of_known(cells[:, 0], cells[:, 1]), np.asarray(cells[:, 2], np.float64)])
        return Recorded(end_s, np.asarray((number + 0.5) * length_s, np.float64), figures)

    def recall(self, time_s: Column, figures: Column) -> None:
        """Put recorded bins before those kept: middle of each (n,), and mean and largest (2, n, ranks).

        They are longer: each is put in as several, or a chart would show single points with gaps between."""
        own_s, own_bins = self._kept()
        until_s = own_s[0] - self._bin_s / 2 if self._count else -np.inf
        length_s = float(np.diff(time_s).min(initial=2 * RECORDED_S))
        early = time_s - length_s / 2 < until_s
        if not early.any():
            return
        time_s, (mean, largest) = time_s[early], figures[:, early]
        lasts_s = own_s[-1] - time_s[0] + length_s
        while lasts_s > self._bins * self._bin_s < SPAN_S * 4 / 3:
            self._bin_s *= 2
        n_bins = max(1, round(length_s / self._bin_s))
        at_s = (time_s[:, None] + (np.arange(n_bins) + 0.5 - n_bins / 2) * self._bin_s).ravel()
        is_known = np.isfinite(mean)
        cells = np.stack([is_known, np.where(is_known, mean, 0.0), largest], axis=1).repeat(n_bins, axis=0)
        before = at_s < until_s
        self._count = 0
        self._append(np.concatenate([at_s[before], own_s]), np.concatenate([cells[before], own_bins]))

    def _kept(self) -> tuple[Column, Column]:
        """Middles of the bins (n,), and a copy of their cells."""
        return self._middles(), np.asarray(self._cells[: self._count], np.float64)

    def _middles(self) -> Column:
        return np.asarray((self._number[: self._count] + 0.5) * self._bin_s, np.float64)

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


def _mean_of_known(known: Column, total: Column) -> Column:
    mean = np.full(known.shape, np.nan)
    np.divide(total, known, out=mean, where=known > 0)
    return mean


def _folded(number: Indices, cells: Column) -> tuple[Indices, Column]:
    """Rows of equal number, which follow each other, as one row each."""
    starts = begins_of_runs(number)
    sums = np.add.reduceat(cells[:, :2], starts, axis=0)
    return number[starts], np.concatenate([sums, np.fmax.reduceat(cells[:, 2:], starts, axis=0)], axis=1)
