"""How many batches a rank takes from its DataLoader in a step, as its heartbeats tell.

Neither is a step one batch, nor a backward one: optimizers in turn make a step each, of the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.protocol.message_run import Readings

    Integers = NDArray[np.int64]

FEW_STEPS = 8
"""Fewer say too little: step and batch of a heartbeat may be one apart."""

APART = 2
"""Batches by which two heartbeats may be wrong together."""


class BatchPace:
    """Follows the lowest rank that trains on a DataLoader."""

    def __init__(self) -> None:
        self.per_step: float | None = None
        """Batches in a step; None: not known yet."""
        self._rank: int | None = None
        self._since = (-1, 0, 0)
        """Its epoch, batch and step, from which on it is counted."""

    def take(self, ranks: Integers, beats: Readings) -> None:
        """Take heartbeats in order; `ranks`: (n,) whose they are."""
        positions = np.stack([beats.field(name) for name in ("epoch", "batch", "step")], axis=-1)
        is_known = positions[:, 0] >= 0
        if not is_known.any():
            return
        lowest = int(ranks[is_known].min())
        if self._rank is None or lowest < self._rank:
            self._rank, self.per_step, self._since = lowest, None, (-1, 0, 0)
        for epoch, batch, step in positions[is_known & (ranks == self._rank)].tolist():
            self._add_position(epoch, batch, step)

    def _add_position(self, epoch: int, batch: int, step: int) -> None:
        since_epoch, since_batch, since_step = self._since
        if epoch != since_epoch or batch < since_batch or step < since_step:
            self._since = epoch, batch, step
            return
        n_batches, n_steps = batch - since_batch, step - since_step
        if n_steps >= FEW_STEPS and n_batches > 0:
            per_step = n_batches / n_steps
            usual = round(per_step) if per_step >= 1 else 1 / round(1 / per_step)
            self.per_step = usual if abs(usual * n_steps - n_batches) <= APART else per_step
