"""The launcher's side of the collector: start it, restart it when it dies, end it, read its summary.

On a host whose ranks are recorded elsewhere, the same with the host's agent.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddptop.host import processes
from ddptop.host.exits import signal_name
from ddptop.host.folders import RunDirectoryError
from ddptop.host.runs import ensure_run_directory
from ddptop.protocol.texts import printable

RESTART_AFTER_S = 0.2
MOST_PAUSE_S = 30.0
"""Longest pause before a collector that died is restarted; each pause is twice the one before. A crash loop
must not use up a core, and ranks keep their records for minutes."""

STEADY_S = 10.0
"""If a collector has run this long, the pause before it is restarted is the shortest again."""

MAX_SHORT_LIVED = 4
"""How many collectors in a row may die within STEADY_S before a person is notified."""

LOG_END_BYTES = 2048
"""Bytes that are read of the log of a process that keeps ending: its last line is shown."""

EXITS_A_LINE = 50
"""Exits in one line: 50 stay below what a pipe and its reader take at once."""

FINISH_S = 6.0
"""How long the end of a run waits for the last records: the collector itself waits 2 s for its ranks."""

EXIT_S = 1.0
"""How long the end of a run over several hosts waits: a process of ours that needs longer is left to
itself."""

RESTARTED_FINISH_S = 20.0
"""As FINISH_S, for a collector that is started for the end alone. It only reads the recording, which takes
a second with its start; on a machine under load, where the one before did not answer either, longer."""


POLL_S = 0.01


@dataclass(frozen=True)
class RunSummary:
    """What the collector reports at its end; None: not reported."""

    steps: int | None
    records: int
    lost: int
    """As in the recording. An agent, which has none of the whole run, does not say it: 0."""
    recording: str | None
    note: str | None
    reached: str = ""
    """How far the ranks have come that reported, where none has made a step; empty: none has reported."""
    missing: tuple[str, ...] = ()
    """Hosts that had not reported their end: the collector goes on to receive from them by itself."""
    failure: str = ""
    """The rank that failed first, as the screen says it; empty: none has."""


class CollectorSupervisor:
    """One collector, or agent, of one run. Nothing here may fail in a way that reaches the training."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        notify: Callable[[str], None] = lambda text: None,
        *,
        module: str = "ddptop.collector",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`arguments` are those of `python -m MODULE`; its stderr goes to the file `log`.

        `variables` are added to its environment. `notify` gets, from a thread, what a person should know
        at once: each kind of notice once.
        """
        self.command = [sys.executable, "-m", module, *arguments]
        """Command of the next process that is started."""
        self._goes_on_always = module != "ddptop.collector"
        """An agent goes on after its summary, until the collector has everything."""
        self._variables = dict(variables or {})
        self._log = log
        self._notify = notify
        self._notified: set[str] = set()
        self._last_line = ""
        self._goes_on = threading.Event()
        """The process has not ended, and is to end without its launcher: mostly it has sent its summary."""
        self._exits: list[bytes] = []
        self.process: subprocess.Popen[str] | None = None
        """The one that was started last; None: there is none."""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch_process, name="ddptop-supervisor", daemon=True)

    def start_process(self) -> None:
        """Start the collector and the thread that starts it again.

        Raises:
            OSError: where no process can be started.
            RuntimeError: where no thread can be started.
        """
        self.process = self._spawn_process()
        try:
            self._thread.start()
        except RuntimeError:
            # Without the thread nobody would read its pipe or start it again.
            self.process.kill()
            self.process.communicate()
            raise

    @property
    def pid(self) -> int:
        """The pid of the collector that was started last; 0: none was."""
        return 0 if self.process is None else self.process.pid

    def report_exits(self, exits: Sequence[tuple[int, int]]) -> None:
        """Processes have exited: pids, with exit codes as `subprocess` gives them. Never blocks or raises."""
        with self._lock:
            for first in range(0, len(exits), EXITS_A_LINE):
                part = exits[first : first + EXITS_A_LINE]
                line = json.dumps({"exits": [{"pid": pid, "exit_code": code} for pid, code in part]}) + "\n"
                # All are kept: a collector that is started again has not seen the earlier ones.
                self._exits.append(line.encode())
                self._write_lines(self._exits[-1:])

    def finish_run(self, exit_code: int, *, most_s: float | None = None) -> RunSummary | None:
        """Report the end of the run to the collector; None if it did not answer in time (it is killed).

        Where it has died, or dies now, another one is started to count what is missing. One that still
        receives from other hosts goes on by itself, and ends within half a minute. With `most_s`, one that
        has not answered by then is not killed, and goes on likewise (`goes_on`).
        """
        # First, so that the thread does not start another one.
        self._ending.set()
        end_s = None if most_s is None else time.monotonic() + most_s
        with self._lock:
            process = self.process
        if process is not None:
            _end_process(process, exit_code, self._goes_on, FINISH_S, end_s)
        if not self._goes_on.is_set():
            # The thread has to read the last lines, which have the summary.
            self._thread.join(1.0)
            if process is not None and not self._thread.is_alive():  # it reads one of them
                _close_pipes(process)
        summary = summary_in(self._last_line)
        if summary is not None or self._goes_on.is_set():
            return summary
        return self._finish_restarted(exit_code, end_s)

    @property
    def goes_on(self) -> bool:
        """Whether the process goes on without its launcher."""
        return self._goes_on.is_set()

    def _finish_restarted(self, exit_code: int, end_s: float | None) -> RunSummary | None:
        # Only the summary is of interest now: notices would come after the line about the end.
        process, self._notify = None, lambda text: None
        try:
            with self._lock:
                process = self.process = self._spawn_process()
                self._write_lines(self._exits)
            reader = threading.Thread(target=self._read_output, args=(process,), daemon=True)
            reader.start()
            # It has read the recording of the one before: only it can count what is missing.
            _end_process(process, exit_code, self._goes_on, RESTARTED_FINISH_S, end_s)
            if not self._goes_on.is_set():
                reader.join(1.0)
            summary = summary_in(self._last_line)
            # A collector without any record cannot know whether some are lost: the other may have had all.
            return summary if summary is not None and (summary.records or summary.lost) else None
        except (OSError, RuntimeError, ValueError):
            return None
        finally:
            if process is not None and not self._goes_on.is_set():
                process.kill()
                process.wait()
                _close_pipes(process)

    def _write_lines(self, lines: Sequence[bytes]) -> None:
        process = self.process
        if process is not None and process.stdin is not None:
            for line in lines:
                _write_if_room(process.stdin, line)

    def _spawn_process(self) -> subprocess.Popen[str]:
        with contextlib.ExitStack() as stack:
            log: IO[bytes] | int = subprocess.DEVNULL
            with contextlib.suppress(OSError, RunDirectoryError):  # there is a recording without a log, too
                # The folder may have been removed, as by a cleaner of /tmp.
                ensure_run_directory(self._log.parent)
                log = stack.enter_context(self._log.open("ab"))
            return subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the training, not for its recorder
                env=processes.child_environment() | self._variables,
            )

    def _watch_process(self) -> None:
        """Read what the collector sends; restart it whenever it dies, until the run ends."""
        pause_s, deaths = RESTART_AFTER_S, 0
        while True:
            began_s = time.monotonic()
            if self.process is not None:
                self._read_output(self.process)
            if time.monotonic() - began_s >= STEADY_S:
                pause_s, deaths = RESTART_AFTER_S, 0
            deaths += 1
            if deaths == MAX_SHORT_LIVED and not self._ending.is_set():
                what = "agent" if self._goes_on_always else "collector"
                self._pass_on(
                    "restarts", f"its {what} keeps ending ({self._why_ended()}); it is started again"
                )
            # The pause ends at once with the run: it may be MOST_PAUSE_S long.
            if self._ending.wait(pause_s):
                return
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)
            with self._lock:
                # Once more under the lock: `finish_run` may have set it since.
                if self._ending.is_set():
                    return
                if self.process is not None:
                    _close_pipes(self.process)
                try:
                    self.process = self._spawn_process()
                    # All exits once more: the process before may have died before it recorded them.
                    self._write_lines(self._exits)
                except OSError:  # no process can be started just now
                    self.process = None

    def _read_output(self, process: subprocess.Popen[str]) -> None:
        """Read the process's lines until it ends: notices for a person, and the summary at the end."""
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in process.stdout:
                # The last line is the summary, if it ends well.
                self._last_line = line
                summary = summary_in(line)
                if summary is not None and (summary.missing or self._goes_on_always):
                    self._goes_on.set()
                notice = _notice_in(line)
                if notice is not None:
                    self._pass_on(*notice)
        process.wait()

    def _why_ended(self) -> str:
        """Why the last process has ended, in a few words; its log is removed with the run's folder."""
        code = None if self.process is None else self.process.returncode
        if code is not None and code < 0:
            return f"killed by {signal_name(-code)}"
        lines: list[str] = []
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            # The end only: a log may be long.
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_END_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        last_line = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
        return printable(last_line.strip())

    def _pass_on(self, kind: str, text: str) -> None:
        if kind not in self._notified:
            self._notified.add(kind)
            self._notify(text)


