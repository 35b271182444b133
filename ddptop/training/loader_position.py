"""Which pass over its DataLoader a rank trains on, and which batch of it: `epoch 3, batch 120 of 400`."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from ddptop.training.torch_compat.loader import batch_size_of, batches_in_all, batches_taken


class Position(NamedTuple):
    """How far the DataLoader is; the fields are those of PROGRESS. -1: not known."""

    epoch: int = -1
    batch: int = -1
    batches: int = -1


class LoaderPosition:
    """Counts the passes over DataLoaders whose batches are trained on; those of an evaluation do not count.

    The training thread only notes which iterator it has taken a batch from. The publisher reads the rest.
    """

    def __init__(self) -> None:
        self._epoch = -1
        # Weak references: an iterator that is kept alive would keep its workers.
        self.newest: weakref.ref[Any] | None = None
        """The iterator that the newest batch came from; below, the one whose batches are trained on. Python
        gives the same reference for the same object."""
        self._begun: weakref.ref[Any] | None = None
        self.trained: weakref.ref[Any] | None = None
        self._of_pass: tuple[Any, int] = None, -1
        self._last = Position()
        self.batch_size: int | None = None
        """Samples in a full batch of the pass that began last, as far as it was read; None: not known."""

    def note_batch(self, iterator: Any) -> None:
        """Note that the training thread asks this iterator for a batch."""
        self.newest = weakref.ref(iterator)
        if batches_taken(iterator) == 0:  # a loader that keeps its workers keeps its iterator, too
            self._begun = self.newest

    def note_forward(self) -> bool:
        """Note that a forward that records gradients begins: the newest batch is trained on. Returns whether
        it is the first of a pass."""
        newest, begins = self.newest, False
        # A loader that keeps its workers begins its next pass with the same iterator.
        if newest is not self.trained or newest is self._begun:
            self.trained = newest
            if newest is not None and newest is self._begun:
                self._epoch += 1
                self._begun, begins = None, True
        return begins

    def read(self) -> Position:
        """The position now; for any thread. After the end of a pass it is that of its end."""
        iterator = None if self.trained is None else self.trained()
        if iterator is None:
            return self._last
        epoch = self._epoch
        if self._of_pass[0] != (self.trained, epoch):
            if epoch != self._last.epoch:  # not each time where two loaders take turns
                self.batch_size = batch_size_of(iterator)
            self._of_pass = (self.trained, epoch), batches_in_all(iterator)
        self._last = Position(epoch, batches_taken(iterator), self._of_pass[1])
        return self._last
