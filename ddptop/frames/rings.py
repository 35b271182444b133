"""Rings of the last steps: columns of figures that keep so many steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.statistics import median_of_sorted, sort_values

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices


WRITTEN_TOGETHER = 4
"""Steps of a ring that are written at once, unless they are read with others before. With 16 a collector of
4,096 ranks took 7 MB more, and no less CPU time."""


SMALL_BYTES = 2**18
"""Columns of a ring that all together take no more are in one array: steps of few ranks are then written
with one call of numpy instead of one for each column."""


class Ring:
    """Named columns of the last `size` steps, (*shape, size) each, in float32: 1 us in 8 s is resolved.

    `shape` is () or (n,).

    `wide`: in float64. `first`: so many are kept until `hold`. A column takes no memory while it has the same
    value throughout: usually nothing is waited, and no GPU paused. `like`: a ring of the same shape and size
    to which the same steps are added first, and columns of both that are usually the same: they take no
    memory here while they are."""

    def __init__(
        self,
        names: tuple[str, ...],
        shape: tuple[int, ...],
        size: int,
        *,
        wide: bool = False,
        first: int | None = None,
        like: tuple[Ring, tuple[str, ...]] | None = None,
    ) -> None:
        most, size = size, size if first is None else min(size, first)
        self.index = {name: i for i, name in enumerate(names)}
        """Places in `columns`."""
        self._like, same = (self, ()) if like is None else like
        self._same: set[str] = {*same}
        """The columns that have been the same as in `_like` so far."""
        self._shape = (*shape, size)
        self._dtype = np.float64 if wide else np.float32
        self.columns: list[Column] = [np.full(1, np.nan, self._dtype) for _ in names]
        """The columns; (1,) of one that has this value throughout."""
        self._together: Column | None = None
        """(columns, *shape, size) all columns, where they are small."""
        if like is None and size == most:
            self._put_together(names)
        self._size = size
        self._begin = 0
        self.count = 0
        """Steps added since the ring was made."""
        self._waiting: list[Column] = []
        """Steps that were added last and are to be written, (columns, n, *shape): steps of many ranks are far
        apart in memory, and a few of them are written in the time of one."""
        self._steps_waiting = 0
        self._medians: dict[tuple[str, bytes], Column] = {}
        """Medians computed since the last step was added: frames are made more often than long steps end."""

    def _put_together(self, names: tuple[str, ...]) -> None:
        shape = (len(names), *self._shape)
        if np.dtype(self._dtype).itemsize * math.prod(shape) <= SMALL_BYTES:
            self._together = np.full(shape, np.nan, self._dtype)
            self.columns = [*self._together]

    def add(self, values: Column) -> None:
        """Add n steps: (columns, n, *shape)."""
        self._medians = {}
        steps = values.shape[1]
        self._waiting.append(values.astype(self._dtype))  # a copy: half as large, and of no larger array
        self._steps_waiting += steps
        self.count += steps
        if self._steps_waiting >= WRITTEN_TOGETHER:
            self.write_waiting_steps()

    def write_waiting_steps(self) -> None:
        """Write the steps that wait."""
        if not self._steps_waiting:
            return
        waiting, self._waiting = self._waiting, []
        if self._together is not None:
            self._write_together(waiting[0] if len(waiting) == 1 else np.concatenate(waiting, axis=1))
            return
        if self.count == self._steps_waiting and waiting[0].size:  # the first ones
            self.columns = [column_values.reshape(-1)[:1].copy() for column_values in waiting[0]]
        steps, self._steps_waiting = min(self._steps_waiting, self._size), 0
        first = (self.count - steps) % self._size
        before_end = min(steps, self._size - first)
        for name, index in self.index.items():
            added = (
                waiting[0][index]
                if len(waiting) == 1
                else np.concatenate([values[index] for values in waiting])
            )
            if name in self._same and self._is_like(name, added[-steps:]):
                continue
            if (column := self._column_to_write(index, added)) is not None:
                last = added[-steps:].T  # steps to the last axis; `moveaxis` takes five times as long
                column[..., first : first + before_end] = last[..., :before_end]
                if before_end < steps:
                    column[..., : steps - before_end] = last[..., before_end:]

    def _write_together(self, added: Column) -> None:
        """Write steps, (columns, n, *shape), where all columns are in one array."""
        assert self._together is not None
        steps, self._steps_waiting = min(self._steps_waiting, self._size), 0
        first = (self.count - steps) % self._size
        before_end = min(steps, self._size - first)
        last = added[:, -steps:]
        if last.ndim > 2:  # steps to the last axis
            last = last.swapaxes(1, 2)
        self._together[..., first : first + before_end] = last[..., :before_end]
        if before_end < steps:
            self._together[..., : steps - before_end] = last[..., before_end:]

    def _is_like(self, name: str, last: Column) -> bool:
        """Whether the last steps of a column, (n, *shape), are those of `_like`, bit by bit; if not, it is
        its own from now on."""
        like_values = self._like.of(name, np.arange(self.count - len(last), self.count))
        bits = like_values.view(np.int32), np.ascontiguousarray(last.T).view(np.int32)
        if not (bits[0] == bits[1]).all():
            self._make_own(name)
        return name in self._same

    def _make_own(self, name: str) -> None:
        self._same.discard(name)
        self._like.write_waiting_steps()
        self.columns[self.index[name]] = self._like.columns[self._like.index[name]].copy()

    def _column_to_write(self, at: int, values: Column) -> Column | None:
        """The column to which these are to be written, which takes its memory now; None where all its values
        are the same as these."""
        column = self.columns[at]
        if column.shape == self._shape:
            return column
        bits = np.int64 if self._dtype is np.float64 else np.int32  # of NaN and of -0.0, too
        if (values.view(bits) == column.view(bits)).all():
            return None
        self.columns[at] = np.full(self._shape, column[0], self._dtype)
        return self.columns[at]

    def _are_unwritten(self, slots: Indices) -> bool:
        """Whether these follow each other and are all unwritten: they can be read without being written."""
        fresh = len(slots) and slots[0] >= self.count - self._steps_waiting and slots[-1] < self.count
        return bool(fresh) and int(slots[-1] - slots[0]) == len(slots) - 1

    def pass_over(self, steps: int) -> None:
        """Add steps of which nothing is known, as NaN."""
        if not steps:
            return
        self.write_waiting_steps()
        self._medians = {}
        if self.count:
            for name in [*self._same]:
                self._make_own(name)
        self._same.clear()
        kept = min(steps, self._size)
        unknown = np.full(1, np.nan, self._dtype)
        for index in range(len(self.columns)):
            if (column := self._column_to_write(index, unknown)) is not None:
                column[..., np.arange(self.count + steps - kept, self.count + steps) % self._size] = np.nan
        self.count += steps

    def hold(self, size: int) -> None:
        """From now on keep the last `size` steps, where fewer are kept; not for rings with `like`."""
        if size <= self._size:
            return
        self.write_waiting_steps()
        before, slots, self._together = self._shape, self.recent(self._size), None
        self._begin, self._size, self._shape = self.oldest, size, (*self._shape[:-1], size)
        for index, column in enumerate(self.columns):
            if column.shape == before:
                self.columns[index] = np.full(self._shape, np.nan, self._dtype)
                self.columns[index][..., slots % size] = column[..., slots % before[-1]]

    @property
    def oldest(self) -> int:
        """Slot of the oldest step that is kept."""
        return max(self._begin, self.count - self._size)

    def recent(self, steps: int) -> Indices:
        """Slots of the newest steps, oldest first. A slot is the number of a step since the ring was made."""
        return np.arange(max(self.oldest, self.count - steps), self.count)

    def of(self, name: str, slots: Indices, ranks: Indices | None = None) -> Column:
        """One column of all or some ranks in the given slots, (*shape, n), oldest first. They must still be
        kept."""
        if self._are_unwritten(slots):
            fresh = np.concatenate([values[self.index[name]] for values in self._waiting])
            first = int(slots[0]) - self.count + len(fresh)
            column = np.ascontiguousarray(fresh[first : first + len(slots)].T)
            return column if ranks is None else np.asarray(column[ranks])
        self.write_waiting_steps()
        if name in self._same and self.count:
            return self._like.of(name, slots, ranks)
        column = self.columns[self.index[name]]
        if column.shape != self._shape:
            shape = self._shape[:-1] if ranks is None else ranks.shape
            return np.full((*shape, len(slots)), column[0], self._dtype)
        if ranks is not None and 8 * len(ranks) > len(column):  # whole rows are read ten times as fast
            return np.asarray(self.of(name, slots)[ranks])
        if ranks is not None:
            return np.asarray(column[ranks[:, None], slots % self._size])
        if not 0 < len(slots) <= self._size or slots[-1] - slots[0] != len(slots) - 1:
            return np.asarray(column[..., slots % self._size])
        begin = int(slots[0]) % self._size  # without a gap: copied in one or two pieces, ten times as fast
        end = begin + len(slots)
        if end <= self._size:
            return np.asarray(column[..., begin:end].copy())
        return np.concatenate([column[..., begin:], column[..., : end - self._size]], axis=-1)

    def known(self, name: str, slots: Indices, ranks: Indices | None = None) -> Column:
        """One column of all or some ranks in the given slots, (ranks, n), as float64; NaN where a step is not
        kept (any more)."""
        values = self.of(name, slots, ranks).astype(np.float64)
        if len(slots) and slots[0] < self.oldest:
            values[..., slots < self.oldest] = np.nan
        return values

    def medians(self, names: tuple[str, ...], slots: Indices) -> dict[str, Column]:
        """Medians over the given slots, shape `shape` for each column. Not to be changed."""
        same = slots.tobytes()
        for name in names:
            if (name, same) not in self._medians:
                values = self.of(name, slots)  # a copy
                sort_values(values)
                self._medians[name, same] = median_of_sorted(values)
        return {name: self._medians[name, same] for name in names}
