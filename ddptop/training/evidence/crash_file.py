"""Where a fatal signal leaves its traces: the interpreter writes all threads' stacks to a file as it dies.

The file lies in the run's folder, where the collector reads it once the process is gone. The user's own
`faulthandler.enable()`, before or after, wins; stderr and the exit code stay as they would be without us.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import weakref
from contextlib import suppress
from pathlib import Path

_FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""The signals that faulthandler takes over."""


class _Target:
    """What faulthandler is given: it alone keeps this object, so that its end shows when it lets go of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        """Nothing is buffered."""


class CrashFile:
    """The crash file of one session of this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        target = _Target(descriptor)
        self._target = weakref.ref(target)
        faulthandler.enable(file=target, all_threads=True)

    @classmethod
    def open(cls, path: Path, inherited: CrashFile | None = None) -> CrashFile | None:
        """Open it, unless somebody else catches fatal signals; None then, and where it cannot be made.

        A JVM or Julia in the process lives on catching SIGSEGV, and would not get it as the kernel sent it.

        `inherited`: the parent's, in a forked child.
        """
        taken = faulthandler.is_enabled() or _caught_by_somebody()
        if taken and (inherited is None or not inherited.in_use):
            return None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return None
        return cls(path, descriptor)

    @property
    def in_use(self) -> bool:
        """Whether faulthandler still writes to it."""
        return self._target() is not None

    def close(self) -> None:
        """Remove the file if nothing is in it. The descriptor stays open: a later crash must not write to
        whatever would get its number."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size == 0:
                self._path.unlink(missing_ok=True)

    def forked(self) -> None:
        """In a forked child: what it crashes of is not the rank's, and goes nowhere."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._descriptor, inheritable=False)
            os.close(nowhere)


def _caught_by_somebody() -> bool:
    """Whether a fatal signal has a handler, of whatever language; False where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return False
    return any(caught >> (number - 1) & 1 for number in _FATAL)
