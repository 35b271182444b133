"""The history of a run in several resolutions, in append-only buffers: written once, read through views that
never change. And the recent single steps of one rank, with its excess over the last minutes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.columns import Column, Indices, Mask


@dataclass(frozen=True, slots=True)
class History:
    """Points, oldest first: first `early` bins of steps, then one for each of the newest complete steps.

    A bin has the means over its steps, the least and the largest; step and time are those of its last step.
    `start`: the number of the first point, if each counted as one: that of the next one is always the number
    of complete steps so far. On the credit link a frame has only the points that were added; a source gives
    screens all that are kept.
    """

    start: int
    step: Column
    time_s: Column
    """Seconds since the run started, at the end of the step."""
    loss_mean: Column
    loss_min: Column
    loss_max: Column
    step_ms: Column
    """Median over ranks of the step's wall time; of a bin, median over its steps."""
    wait_ms: Column
    """Mean over ranks of the exposed wait; `Ranks.wait_ms` also has waits that compute hides.
    NaN where the last gradient is unknown and the step has no bucket detail. So are `transfer_ms` (exposed
    transfer) and `own_backward_ms`."""
    transfer_ms: Column
    busbw_gbps: Column
    data_ms: Column
    """Mean over ranks, as are the four below. With wait and transfer they add up to the step."""
    forward_ms: Column
    own_backward_ms: Column
    """Backward without exposed communication."""
    optimizer_ms: Column
    other_ms: Column
    step_min_ms: Column
    """In a bin, the least `step_ms` of its steps; below, the 95th percentile and the largest. Else
    `step_ms`."""
    step_p95_ms: Column
    step_max_ms: Column
    early: int = 0


@dataclass(frozen=True, slots=True)
class RankMinutes:
    """Excess of one rank over the last minutes, in bins of time in which a step ended, oldest first."""

    time_s: Column
    """Middle of each bin, in seconds since the run started."""
    mean_ms: Column
    """NaN: unknown in all steps of the bin."""
    largest_ms: Column


SLOW_SHARE = 0.5
"""A step of an intermittent straggler is slow from this share of its usual excess in slow steps, as where the
rules count its occurrences (`analysis/straggler/own_time_rules.py`)."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Recent single steps of one rank, oldest first. Columns are named as in `frames.figures.Ranks`, but
    `wait_ms` and `transfer_ms` are the parts of them that compute does not hide."""

    rank: int
    step: Column
    loss: Column
    step_ms: Column
    data_ms: Column
    forward_ms: Column
    backward_ms: Column
    optimizer_ms: Column
    other_ms: Column
    wait_ms: Column
    transfer_ms: Column
    lateness_ms: Column
    own_ms: Column
    excess_ms: Column
    minutes: RankMinutes | None = None
    """Its excess over more steps than these, in minutes; None: there is none yet."""

    @property
    def has_own_times(self) -> bool:
        """Whether some step has a known own time, and so an excess."""
        return bool(np.isfinite(self.excess_ms).any())

    @property
    def own_backward_ms(self) -> Column:
        """(steps,) backward without exposed communication; all of backward where that is not known."""
        own_ms = self.backward_ms - self.wait_ms - self.transfer_ms
        return np.where(np.isfinite(own_ms), own_ms, self.backward_ms)

    def divide_by_excess(self, usual_ms: float | None, least_ms: float = 0.0) -> tuple[Mask, Mask]:
        """(steps,) which are slow, and which are not; steps of unknown excess are neither.

        Slow steps have more than SLOW_SHARE of the usual excess, and more than `least_ms`. `usual_ms`: the
        usual excess of a slow step; None: the largest.
        """
        is_known = np.isfinite(self.excess_ms)
        if usual_ms is None:
            usual_ms = float(np.max(self.excess_ms, initial=0.0, where=is_known))
        is_slow = is_known & (self.excess_ms > max(SLOW_SHARE * usual_ms, least_ms))
        return is_slow, is_known & ~is_slow


BIN_COLUMNS = ("step_min_ms", "step_p95_ms", "step_max_ms")
"""Columns that are `step_ms` where a point is one step."""

COLUMNS = tuple(f.name for f in fields(History) if f.type == "Column")

WIDE = frozenset({"step", "time_s"})
"""Columns that need float64: a float32 loses whole steps past 2**24 and milliseconds past five hours."""

KEPT_POINTS = 8_192
"""Newest steps that are points of their own: half an hour at 4 steps/s. 84 bytes each."""

