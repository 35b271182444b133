"""The last complete steps, and the last detailed ones, in rings of columns: ranks x steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis import metrics

if TYPE_CHECKING:
    from ddptop.analysis.detail import StepFigures
    from ddptop.analysis.frames import Column
    from ddptop.protocol.messages import Bucket

PHASES = ("data", "forward", "backward", "optimizer", "other")
STEP_COLUMNS = ("step", *PHASES)
WAITS = ("collective", "wait", "transfer", "exposed", "exposed_wait", "lateness")
PARTS = ("part_data", "part_forward", "part_backward", "part_optimizer", "part_other")
"""Phases again, of detailed steps, where backward counts compute only: what the cause is read from."""
DETAIL_COLUMNS = (*WAITS, "self", *PARTS)
DETAIL_SCALARS = ("point", "step", "overlap", "busbw", "recoverable", "hidden", "both", "last")
BUCKET_COLUMNS = ("collective", "wait", "transfer", "skew", "last")

FEW_DETAILED = 8
"""With fewer detailed steps than this in the window a median says little: look further back."""
DETAILED_BACK = 32
"""How many detailed steps to take then, however old."""


class Ring:
    """Named columns of the last `size` steps, (columns, *shape, size), float32: 1 us in 8 s is kept."""

    def __init__(
        self, names: tuple[str, ...], shape: tuple[int, ...], size: int, *, wide: bool = False
    ) -> None:
        self._index = {name: i for i, name in enumerate(names)}
        self._data: Column = np.full((len(names), *shape, size), np.nan, np.float64 if wide else np.float32)
        self._size = size
        self.count = 0
        """Steps added since the ring was made."""

    def add(self, values: Column) -> None:
        """Add steps: (columns, n, *shape)."""
        steps = values.shape[1]
        if steps > self._size:
            self.count += steps - self._size
            values = values[:, -self._size :]
        slots: Column = np.arange(self.count, self.count + values.shape[1]) % self._size
        self._data[..., slots] = np.moveaxis(values, 1, -1)
        self.count += values.shape[1]

    def recent(self, steps: int) -> Column:
        """Slots of the newest steps, oldest first."""
        kept = min(steps, self.count, self._size)
        return np.arange(self.count - kept, self.count) % self._size

    def of(self, name: str, slots: Column) -> Column:
        """One column in the given slots, (*shape, n)."""
        return np.asarray(self._data[self._index[name]][..., slots])

    def medians(self, names: tuple[str, ...], slots: Column) -> dict[str, Column]:
        """Medians over the given slots, (*shape) for each column."""
        if len(slots) == self._size:
            return {name: metrics.median(self._data[self._index[name]]) for name in names}
        return {name: metrics.median(self.of(name, slots)) for name in names}


class StepWindow:
    """Wall and phases of the last `size` complete steps of every rank, and the median wall over ranks."""

    def __init__(self, world: int, size: int) -> None:
        self.ranks = Ring((*STEP_COLUMNS, "loss"), (world,), size)
        self.group = Ring(("number", "step", "end"), (), size, wide=True)
        self._size = size

    def add(self, numbers: Column, end_s: Column, columns: Column, loss: Column) -> Column:
        """Add n steps: numbers and ends (n,), (wall and PHASES, n, ranks) in ms, losses (n, ranks).

        Returns (n,) the median over ranks of the wall time.
        """
        wall = metrics.median(columns[0])
        self.ranks.add(np.concatenate([columns, loss[None]]))
        self.group.add(np.stack([numbers, wall, end_s]))
        return wall

    def slots(self) -> Column:
        """All steps in the window, oldest first."""
        return self.ranks.recent(self._size)


class DetailColumns(NamedTuple):
    """Detailed steps on their way into a window: (columns, n, ...) for each of its rings, (n,) busbw."""

    ranks: Column
    group: Column
    bucket: Column
    busbw: Column


class DetailWindow:
    """Figures of the detailed steps of one layout. A rebuild makes a new one: baselines start again."""

    def __init__(self, world: int, size: int, layout: int, buckets: tuple[Bucket, ...]) -> None:
        self.layout = layout
        self.buckets = buckets
        """May be replaced by the same buckets with more known of them."""
        self.ranks = Ring(DETAIL_COLUMNS, (world,), size)
        self.group = Ring(DETAIL_SCALARS, (), size, wide=True)
        self.bucket = Ring(BUCKET_COLUMNS, (len(buckets),), size)
        self.best_self = np.full(world, np.nan)
        """Each rank's own best median self time so far, of DETAILED_BACK steps at a time."""
        self._factor = metrics.bus_factor(world)
        self._size = size

    @property
    def count(self) -> int:
        """Detailed steps since the layout was made."""
        return self.group.count

    def columns_of(
        self, points: Column, columns: Column, numbers: tuple[int, ...], found: StepFigures
    ) -> DetailColumns:
        """What to `add` for n steps: of their history points (n,) and (wall and PHASES, n, ranks)."""
        waits = np.stack([getattr(found, name) for name in WAITS])
        computed = columns[3] - found.exposed
        parts = np.stack([columns[1], columns[2], computed, columns[4], columns[5]])
        ranks = np.concatenate([waits, (columns[0] - found.exposed_wait)[None], parts])
        busbw = self._busbw(numbers, found)
        scalars = [points, metrics.median(columns[0]), self._overlap(found), busbw]
        group = np.stack([*scalars, found.recoverable, found.hidden, found.both, found.last])
        return DetailColumns(ranks, group, self._per_bucket(numbers, found), busbw)

    def add(self, steps: DetailColumns, first: int, stop: int) -> None:
        """Take some of the steps. Not past a multiple of DETAILED_BACK at once, where baselines are read."""
        self.ranks.add(steps.ranks[:, first:stop])
        self.group.add(steps.group[:, first:stop])
        self.bucket.add(steps.bucket[:, first:stop])
        if self.count % DETAILED_BACK == 0:
            own = self.ranks.medians(("self",), self.ranks.recent(DETAILED_BACK))["self"]
            self.best_self = np.fmin(self.best_self, own)

    def judged(self, end: int) -> Column:
        """Slots of the steps that figures are made of, when the history has `end` points; oldest first."""
        slots = self.group.recent(self._size)
        within = slots[self.group.of("point", slots) >= end - self._size]
        if len(within) >= FEW_DETAILED:
            return np.asarray(within)
        return self.group.recent(DETAILED_BACK)

    def wire_bytes(self, number: int) -> int | None:
        """Of one bucket; None where a hook hides it."""
        return self.buckets[number].wire_bytes

    def _overlap(self, found: StepFigures) -> Column:
        """1 - exposed / union of all collectives, over all ranks, in percent."""
        busy = np.nansum(found.collective, axis=-1)
        bare = np.nansum(found.exposed, axis=-1)
        return 100 * (1 - np.divide(bare, busy, out=np.full_like(busy, np.nan), where=busy > 0))

    def _busbw(self, numbers: tuple[int, ...], found: StepFigures) -> Column:
        """All bytes of the step over the time in which some moved (mean over ranks), with the bus factor."""
        sizes = [self.wire_bytes(number) for number in numbers]
        total = sum(float("nan") if size is None else size for size in sizes)
        moving = metrics.mean(found.transfer)
        return metrics.bandwidth_gbps(np.full_like(moving, total), moving) * self._factor

    def _per_bucket(self, numbers: tuple[int, ...], found: StepFigures) -> Column:
        """(columns, n, buckets). A bucket that went out several times in a step counts with its last time."""
        steps = len(found.last)
        values = np.full((len(BUCKET_COLUMNS), steps, len(self.buckets)), np.nan)
        for i, name in enumerate(BUCKET_COLUMNS):
            values[i][:, list(numbers)] = getattr(found, f"bucket_{name}")
        return values
