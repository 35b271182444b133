"""How this process exits: the reason, the crash file of a fatal signal, and waiting for gloo's threads.

After a collective a thread of gloo frees what the collective held, and takes the GIL for Python objects. On
a busy machine it may get the GIL only when the interpreter is already finalizing; then Python (up to 3.13)
ends the thread, which C++ answers with `terminate called without an active exception`: a training that has
done all its work is aborted by SIGABRT. Plain torch 2.13 does so about once in 200 processes on two busy
cores. A wait of a few milliseconds at exit (`wait_for_gloo`) prevents it.

At a fatal signal the interpreter writes all threads' stacks to the crash file in the run folder, which the
collector reads once the process has exited. The user's own `faulthandler.enable()`, before or after, takes
precedence; stderr and the exit code are the same as without ddptop.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.folders import NEW_FILE, open_regular
from ddptop.protocol.evidence import Evidence, Stack
from ddptop.protocol.messages import FINISHED, Phase
from ddptop.training.evidence.errors import describe_error, fit_evidence, traceback_stack, with_source
from ddptop.training.guard import guard


class ExitReason(NamedTuple):
    """Why a process exits: text (`finished`, `ValueError: no such file`, `exit code 3`, `SystemExit: no such
    file`) and traceback."""

    reason: str
    trace: Stack | None
    message: tuple[str, ...] = ()
    """The complete message of an exception in lines; empty where the reason has all of it."""

    def as_evidence(self, t_ns: int) -> Evidence:
        """The evidence of a process that exits before its first step."""
        stacks = with_source([] if self.trace is None else [self.trace])
        return fit_evidence(Evidence(t_ns, 0, 0, Phase.OTHER, -1, self.reason, (), stacks, (), self.message))


_of_child: list[ExitReason] = []
"""At most one: the reason why `run()` of this child of multiprocessing has ended, if by an exception."""


def exit_reason() -> ExitReason:
    """The exit reason of this process; called from atexit or from multiprocessing's finalizers.

    A script's uncaught exception has been printed by then and is kept in `sys.last_value`. A child of
    multiprocessing runs its finalizers while the exception is still in flight, from Python 3.13 on after
    it; mp.spawn has already turned it into a SystemExit there. The code of a script's `sys.exit(3)` is
    known to the launcher alone, and the text of its `sys.exit("no such file")` to nobody: Python prints the
    text and drops the exception before atexit, with no hook in between.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return _of_child[0] if _of_child else _reason_of(error)


def keep_for_child(error: BaseException) -> None:
    """Keep what `error` says, not the error itself, for `exit_reason()` of this child of multiprocessing."""
    _of_child[:] = [_reason_of(error)]


def _reason_of(error: BaseException | None) -> ExitReason:
    # Of anything else that it was given Python prints the text, as it does of an exception.
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        if not error.code:
            return ExitReason(FINISHED, None)
        if error.__context__ is None or error.__suppress_context__:
            return ExitReason(f"exit code {error.code:d}", traceback_stack(error.__traceback__))
        # mp.spawn's SystemExit, or one within `except`: the exception that was handled is the reason.
        error = error.__context__
    if error is None:
        return ExitReason(FINISHED, None)
    try:
        report = describe_error(error)
    except Exception as failure:  # noqa: BLE001 - the training boundary: the error is the user's object
        guard.caught(failure)
        return ExitReason(type(error).__name__, traceback_stack(error.__traceback__))
    return ExitReason(report.reason, report.trace, report.message)


GLOO_THREAD = "pt_gloo_runloop"
"""Name that torch gives to the threads that run gloo's collectives; the kernel keeps 15 characters."""

DEADLINE_S = 0.5
"""Limit of the wait. A thread that is still busy then is in a collective that is still under way."""

CHECK_S = 0.001
CHECKS = 3
"""Checks in a row that find all of them asleep. At one check a thread may be asleep because it waits for the
GIL, which we hold while we check and release between two checks."""


def wait_for_gloo_at_exit() -> None:
    """Wait for gloo when the interpreter exits, after all that is registered later. May be called twice."""
    atexit.unregister(_wait_at_exit)
    # From 3.14 on Python lets such a thread sleep for ever, which aborts nothing.
    if sys.version_info < (3, 14):
        atexit.register(_wait_at_exit)


def _wait_at_exit() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # plain Python has nothing here that Ctrl-C could end
        wait_for_gloo()


def wait_for_gloo(tasks: Path = Path("/proc/self/task"), deadline_s: float = DEADLINE_S) -> bool:
    """Wait until no thread of gloo has anything to do, at most `deadline_s`; returns whether it has none."""
    if "torch.distributed" not in sys.modules:
        return True
    end = time.monotonic() + deadline_s
    asleep = 0
    while asleep < CHECKS:
        if time.monotonic() > end:
            return False
        asleep = 0 if _is_any_busy(tasks) else asleep + 1
        if asleep < CHECKS:
            time.sleep(CHECK_S)
    return True


def _is_any_busy(tasks: Path) -> bool:
    """Whether a thread of gloo runs or waits for its turn on a core."""
    try:
        threads = list(tasks.iterdir())
    except OSError:  # no /proc: not known
        return False
    return any(_is_running(thread / "stat") for thread in threads)


def _is_running(stat: Path) -> bool:
    try:
        text = stat.read_text()
    except OSError:  # it has just ended
        return False
    name, _, state = text.partition("(")[2].rpartition(")")
    return name == GLOO_THREAD and state.split()[0] in ("R", "D")


_FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""The signals that faulthandler takes over."""


class _CrashTarget:
    """The file object given to faulthandler, which alone keeps it: freed when faulthandler gets another."""

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
        target = _CrashTarget(descriptor)
        self._target = weakref.ref(target)
        faulthandler.enable(file=target, all_threads=True)

    @classmethod
    def open_file(cls, path: Path, inherited: CrashFile | None = None) -> CrashFile | None:
        """Open it, unless fatal signals are handled otherwise; None then, and where it cannot be made.

        A JVM or Julia in the process relies on handling SIGSEGV, and would not get it as the kernel sent it.

        `inherited`: the parent's, in a forked child.
        """
        taken = faulthandler.is_enabled() or _is_signal_handled()
        if taken and (inherited is None or not inherited.in_use):
            return None
        try:
            descriptor = open_regular(path, NEW_FILE)
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

    def disconnect_in_child(self) -> None:
        """In a forked child: its crash is not the rank's, and is not written."""
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(null, self._descriptor, inheritable=False)
            os.close(null)


def _is_signal_handled() -> bool:
    """Whether a fatal signal has a handler, of any language; False where that is not known."""
    try:
        status = Path("/proc/self/status").read_text()
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return False
    return any(caught >> (number - 1) & 1 for number in _FATAL)
