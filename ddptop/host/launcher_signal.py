"""The signal that ends a run from outside, as its launcher reports it: a link in the run's folder.

The launcher makes it before it ends its ranks. Whoever sees their exits reads it first. A link is there as a
whole or not at all, and costs one system call in a signal handler.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.exits import signal_name

_SIGNAL = "launcher-signal"

_FAILED = "launcher-failed"
"""The command of one of several launchers has failed. Then srun or mpirun may end the other launchers by a
signal, which is no cause."""

_TEXT = re.compile(r"(?P<name>SIG[A-Z0-9]{1,10}|signal \d{1,3}) (?P<t_ns>\d{1,19})")


class LauncherSignal(NamedTuple):
    """A signal that a launcher of this host has received."""

    name: str
    """`SIGTERM`."""
    t_ns: int
    """When, by CLOCK_MONOTONIC of this host."""


def note_launcher_signal(folder: Path, number: int) -> None:
    """In a launcher: it has received this signal. Raises no exception; for signal handlers."""
    # The end by a signal is then the consequence of that failure.
    if os.path.lexists(folder / _FAILED):
        return
    with suppress(OSError):
        # A link cannot be replaced in one call. For a moment there is none; a reader comes again within a
        # second.
        (folder / _SIGNAL).unlink(missing_ok=True)
        (folder / _SIGNAL).symlink_to(f"{signal_name(number)} {time.monotonic_ns()}")


def note_launcher_failure(folder: Path) -> None:
    """In one of several launchers: its command has failed. Raises no exception."""
    with suppress(OSError):
        (folder / _FAILED).symlink_to("failed")


def read_launcher_signal(folder: Path) -> LauncherSignal | None:
    """The newest signal to a launcher of this host; None: there was none."""
    try:
        match = _TEXT.fullmatch(os.readlink(folder / _SIGNAL))  # noqa: PTH115 - pathlib takes ten times as long
    except OSError:
        return None
    return None if match is None else LauncherSignal(match["name"], int(match["t_ns"]))
