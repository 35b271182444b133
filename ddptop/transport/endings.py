"""How a process that is no child of ours ended: the kernel tells it before its parent asks, and after."""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import NamedTuple

from ddptop.transport.processes import process_status


class Ending(NamedTuple):
    """An exit code, or the signal that ended the process."""

    exit_code: int | None
    signal: str | None
    """`SIGKILL`."""


_INFO = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` of linux/pidfd.h in its first version: mask, cgroup, pids and ids, exit status."""

_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO; the exit status is in it since Linux 6.15, once the parent has reaped the process."""

_INFO_EXIT = 1 << 3


def ending_of_code(code: int) -> Ending:
    """From an exit code as `subprocess` gives it: negative for a signal."""
    if code >= 0:
        return Ending(code, None)
    try:
        return Ending(None, signal.Signals(-code).name)
    except ValueError:  # a real-time signal
        return Ending(None, f"signal {-code}")


def ending_of(pid: int, start: int | None, pidfd: int | None) -> Ending | None:
    """How the process ended that has this pid and start; None where that is not to be learnt (any more).

    A zombie tells it in /proc until its parent reaps it; a pidfd, on a recent kernel, from then on.
    """
    for _ in range(2):  # it may be reaped between the two looks
        status = process_status(pid)
        if status is not None and status.start == start and status.state == "Z":
            return _of_status(status.exit_status)
        told = _exit_status(pidfd) if pidfd is not None else None
        if told is not None:
            return _of_status(told)
    return None


def _of_status(status: int) -> Ending | None:
    try:
        return ending_of_code(os.waitstatus_to_exitcode(status))
    except ValueError:  # that of a process which has not ended
        return None


def _exit_status(pidfd: int) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    asked = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:  # an older kernel
        return None
    mask, *_, status = _INFO.unpack(asked)
    return int(status) if mask & _INFO_EXIT else None
