"""The boundary between ddptop and the training loop: our failures stop here, are counted and shown."""

from __future__ import annotations

import contextlib
import sys

MUTE_AFTER = 100
"""Failures after which the recorder goes silent: something is wrong for good, and each one costs time."""


class Guard:
    """Counts exceptions of ddptop's own code that were caught on the training thread."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: str | None = None

    def caught(self, error: BaseException) -> None:
        """Count one failure and remember the first in words."""
        self.count += 1
        if self.first is None:
            self.first = f"{type(error).__name__}: {error}"

    @property
    def muted(self) -> bool:
        """Whether the recorder has given up."""
        return self.count >= MUTE_AFTER


guard = Guard()
"""Of this process; a forked child inherits the count of its parent."""


def hide_frame(error: BaseException) -> None:
    """Take the calling wrapper's frame out of the traceback of `error`, just before a bare `raise`.

    A bare `raise` adds no entry of its own, so the user sees the traceback that plain DDP would have
    given. On Python 3.10 the re-raise keeps its own copy and the frame stays visible.
    """
    traceback = error.__traceback__
    if traceback is not None and traceback.tb_next is not None:
        error.__traceback__ = traceback.tb_next


def say_once(text: str) -> None:
    """Tell the user, on stderr and in one line, that ddptop cannot do its work here."""
    if text not in _said:
        _said.add(text)
        with contextlib.suppress(OSError, ValueError):  # a closed stderr is no reason to end a training
            print(f"ddptop: {text}; training goes on without it", file=sys.stderr, flush=True)


_said: set[str] = set()
