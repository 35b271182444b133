"""How a user leaves: the signals that end a command, and threads that must not keep the user.

A thread that is busy for longer is abandoned, and ends with the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

ENDING_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
"""Besides SIGINT, these end a command with 128 + their number: a terminal that is closed sends SIGHUP.

SIGQUIT (Ctrl-\\) keeps its own action, so that it also ends a command that is stuck in a C function."""

LEAVE_S = 0.4
"""How long a thread is waited for that was told to end. With two of these and the terminal, a screen is left
within a second."""

_abandoned: list[threading.Thread] = []


def new_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """A thread that does not keep the process from ending; the caller starts it."""
    return threading.Thread(target=work, name=name, daemon=True)


def wait_for_ends(threads: Sequence[threading.Thread]) -> bool:
    """Wait for threads that were told to end, LEAVE_S for all of them; whether all have ended."""
    deadline = time.monotonic() + LEAVE_S
    for thread in threads:
        # A thread that was never started cannot be joined.
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
    busy = [thread for thread in threads if thread.is_alive()]
    _abandoned.extend(busy)
    return not busy


def leave_process(code: int) -> None:
    """End the process at once if an abandoned thread is still busy.

    Python's own end could wait for what the thread holds, or take away what it uses.
    """
    if not any(thread.is_alive() for thread in _abandoned):
        return
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)
