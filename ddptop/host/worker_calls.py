"""Where DataLoader workers, and ranks that do not answer, are in their Python code: by py-spy, if installed.

py-spy reads the memory of a process from outside and, `--nonblocking`, does not pause it. It takes some 15 ms
of CPU a process, so they are read only where their rank was asked about a stall, or is late. The C functions
of a rank that runs no Python are read by themselves: it pauses the process for them, and takes 40 ms or more.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ddptop.host.exits import RankProcess
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.texts import printable
from ddptop.protocol.user_code import is_users

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.protocol.messages import Scalar

MAX_READ = 4
"""Processes that are read at a time."""

TIMEOUT_NS = 5 * NS
"""Time after which a py-spy that has not finished is killed."""

MOST_NATIVE = 3
"""C functions that are reported."""

MAX_DUMP_BYTES = 4 << 20
"""Bytes that are read of what py-spy writes: a thread with a deep stack has some 20 kB."""

_PROCESS = "multiprocessing/process.py"
"""The file in which a process of multiprocessing begins."""


class _Reading(NamedTuple):
    """A py-spy that reads a process."""

    rank: RankProcess
    program: subprocess.Popen[bytes]
    output: IO[bytes]
    """A file for what it writes, its errors included: a pipe takes 64 kB before somebody reads it."""
    since_ns: int


def find_py_spy() -> str | None:
    """The program, on PATH or beside the Python that runs; None: it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(PurePath(sys.executable).parent))


class WorkerCalls:
    """Starts py-spy for processes, and has the calls once it has finished. Never waits, never raises."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, bool], _Reading] = {}
        """By pid of the process, and whether C functions are read."""
        self._missing: dict[int, RankProcess] = {}
        """By pid: processes that were to be read without a py-spy."""

    def request_calls(
        self, rank: RankProcess, pids: Iterable[int], now_ns: int, *, native: bool = False
    ) -> None:
        """Read where these processes of a rank are, unless that is being done; `native`: the C functions."""
        program = find_py_spy()
        if program is None:
            # Said once for each process, so that a person knows what would tell more.
            self._missing |= dict.fromkeys(pids, rank) if not native else {}
            return
        for pid in pids:
            # Each takes 15 ms of CPU time or more: a host of many ranks must not be slowed down by it.
            if (pid, native) in self._running or len(self._running) >= MAX_READ:
                continue
            how = "--native" if native else "--nonblocking"
            command = [program, "dump", how, "--json", "--pid", str(pid)]
            with suppress(OSError):
                output = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it was read
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                )
                self._running[pid, native] = _Reading(rank, process, output, now_ns)

    @property
    def is_reading(self) -> bool:
        """Whether a process is being read."""
        return bool(self._running)

    def take_calls(self, now_ns: int) -> Iterator[tuple[RankProcess, dict[str, Scalar]]]:
        """What was read since the last call: the rank, and `pid` with the `call` in it, `data.py:41 decode`,
        or its `native` functions, `clock_nanosleep < nanosleep < sleep (libc.so.6)`; else why it is `unread`,
        where that is known: py-spy is `missing`, or `denied` to read the process."""
        while self._missing:
            pid, rank = self._missing.popitem()
            yield rank, {"pid": pid, "unread": "missing"}
        for (pid, native), reading in list(self._running.items()):
            if reading.program.poll() is None and now_ns - reading.since_ns < TIMEOUT_NS:
                continue
            del self._running[pid, native]
            text = _read_output(reading)
            if call := (native_calls if native else innermost_call)(text, pid):
                yield reading.rank, {"pid": pid, "native" if native else "call": call}
            elif not native and is_denied(text):
                yield reading.rank, {"pid": pid, "unread": "denied"}


def call_of(pid: int) -> str:
    """The innermost call that a process is in, as `innermost_call` writes it. Takes a moment. Empty: it
    cannot be read, or py-spy is not installed."""
    calls, now_ns = WorkerCalls(), time.monotonic_ns()
    calls.request_calls(RankProcess(0, 0, pid), [pid], now_ns)
    while calls.is_reading:
        time.sleep(0.01)
        for _, reading in calls.take_calls(time.monotonic_ns()):
            return str(reading.get("call", ""))
    return ""


def _read_output(reading: _Reading) -> str:
    """What the program has written; empty where it had to be killed."""
    with reading.output, reading.program, suppress(OSError, ValueError):
        if reading.program.poll() is not None:
            reading.output.seek(0)
            return reading.output.read(MAX_DUMP_BYTES).decode("utf-8", "replace")
        reading.program.kill()
    return ""


def is_denied(text: str) -> bool:
    """Whether py-spy says that it has no permission to read the process."""
    return re.search(r"Permission denied|Operation not permitted", text, re.IGNORECASE) is not None


def _main_thread_frames(dump: str, pid: int) -> list[dict[str, Any]]:
    """The frames of the main thread, the innermost first, of py-spy's JSON; empty: there are none."""
    # py-spy's JSON is another program's: anything unexpected is no call.
    with suppress(ValueError, TypeError, KeyError, StopIteration):
        threads: list[dict[str, Any]] = json.loads(dump)
        # The main thread has the number of the process.
        return list(next(thread["frames"] for thread in threads if thread["os_thread_id"] == pid))
    return []


def innermost_call(dump: str, pid: int) -> str:
    """The call of the main thread in the user's own code; empty: there is none.

    Of a forked worker the calls around multiprocessing's own are those of its parent when that forked.
    """
    frames = _main_thread_frames(dump, pid)
    try:
        calls = [(str(frame["filename"]), int(frame["line"]), str(frame["name"])) for frame in frames]
    except (ValueError, TypeError, KeyError):
        return ""
    # A forked worker still has its parent's calls below the fork.
    calls = [*takewhile(lambda call: not (call[0].endswith(_PROCESS) and call[2] == "_bootstrap"), calls)]
    user_calls = [call for call in calls if is_users(call[0])]
    if not user_calls:
        return ""
    file, line, function = user_calls[0]
    return printable(f"{PurePath(file).name}:{line} {function.rpartition('.')[2]}")[:MAX_TEXT]


def native_calls(dump: str, pid: int) -> str:
    """The innermost C functions of the main thread, of one library, above its Python code; empty: none."""
    frames = _main_thread_frames(dump, pid)
    calls = [(str(frame.get("name")), frame.get("module")) for frame in frames if isinstance(frame, dict)]
    # C functions have a module; the first frame of Python has none.
    above = [*takewhile(lambda call: call[1] is not None, calls)]
    # An address without a name says nothing.
    named = [call for call in above if not call[0].startswith("0x")]
    if not named:
        return ""
    library = named[0][1]
    names = [name for name, module in takewhile(lambda call: call[1] == library, named)]
    return printable(f"{' < '.join(names[:MOST_NATIVE])} ({PurePath(str(library)).name})")[:MAX_TEXT]
