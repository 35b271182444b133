"""What the kernel shows of a process that does not answer itself, and of the processes that it has started.

No ptrace, no signal: small files in /proc. A kernel may hide in which function a thread sleeps.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.processes import process_status

MAX_WORKERS = 8
"""Processes started by one rank that are read."""

_HELPERS = (b"resource_tracker", b"forkserver import main", b"compile_worker")
"""In command lines of processes of Python's and torch's own, which no script waits for."""


class KernelView(NamedTuple):
    """The main thread of a process."""

    pid: int
    state: str
    """One letter, as in `ProcessStatus`."""
    waits_in: str
    """Function of the kernel in which it sleeps, `hrtimer_nanosleep`; empty: it runs, or that is hidden."""
    cpu_s: float
    """CPU time of the process."""
    age_s: float
    """Since the process was started."""


def kernel_view(pid: int) -> KernelView | None:
    """None where there is no such process, or no /proc."""
    status = process_status(pid)
    if status is None or status.state in "ZX":
        return None
    waits_in = ""
    with suppress(OSError):
        waits_in = Path(f"/proc/{pid}/wchan").read_text().strip()
    ticks = os.sysconf("SC_CLK_TCK")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - status.start / ticks
    waits_in = "" if waits_in == "0" else waits_in
    return KernelView(pid, status.state, waits_in, status.cpu_ticks / ticks, max(0.0, age_s))


def workers_of(pid: int) -> list[KernelView]:
    """Processes that this one has started by multiprocessing, the oldest first."""
    own = _command(pid)
    views = []
    for child in children_of(pid):
        command = _command(child)
        forked = command == own or b"multiprocessing" in command
        view = kernel_view(child) if forked and not any(word in command for word in _HELPERS) else None
        if view is not None:
            views.append(view)
    return views[:MAX_WORKERS]


def children_of(pid: int) -> list[int]:
    """Pids of the processes that a process has started."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just exited
            children += map(int, task.read_text().split())
    return sorted(children)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