def _end_process(
    process: subprocess.Popen[str],
    exit_code: int,
    goes_on: threading.Event,
    patience_s: float,
    leave_s: float | None,
) -> None:
    """Report the end of the run and wait for the process to end; it is killed when that takes too long.

    It is not waited for any more once it `goes_on` by itself, as it does from the time `leave_s`.
    """
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.write(json.dumps({"exit_code": exit_code}) + "\n")
            process.stdin.close()
    end = time.monotonic() + patience_s
    # Polled: a process that goes on is no reason to wait, and one that hangs is killed.
    while process.poll() is None and not goes_on.wait(POLL_S):
        if leave_s is not None and time.monotonic() > leave_s:
            goes_on.set()
        elif time.monotonic() > end:
            process.kill()
            process.wait()


def _notice_in(line: str) -> tuple[str, str] | None:
    try:
        fields = json.loads(line)
        return str(fields["news"]), str(fields["text"])
    except (KeyError, TypeError, ValueError):
        return None


def _write_if_room(pipe: IO[str], line: bytes) -> None:
    """Write a line if the pipe has room: a collector that is stopped does not read it.

    A pipe that is ready takes at least PIPE_BUF bytes, so the line is written whole.
    """
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
            except OSError:  # unflushed data for a dead process
                continue


def summary_in(output: str) -> RunSummary | None:
    """The summary in the last line of a collector's output; None where there is none."""
    lines = output.strip().splitlines()
    try:
        fields = json.loads(lines[-1])
        return RunSummary(
            fields["steps"],
            int(fields["records"]),
            int(fields.get("lost", 0)),
            fields["recording"],
            fields["recording_note"],
            str(fields.get("reached", "")),
            tuple(map(str, fields.get("missing", ()))),
            str(fields.get("failure", "")),
        )
    except (IndexError, KeyError, TypeError, ValueError):
        return None