BIN_STEPS, MOST_BINS = 16, 6_144
"""Steps of a bin at first, and most bins; they fit into one frame of the credit link with steps behind them.
When there are more, the oldest of those that are short become pairs."""

LONGEST_SHARE = MOST_BINS // 2
"""No bin is longer than this part of the run: a chart of all of it is as fine at its begin as at its end."""

FIRST_CAPACITY = 256

_Points: TypeAlias = "dict[str, Column]"


class HistoryStore:
    """Keeps the newest `kept` steps as points of their own, and up to a quarter more, so that they are seldom
    moved; the steps before them in bins."""

    def __init__(self, kept: int = KEPT_POINTS) -> None:
        self._kept = kept
        self._limit = kept + kept // 4 + 1
        self.clear()

    def clear(self) -> None:
        """Forget all points; the next one may have any number."""
        self._first = 0
        self._length = 0
        self._columns = _allocate_columns(FIRST_CAPACITY)
        self._bins: _Points = _allocate_columns(0)
        self._sizes: Column = np.empty(0)
        """Steps of each bin."""

    @property
    def first(self) -> int:
        """Number of the first step that is a point of its own."""
        return self._first

    @property
    def end(self) -> int:
        """Number of the next point."""
        return self._first + self._length

    def extend(self, piece: History) -> History:
        """Add a piece and return all points. Points already here are skipped; after a gap, and with bins of
        steps that are to replace all that is here, it begins anew."""
        count = len(piece.step)
        if piece.start > self.end or piece.early or not (self._length or len(self._sizes)):
            self.clear()
            self._take_bins({name: getattr(piece, name)[: piece.early] for name in COLUMNS})
            self._first = piece.start + piece.early
        skip = self.end - piece.start
        if skip < count:
            self.append({name: getattr(piece, name)[skip:] for name in COLUMNS})
        return self.since(0)

    def append(self, points: Mapping[str, Column]) -> None:
        """Add steps, one array per column; those of `BIN_COLUMNS` may be missing."""
        most = max(1, self._limit - self._kept)
        for begin in range(0, len(points["step"]), most):
            self._append_piece({name: column[begin : begin + most] for name, column in points.items()})

    def _append_piece(self, points: Mapping[str, Column]) -> None:
        added = len(points["step"])
        self._make_room(added)
        for name, column in self._columns.items():
            column[self._length : self._length + added] = points.get(name, points["step_ms"])
        self._length += added

    def since(self, cursor: int) -> History:
        """The points from number `cursor` on, as read-only views; all of them where bins are among those.

        A cursor beyond the end belongs to another history: all points are returned.
        """
        first = cursor - self._first
        early = 0
        if first < 0 or first > self._length:
            first, early = 0, len(self._sizes)
        views = {name: column[first : self._length] for name, column in self._columns.items()}
        if early:
            views = {name: np.concatenate([self._bins[name], view]) for name, view in views.items()}
        for view in views.values():
            view.flags.writeable = False
        return History(start=self._first + first - early, early=early, **views)

    def _make_room(self, added: int) -> None:
        """Move the points to larger arrays. The old arrays do not change: a screen may show views of them."""
        needed = self._length + added
        capacity = len(self._columns["step"])
        if needed <= capacity:
            return
        kept = self._length
        if needed > self._limit:
            kept = max(0, min(self._length, self._kept - added))
            self._fold_into_bins(
                {name: column[: self._length - kept] for name, column in self._columns.items()}
            )
        # Doubled, so that a run of a million steps is moved some twenty times and not at each step.
        while capacity < kept + added:
            capacity *= 2
        capacity = max(min(capacity, self._limit), kept + added)
        old, self._columns = self._columns, _allocate_columns(capacity)
        for name, column in self._columns.items():
            column[:kept] = old[name][self._length - kept : self._length]
        self._first += self._length - kept
        self._length = kept

    def _take_bins(self, bins: _Points) -> None:
        """Bins of another store: how many steps each has follows from their numbers."""
        steps = np.diff(bins["step"], prepend=0)
        self._bins, self._sizes = bins, np.where(steps > 0, steps, BIN_STEPS)

    def _fold_into_bins(self, points: _Points) -> None:
        """Put the oldest steps into bins. A restart, from which they count from 0 again, begins another."""
        falls = np.flatnonzero(np.diff(points["step"]) < 0) + 1
        parts, sizes = [self._bins], [self._sizes]
        for begin, stop in pairwise([0, *falls.tolist(), len(points["step"])]):
            whole = (stop - begin) // BIN_STEPS * BIN_STEPS
            for first, last, size in ((begin, begin + whole, BIN_STEPS), (begin + whole, stop, 0)):
                if first < last:
                    steps_of_bin = size or last - first
                    parts.append(
                        _bins_of({n: c[first:last].reshape(-1, steps_of_bin) for n, c in points.items()})
                    )
                    sizes.append(np.full((last - first) // steps_of_bin, float(steps_of_bin)))
        self._bins = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
        self._sizes = np.concatenate(sizes)
        while len(self._sizes) > MOST_BINS and self._merge_short_bins():
            pass

    def _merge_short_bins(self) -> bool:
        """Make bins of pairs of short ones, the oldest first; False where there is no such pair."""
        sizes, step = self._sizes, self._bins["step"]
        longest = max(2.0 * BIN_STEPS, float(sizes.sum()) / LONGEST_SHARE)
        fits = (sizes[:-1] + sizes[1:] <= longest) & (np.diff(step) > 0)
        firsts: list[int] = []
        wanted = len(sizes) - MOST_BINS * 3 // 4
        for pair in np.flatnonzero(fits).tolist():
            if not firsts or pair > firsts[-1] + 1:
                firsts.append(pair)
            if len(firsts) >= wanted:
                break
        if not firsts:
            return False
        lefts = np.array(firsts)
        merged = _merge_pairs(self._bins, sizes, lefts)
        for name, column in self._bins.items():
            column = column.copy()
            column[lefts] = merged[name]
            self._bins[name] = np.delete(column, lefts + 1)
        sizes = sizes.copy()
        sizes[lefts] += sizes[lefts + 1]
        self._sizes = np.delete(sizes, lefts + 1)
        return True


LEAST, LARGEST, LAST = ("loss_min", "step_min_ms"), ("loss_max", "step_max_ms"), ("step", "time_s")
QUANTILES = {"step_ms": 0.5, "step_p95_ms": 0.95}
"""Columns that are a quantile of the steps of a bin, and which."""


def _bins_of(steps: _Points) -> _Points:
    """A bin of each row of steps, (bins, steps) in each column."""
    bins: _Points = {}
    one_each = np.ones(steps["step_ms"].shape)
    for name, values in steps.items():
        if name in QUANTILES:
            bins[name] = np.quantile(values, QUANTILES[name], axis=1).astype(np.float32)
        else:
            bins[name] = _fold_rows(name, values, one_each)
    _keep_bad_losses(bins, steps["loss_mean"], steps["loss_max"])
    return bins


def _merge_pairs(bins: _Points, sizes: Column, left: Indices) -> _Points:
    """A bin of each pair of bins that begins at one of these indices."""
    pairs = np.stack([left, left + 1], axis=1)
    merged = {name: _fold_rows(name, column[pairs], sizes[pairs]) for name, column in bins.items()}
    _keep_bad_losses(merged, bins["loss_mean"][pairs], bins["loss_max"][pairs])
    return merged


def _fold_rows(name: str, values: Column, weights: Column) -> Column:
    """(bins,) what a bin has of each row of a column: its last, least or largest value, else the mean."""
    folded: Column
    if name in LAST:
        folded = values[:, -1].copy()
    elif name in LEAST:
        folded = np.fmin.reduce(values, axis=1)
    elif name in LARGEST:
        folded = np.fmax.reduce(values, axis=1)
    else:
        folded = _mean_of_rows(values, weights)
    return folded


def _mean_of_rows(values: Column, weights: Column) -> Column:
    """(bins,) the mean of the finite values in each row; NaN: there is none."""
    is_known = np.isfinite(values)
    weights = np.where(is_known, weights, 0.0)
    total, weight = (np.where(is_known, values, 0.0) * weights).sum(axis=1), weights.sum(axis=1)
    mean = np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0)
    return np.asarray(mean, np.float32)


def _keep_bad_losses(bins: _Points, means: Column, largest: Column) -> None:
    """A NaN or infinite loss is not averaged away: the bin has it as its mean."""
    bad = np.isinf(means) | (np.isnan(means) & np.isfinite(largest))
    has_bad = bad.any(axis=1)
    bins["loss_mean"][has_bad] = means[has_bad, bad[has_bad].argmax(axis=1)]


def _allocate_columns(capacity: int) -> _Points:
    return {name: np.empty(capacity, np.float64 if name in WIDE else np.float32) for name in COLUMNS}
