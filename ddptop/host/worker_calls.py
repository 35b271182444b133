"""Where DataLoader workers, and ranks that do not answer, are in their Python code: by py-spy, if installed.

py-spy reads the memory of a process from outside and, `--nonblocking`, does not pause it. It takes some 15 ms
of CPU a process, so they are read only where their rank was asked about a stall, or is late. The C functions
of a rank that runs no Python are read by themselves: it pauses the process for them, and takes 40 ms or more.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ddptop.host.exits import RankProcess
from ddptop.protocol.limits import MAX_TEXT, NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.protocol.messages import Scalar

MAX_READ = 4
"""Processes that are read at a time."""

TIMEOUT_NS = 5 * NS
"""After which a py-spy that has not finished is killed."""

MOST_NATIVE = 3
"""C functions that are reported."""

_NOT_THE_USERS = ("site-packages", "dist-packages", "/lib/python3", "/lib64/python3", "<frozen")


class WorkerCalls:
    """Starts py-spy for processes, and has the calls once it has finished. Never waits, never raises."""

    def __init__(self) -> None:
        self._running: dict[tuple[int, bool], tuple[RankProcess, subprocess.Popen[str], int]] = {}
        """By pid of the process, and whether C functions are read: its rank, py-spy, and when that began."""

    def request(self, rank: RankProcess, pids: Iterable[int], now_ns: int, *, native: bool = False) -> None:
        """Read where these processes of a rank are, unless that is being done; `native`: the C functions."""
        program = shutil.which("py-spy")
        for pid in pids if program is not None else ():
            if (pid, native) in self._running or len(self._running) >= MAX_READ:
                continue
            how = "--native" if native else "--nonblocking"
            command = [str(program), "dump", how, "--json", "--pid", str(pid)]
            none = subprocess.DEVNULL
            with suppress(OSError):
                process = subprocess.Popen(
                    command, stdin=none, stdout=subprocess.PIPE, stderr=none, text=True, errors="replace"
                )
                self._running[pid, native] = rank, process, now_ns

    @property
    def reads(self) -> bool:
        """Whether a process is being read."""
        return bool(self._running)

    def take(self, now_ns: int) -> Iterator[tuple[RankProcess, dict[str, Scalar]]]:
        """What was read since the last call: the rank, and `pid` with the `call` in it, `data.py:41 decode`,
        or its `native` functions, `clock_nanosleep < nanosleep < sleep (libc.so.6)`."""
        for (pid, native), (rank, process, since_ns) in list(self._running.items()):
            if process.poll() is None and now_ns - since_ns < TIMEOUT_NS:
                continue
            del self._running[pid, native]
            if found := (native_calls if native else innermost_call)(_finished(process), pid):
                yield rank, {"pid": pid, "native" if native else "call": found}


def call_of(pid: int) -> str:
    """Where a process is now, as `innermost_call`, after a moment; empty: it cannot be read, or py-spy is not
    installed."""
    calls, now_ns = WorkerCalls(), time.monotonic_ns()
    calls.request(RankProcess(0, 0, pid), [pid], now_ns)
    while calls.reads:
        time.sleep(0.01)
        for _, found in calls.take(time.monotonic_ns()):
            return str(found["call"])
    return ""


def _finished(process: subprocess.Popen[str]) -> str:
    """Its output; empty where it had to be killed."""
    with process, suppress(OSError, ValueError):
        if process.poll() is not None and process.stdout is not None:
            return process.stdout.read()
        process.kill()
    return ""


def _main_thread(dump: str, pid: int) -> list[dict[str, Any]]:
    """The frames of the main thread, the innermost first, of py-spy's JSON; empty: there are none."""
    with suppress(ValueError, TypeError, KeyError, StopIteration):
        threads: list[dict[str, Any]] = json.loads(dump)
        return list(next(thread["frames"] for thread in threads if thread["os_thread_id"] == pid))
    return []


def innermost_call(dump: str, pid: int) -> str:
    """The call of the main thread in the user's own code; empty: there is none."""
    frames = _main_thread(dump, pid)
    try:
        calls = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames]
    except (ValueError, TypeError, KeyError):
        return ""
    own = [call for call in calls if not any(part in call[0] for part in _NOT_THE_USERS)]
    if not own:
        return ""
    file, line, function = own[0]
    return f"{PurePath(file).name}:{line} {function.rpartition('.')[2]}"[:MAX_TEXT]


def native_calls(dump: str, pid: int) -> str:
    """The innermost C functions of the main thread, of one library, above its Python code; empty: none."""
    frames = _main_thread(dump, pid)
    known = [(str(one.get("name")), one.get("module")) for one in frames if isinstance(one, dict)]
    above = [*takewhile(lambda one: one[1] is not None, known)]
    named = [one for one in above if not one[0].startswith("0x")]
    if not named:
        return ""
    library = named[0][1]
    names = [name for name, module in takewhile(lambda one: one[1] == library, named)]
    return f"{' < '.join(names[:MOST_NATIVE])} ({PurePath(str(library)).name})"[:MAX_TEXT]
