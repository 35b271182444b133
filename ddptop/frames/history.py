"""History points in append-only buffers: written once, read through views that never change."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.frame import History

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.columns import Column

COLUMNS = tuple(f.name for f in fields(History) if f.name != "start")

WIDE = frozenset({"step", "time_s"})
"""Columns that need float64: a float32 loses whole steps past 2**24 and milliseconds past five hours."""

KEPT_POINTS = 262_144
"""Eleven minutes at 400 steps/s, a week at one step in 2 s; 44 bytes each, so 11 MB when full."""

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
