"""The history of a run, a point per complete step, in append-only buffers: written once, read through views
that never change. And the recent single steps of one rank, with its excess over the last minutes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.columns import Column


@dataclass(frozen=True, slots=True)
class History:
    """One point per complete step, oldest first. `start`: number of the first point since the run began.

    On the credit link a frame has only the points that were added; a source gives screens all that are kept.
    """

    start: int
    step: Column
    time_s: Column
    """Seconds since the run started, at the end of the step."""
    loss_mean: Column
    loss_min: Column
    loss_max: Column
    step_ms: Column
    """Median over ranks of the step's wall time."""
    wait_ms: Column
    """Mean over ranks of the exposed wait; NaN where the last gradient is unknown and the step has no bucket
    detail. So are `transfer_ms` (exposed transfer) and `own_backward_ms`."""
    transfer_ms: Column
    busbw_gbps: Column
    data_ms: Column
    """Mean over ranks, as are the four below. With wait and transfer they add up to the step."""
    forward_ms: Column
    own_backward_ms: Column
    """Backward without exposed communication."""
    optimizer_ms: Column
    other_ms: Column


@dataclass(frozen=True, slots=True)
class RankMinutes:
    """Excess of one rank over the last minutes, in bins of time in which a step ended, oldest first."""

    time_s: Column
    """Middle of each bin, in seconds since the run started."""
    mean_ms: Column
    """NaN: unknown in all steps of the bin."""
    largest_ms: Column


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Recent single steps of one rank, oldest first; the same columns as in `frames.frame.Ranks`."""

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
    """Exposed wait; `transfer_ms`: exposed transfer."""
    transfer_ms: Column
    lateness_ms: Column
    own_ms: Column
    excess_ms: Column
    minutes: RankMinutes | None = None
    """Of more steps than these; None: there are none yet."""


COLUMNS = tuple(f.name for f in fields(History) if f.name != "start")

WIDE = frozenset({"step", "time_s"})
"""Columns that need float64: a float32 loses whole steps past 2**24 and milliseconds past five hours."""

KEPT_POINTS = 262_144
"""Eleven minutes at 400 steps/s, a week at one step in 2 s; 64 bytes each, so 17 MB when full."""

FIRST_CAPACITY = 256


class HistoryStore:
    """Keeps the newest `kept` points, and up to a quarter more, so that points are seldom moved."""

    def __init__(self, kept: int = KEPT_POINTS) -> None:
        self._kept = kept
        self._limit = kept + kept // 4 + 1
        self.clear()

    def clear(self) -> None:
        """Forget all points; the next one may have any number."""
        self._start = 0
        self._length = 0
        self._columns = _allocate(FIRST_CAPACITY)

    @property
    def end(self) -> int:
        """Number of the next point."""
        return self._start + self._length

    def extend(self, piece: History) -> History:
        """Add a piece and return all points. Points already here are skipped; after a gap it begins anew."""
        count = len(piece.step)
        if piece.start > self.end or self._length == 0:
            self.clear()
            self._start = piece.start
        skip = self.end - piece.start
        if skip < count:
            self.append({name: getattr(piece, name)[skip:] for name in COLUMNS})
        return self.since(0)

    def append(self, points: Mapping[str, Column]) -> None:
        """Add points, one array per column."""
        added = len(points["step"])
        self._make_room(added)
        for name, column in self._columns.items():
            column[self._length : self._length + added] = points[name]
        self._length += added

    def since(self, cursor: int) -> History:
        """The points from number `cursor` on, as far as they are kept, as read-only views.

        A cursor beyond the end belongs to another history: all points are returned.
        """
        first = cursor - self._start
        if first < 0 or first > self._length:
            first = 0
        views = {name: column[first : self._length] for name, column in self._columns.items()}
        for view in views.values():
            view.flags.writeable = False
        return History(start=self._start + first, **views)

    def _make_room(self, added: int) -> None:
        """Move the points to larger arrays. The old arrays do not change: a screen may show views of them."""
        needed = self._length + added
        capacity = len(self._columns["step"])
        if needed <= capacity:
            return
        kept = self._length
        if needed > self._limit:
            kept = max(0, min(self._length, self._kept - added))
        while capacity < kept + added:
            capacity *= 2
        capacity = max(min(capacity, self._limit), kept + added)
        old, self._columns = self._columns, _allocate(capacity)
        for name, column in self._columns.items():
            column[:kept] = old[name][self._length - kept : self._length]
        self._start += self._length - kept
        self._length = kept


def _allocate(capacity: int) -> dict[str, Column]:
    return {name: np.empty(capacity, np.float64 if name in WIDE else np.float32) for name in COLUMNS}
