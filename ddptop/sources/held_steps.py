"""Ranks report steps in batches; whoever stands at one step holds the rest of each batch back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from ddptop.protocol.messages import Received, Steps


class HeldSteps:
    """STEPS messages, or ends of them, that belong to later steps than the one stood at."""

    def __init__(self) -> None:
        self._waiting: deque[Received] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def sessions(self) -> int:
        """How many processes have rows held back."""
        return len({received.session for received in self._waiting})

    @property
    def common_step(self) -> int | None:
        """The lowest step that all processes with rows held back could have in them."""
        first: dict[int, int] = {}
        for received in self._waiting:
            if isinstance(received.message, Steps):
                first.setdefault(received.session, received.message.first_step)
        return max(first.values(), default=None)

    def pass_up_to(self, step: int | None, received: Received) -> Received | None:
        """What of this message may be seen at `step` (None: everything); the rest is held back."""
        message = received.message
        if step is None or not isinstance(message, Steps):
            return received
        seen = max(0, step + 1 - message.first_step)
        if seen >= len(message.rows):
            return received
        rest = replace(message, first_step=message.first_step + seen, rows=message.rows[seen:])
        self._waiting.append(replace(received, message=rest))
        return replace(received, message=replace(message, rows=message.rows[:seen])) if seen else None

    def release(self, step: int | None) -> Iterator[Received]:
        """What may be seen at `step` now, in order."""
        waiting, self._waiting = self._waiting, deque()
        for received in waiting:
            passed = self.pass_up_to(step, received)
            if passed is not None:
                yield passed
