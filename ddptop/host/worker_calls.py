"""Where DataLoader workers, and ranks that do not answer, are in their Python code: by py-spy, if installed.

py-spy reads the memory of a process from outside and, `--nonblocking`, does not pause it. It takes some 15 ms
of CPU a process, so they are read only where their rank was asked about a stall, or is late.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ddptop.protocol.limits import MAX_TEXT, NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.host.exits import RankProcess

MAX_READ = 4
"""Processes that are read at a time."""

TIMEOUT_NS = 5 * NS
"""After which a py-spy that has not finished is killed."""

_NOT_THE_USERS = ("site-packages", "dist-packages", "/lib/python3", "/lib64/python3", "<frozen")


class WorkerCalls:
    """Starts py-spy for processes, and has the calls once it has finished. Never waits, never raises."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[RankProcess, subprocess.Popen[str], int]] = {}
        """By pid of the process: its rank, py-spy, and when that was started."""

    def request(self, rank: RankProcess, pids: Iterable[int], now_ns: int) -> None:
        """Read where these processes of a rank are, unless that is being done."""
        program = shutil.which("py-spy")
        for pid in pids if program is not None else ():
            if pid in self._running or len(self._running) >= MAX_READ:
                continue
            command = [str(program), "dump", "--nonblocking", "--json", "--pid", str(pid)]
            none = subprocess.DEVNULL
            with suppress(OSError):
                process = subprocess.Popen(
                    command, stdin=none, stdout=subprocess.PIPE, stderr=none, text=True, errors="replace"
                )
                self._running[pid] = rank, process, now_ns

    def take(self, now_ns: int) -> Iterator[tuple[RankProcess, int, str]]:
        """What was read since the last call: rank, pid, and the call in it, `data.py:41 decode`."""
        for pid, (rank, process, since_ns) in list(self._running.items()):
            if process.poll() is None and now_ns - since_ns < TIMEOUT_NS:
                continue
            del self._running[pid]
            if call := innermost_call(_finished(process), pid):
                yield rank, pid, call


def _finished(process: subprocess.Popen[str]) -> str:
    """Its output; empty where it had to be killed."""
    with process, suppress(OSError, ValueError):
        if process.poll() is not None and process.stdout is not None:
            return process.stdout.read()
        process.kill()
    return ""


def innermost_call(dump: str, pid: int) -> str:
    """The call of the main thread in the user's own code, of py-spy's JSON; empty: there is none."""
    try:
        threads: list[dict[str, Any]] = json.loads(dump)
        frames = next(thread["frames"] for thread in threads if thread["os_thread_id"] == pid)
        calls = [(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames]
    except (ValueError, TypeError, KeyError, StopIteration):
        return ""
    own = [call for call in calls if not any(part in call[0] for part in _NOT_THE_USERS)]
    if not own:
        return ""
    file, line, function = own[0]
    return f"{PurePath(file).name}:{line} {function.rpartition('.')[2]}"[:MAX_TEXT]
