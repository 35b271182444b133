"""Which steps have the loss of the run, where several optimizers step in turn, as in a GAN.

Each step is then that of one optimizer, and its loss another quantity than the loss of the step before. The
loss of the run is that of one optimizer: of the first one that ever stepped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Mask
    from ddptop.protocol.step_columns import Numbers

ALONE_STEPS = 256
"""After so many steps without it an optimizer has ended: it was for a warm-up, or a new one replaces it."""


class OptimizerTurns:
    """Follows which optimizer steps. Optimizers step in turn once one returns after another has stepped."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        """By number of an optimizer, how many steps there were when it stepped last; the newest one last."""
        self._steps = 0
        self._in_turn = False
        self.loss_of_other: float | None = None
        """Newest loss, mean over ranks, of a step of another optimizer than the first."""

    @property
    def optimizers(self) -> int:
        """How many step in turn; 0: only one does."""
        return len(self._newest) if self._in_turn else 0

    def take(self, optimizers: Numbers, losses: Column) -> Mask:
        """Take n steps; returns (n,) whether the loss of each is the loss of the run.

        `optimizers`: (n,) the first one that stepped in each, negative: not known; `losses`: (n,) means."""
        counts = np.ones(len(losses), bool)
        for i, optimizer in enumerate(optimizers.tolist()):
            self._steps += 1
            if optimizer < 0:
                continue
            if next(reversed(self._newest), optimizer) != optimizer:
                self._in_turn |= optimizer in self._newest
                self._newest.pop(optimizer, None)  # dictionaries keep the order of insertion
            self._newest[optimizer] = self._steps
            if len(self._newest) > 1:
                self._forget_ended()
            if self._in_turn and optimizer != min(self._newest):
                counts[i] = False
                if not math.isnan(losses[i]):
                    self.loss_of_other = float(losses[i])
        return counts

    def _forget_ended(self) -> None:
        first = next(iter(self._newest))
        if self._steps - self._newest[first] > ALONE_STEPS:
            del self._newest[first]
            self._in_turn &= len(self._newest) > 1
