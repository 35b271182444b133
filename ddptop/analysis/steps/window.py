"""The last steps in rings of columns, ranks x steps; of these, the last complete steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import median

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices
    from ddptop.protocol.vocabulary import StepPhase

PHASES: tuple[StepPhase, ...] = ("data", "forward", "backward", "optimizer", "other")
STEP_COLUMNS = ("step", *PHASES)

MAP_STEPS, MAP_CELLS = 256, 1 << 17
"""Steps kept for heat maps, which are as wide as a terminal; and the most of all ranks together, which 512
ranks reach (3.7 MB). No figure but a map looks back further than the window."""


class Ring:
    """Named columns of the last `size` steps, (columns, *shape, size), float32: 1 us in 8 s is kept."""

    def __init__(
        self, names: tuple[str, ...], shape: tuple[int, ...], size: int, *, wide: bool = False
    ) -> None:
        self._index = {name: i for i, name in enumerate(names)}
        self._shape = (len(names), *shape)
        self._dtype = np.float64 if wide else np.float32
        self._data: Column = np.empty((*self._shape, 0), self._dtype)
        """Made with the first step: a world of which no step is complete takes no memory."""
        self._size = size
        self.count = 0
        """Steps added since the ring was made."""

    def add(self, values: Column) -> None:
        """Add steps: (columns, n, *shape)."""
        self._make()
        steps = values.shape[1]
        if steps > self._size:
            self.count += steps - self._size
            values = values[:, -self._size :]
        steps = values.shape[1]
        last = values.transpose(0, *range(2, values.ndim), 1)  # steps to the last axis
        first = self.count % self._size
        before_end = min(steps, self._size - first)
        self._data[..., first : first + before_end] = last[..., :before_end]
        self._data[..., : steps - before_end] = last[..., before_end:]
        self.count += steps

    def pass_over(self, steps: int) -> None:
        """Add steps of which nothing is known."""
        self._make()
        kept = min(steps, self._size)
        self._data[..., np.arange(self.count + steps - kept, self.count + steps) % self._size] = np.nan
        self.count += steps

    def _make(self) -> None:
        if not self.count:
            self._data = np.full((*self._shape, self._size), np.nan, self._dtype)

    def recent(self, steps: int) -> Indices:
        """Slots of the newest steps, oldest first."""
        kept = min(steps, self.count, self._size)
        return np.arange(self.count - kept, self.count) % self._size

    def of(self, name: str, slots: Indices) -> Column:
        """One column in the given slots, (*shape, n)."""
        return np.asarray(self._data[self._index[name]][..., slots])

    def medians(self, names: tuple[str, ...], slots: Indices) -> dict[str, Column]:
        """Medians over the given slots, (*shape) for each column."""
        if len(slots) == self._size:
            return {name: median(self._data[self._index[name]]) for name in names}
        return {name: median(self.of(name, slots)) for name in names}


class StepWindow:
    """Wall and phases of the last complete steps of every rank, and the median wall over ranks.

    The window are the last `size` of them; heat maps look back further where there are not too many ranks.
    """

    def __init__(self, world: int, size: int) -> None:
        kept = max(size, min(MAP_STEPS, MAP_CELLS // max(1, world)))
        self.ranks = Ring((*STEP_COLUMNS, "loss"), (world,), kept)
        self.group = Ring(("number", "step", "end"), (), kept, wide=True)
        self._size = size

    def add(self, numbers: Column, end_s: Column, columns: Column, loss: Column) -> Column:
        """Add n steps: numbers and ends (n,), (wall and PHASES, n, ranks) in ms, losses (n, ranks).

        Returns (n,) the median over ranks of the wall time.
        """
        wall = median(columns[0])
        self.ranks.add(np.concatenate([columns, loss[None]]))
        self.group.add(np.stack([numbers, wall, end_s]))
        return wall

    def slots(self) -> Indices:
        """All steps in the window, oldest first."""
        return self.ranks.recent(self._size)
