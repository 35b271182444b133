"""A place in a recording, from which it is read message by message."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Received
    from ddptop.recording.reader import Recording


class Cursor:
    """Reads a recording message by message, and goes on when a growing one was refreshed."""

    def __init__(self, recording: Recording, from_ns: int) -> None:
        """Use `Recording.cursor`."""
        self._recording = recording
        self._from_ns = from_ns
        self._block = recording.block_at(from_ns)
        self._ready: deque[Received] = deque()

    def peek(self) -> Received | None:
        """The next message; None: there is none as yet."""
        while not self._ready:
            block = self._recording.block(self._block)
            if block is None:
                return None
            self._block += 1
            self._ready.extend(received for received in block if received.t_ns >= self._from_ns)
        return self._ready[0]

    def take(self) -> Received | None:
        """The same, and step past it."""
        return None if self.peek() is None else self._ready.popleft()
