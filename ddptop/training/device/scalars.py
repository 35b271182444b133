"""Losses and other scalars on a GPU, read without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from ddptop.training.device.events import Event, EventPool

SLOTS = 256
"""Values on their way at a time. With all of them taken a value is left unread rather than waited for."""


class Slots(Protocol):
    """Pinned host memory of one float each."""

    def copy(self, slot: int, tensor: Any) -> None:
        """Enqueue the copy of a scalar tensor into a slot, on the current stream."""

    def read(self, slot: int) -> float:
        """What is in a slot."""


class PinnedSlots:
    """Real pinned memory: a non-blocking copy into it returns at once."""

    def __init__(self) -> None:
        import torch

        self._memory = torch.empty(SLOTS, dtype=torch.float32, device="cpu", pin_memory=True)
        self._views = [self._memory[slot] for slot in range(SLOTS)]

    def copy(self, slot: int, tensor: Any) -> None:
        self._views[slot].copy_(tensor.detach().reshape(()), non_blocking=True)

    def read(self, slot: int) -> float:
        return float(self._views[slot])


class Pending(NamedTuple):
    """A value that the device has yet to write."""

    number: int
    slot: int
    event: Event


class DeviceScalars:
    """Takes scalars on the training thread, gives their values to the publisher when the device has them.

    A value that nobody asks for again (a newer one took its place) keeps its slot until slots run short.
    """

    def __init__(self, pool: EventPool, slots: Slots) -> None:
        self._pool = pool
        self._slots = slots
        self._free: deque[int] = deque(range(SLOTS))
        self._out: dict[int, Pending] = {}
        """Values under way or not yet asked for, by number, oldest first."""
        self._next = 0

    def take(self, tensor: Any) -> Pending | None:
        """Enqueue the copy of a scalar tensor; None where no slot or no event is free."""
        if self._pool.exhausted or (not self._free and not self._reclaim()):
            return None
        slot = self._free.popleft()
        self._slots.copy(slot, tensor)
        pending = Pending(self._next, slot, self._pool.mark())
        self._next += 1
        self._out[pending.number] = pending
        return pending

    def value(self, pending: Pending) -> float | None:
        """The value, and its slot is free again; None while it is not written yet, or where it is lost."""
        try:
            if pending.number not in self._out or not pending.event.query():
                return None
        except RuntimeError:  # an error of the device's: the training thread is told of it too
            return None
        found = self._slots.read(pending.slot)
        if self._out.pop(pending.number, None) is None:
            return None  # taken back meanwhile by the training thread
        self._pool.give(pending.event)
        self._free.append(pending.slot)
        return found

    def _reclaim(self) -> bool:
        """Take back the oldest slot, if the device is done with it. Its event is not used again."""
        # A copy, made in one go: the publisher may take a value out of it at any moment.
        oldest = next(iter(list(self._out.values())), None)
        if oldest is None or not oldest.event.query():
            return False
        if self._out.pop(oldest.number, None) is not None:
            self._free.append(oldest.slot)
        return bool(self._free)
