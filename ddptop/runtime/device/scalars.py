"""Losses and other scalars on a GPU, read without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

from ddptop.runtime.device.events import Event, EventPool

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

        self._memory = torch.empty(SLOTS, dtype=torch.float32, pin_memory=True)
        self._views = [self._memory[slot] for slot in range(SLOTS)]

    def copy(self, slot: int, tensor: Any) -> None:
        self._views[slot].copy_(tensor.detach().reshape(()), non_blocking=True)

    def read(self, slot: int) -> float:
        return float(self._views[slot])


class Pending(NamedTuple):
    """A value that the device has yet to write."""

    slot: int
    event: Event


class DeviceScalars:
    """Takes scalars on the training thread, gives their values to the publisher when the device has them."""

    def __init__(self, pool: EventPool, slots: Slots) -> None:
        self._pool = pool
        self._slots = slots
        self._free: deque[int] = deque(range(SLOTS))

    def take(self, tensor: Any) -> Pending | None:
        """Enqueue the copy of a scalar tensor; None where no slot is free."""
        try:
            slot = self._free.popleft()
        except IndexError:
            return None
        self._slots.copy(slot, tensor)
        return Pending(slot, self._pool.mark())

    def value(self, pending: Pending) -> float | None:
        """The value, and its slot is free again; None while the device has not written it."""
        if not pending.event.query():
            return None
        found = self._slots.read(pending.slot)
        self.forget(pending)
        return found

    def forget(self, pending: Pending) -> None:
        """Give up a value that has been read; its slot and event may be used again."""
        self._pool.give(pending.event)
        self._free.append(pending.slot)
