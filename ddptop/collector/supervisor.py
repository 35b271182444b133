"""The launcher's side of the collector: start it, start it again when it dies, end it, hear what it kept."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddptop.transport import beside
from ddptop.transport.private import open_log

MAX_RESTARTS = 20
"""A collector that dies more often than this has a reason that starting it again will not mend."""

RESTART_AFTER_S = 0.2
"""Ranks keep their records for minutes, so there is no hurry, and a crash loop must not eat a core."""

EXITS_A_LINE = 50
"""A line of 50 stays below what a pipe takes at once, and its reader."""

FINISH_S = 6.0
"""How long the end of a run waits for the last records: the collector itself waits 2 s for its ranks."""


@dataclass(frozen=True)
class Summary:
    """What the collector says at its end; None where it did not say."""

    steps: int | None
    records: int
    lost: int
    recording: str | None
    note: str | None


class CollectorSupervisor:
    """One collector process for one run. Nothing here may fail in a way that reaches the training."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        """`arguments` are those of `python -m ddptop.collector`; its stderr goes to the file `log`."""
        self._command = [sys.executable, "-m", "ddptop.collector", *arguments]
        self._log = log
        self._told: list[bytes] = []
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ddptop-supervisor", daemon=True)

    def start(self) -> None:
        """Start the collector and the thread that starts it again.

        Raises:
            OSError: where no process can be started.
        """
        self._process = self._spawn()
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the collector that was started last; 0: there is none."""
        return 0 if self._process is None else self._process.pid

    def tell_exits(self, exits: Sequence[tuple[int, int]]) -> None:
        """Processes have ended: pids, with exit codes as `subprocess` gives them. Never blocks or raises."""
        with self._lock:
            for first in range(0, len(exits), EXITS_A_LINE):
                some = exits[first : first + EXITS_A_LINE]
                line = json.dumps({"exits": [{"pid": pid, "exit_code": code} for pid, code in some]}) + "\n"
                self._told.append(line.encode())
                self._say(self._told[-1:])

    def finish(self, exit_code: int) -> Summary | None:
        """Tell the collector that the run has ended; None if it did not answer in time (it is killed)."""
        self._ending.set()
        with self._lock:
            process = self._process
        if process is None:
            return None
        try:
            output, _ = process.communicate(json.dumps({"exit_code": exit_code}) + "\n", timeout=FINISH_S)
        except (subprocess.TimeoutExpired, OSError, ValueError):
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError):
                process.communicate(timeout=1.0)
            return None
        finally:
            self._thread.join(1.0)
        return summary_in(output)

    def _say(self, lines: Sequence[bytes]) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            for line in lines:
                _write_if_room(process.stdin, line)

    def _spawn(self) -> subprocess.Popen[str]:
        with open_log(self._log) as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the training, not for its recorder
                env=beside.environment(),
            )

    def _watch(self) -> None:
        for _ in range(MAX_RESTARTS):
            process = self._process
            assert process is not None
            process.wait()
            if self._ending.wait(RESTART_AFTER_S):
                return
            with self._lock:
                if self._ending.is_set():
                    return
                _close_pipes(process)
                try:
                    self._process = self._spawn()
                    self._say(self._told)  # the one before may have died before it wrote them down
                except OSError:
                    self._process = None
                    return


def _write_if_room(pipe: IO[str], line: bytes) -> None:
    """A pipe that is ready takes at least PIPE_BUF bytes; a collector that is stopped does not read it."""
    try:
        if select.select([], [pipe], [], 0)[1]:
            os.write(pipe.fileno(), line)
    except (OSError, ValueError):  # its process is dead, or the pipe is closed
        return


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # unflushed words to a dead process
                continue


def summary_in(output: str) -> Summary | None:
    """The summary in the last line of what a collector has said; None where it is none."""
    lines = output.strip().splitlines()
    try:
        said = json.loads(lines[-1])
        return Summary(
            said["steps"], int(said["records"]), int(said["lost"]), said["recording"], said["recording_note"]
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None
