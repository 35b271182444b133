"""What the launcher sends its collector or agent: arguments, then through a pipe how ranks and the run ended.

A run may have no launcher of ours, or one that was killed: then it ends when its ranks do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ddptop.host.collector_address import read_role
from ddptop.host.collector_start import end_requested, has_members
from ddptop.host.processes import process_start
from ddptop.host.runs import read_command
from ddptop.protocol.limits import (
    DEFAULT_RECORD_LIMIT_BYTES,
    DEFAULT_STALL_S,
    MAX_CARD,
    MAX_TEXT,
    NS,
    VERSION,
)
from ddptop.protocol.messages import Run

if TYPE_CHECKING:
    import zmq

    from ddptop.host.rank_processes import ProcessWatch
    from ddptop.protocol.vocabulary import RunOutcome


def _path_or_off(text: str) -> Path | None:
    return None if text == "off" else Path(text)


def _positive_number(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return number


def _pid_and_start(text: str) -> tuple[int, int]:
    pid, _, start = text.partition(":")
    return int(pid), int(start)


def _declare_argument(option: str, parse: Callable[[str], Any] | None, default: Any = MISSING) -> Any:
    """A field that an option gives. `parse`: from its text to the value; None: it is a switch. Without a
    default the option must be given."""
    return field(default=default, metadata={"option": option, "parse": parse})


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of `python -m ddptop.collector`, and the same of `python -m ddptop.agent`.

    Each is declared here and nowhere else: the parser follows from the fields."""

    run_dir: Path = _declare_argument("--run-dir", Path)  # noqa: RUF009 - a field
    """The run's folder, as `create_run_directory` made it."""
    run_id: str = _declare_argument("--run-id", str)
    name: str = _declare_argument("--name", str)
    record: Path | None = _declare_argument("--record", _path_or_off)  # noqa: RUF009
    """None: no recording."""
    record_limit: int = _declare_argument("--record-limit", _positive_number, DEFAULT_RECORD_LIMIT_BYTES)
    """Bytes after which the recording thins itself."""
    stall_s: float = _declare_argument("--stall", float, DEFAULT_STALL_S)
    """Least time without a step that counts as a stall."""
    script: str = _declare_argument("--script", str, "")
    argv: tuple[str, ...] = ()
    """Script and arguments, without secrets, from a file in the run's folder."""
    simulated: bool = _declare_argument("--simulated", None, False)
    """The ranks are simulated: their pids mean nothing."""
    most_ranks: int | None = _declare_argument("--most-ranks", _positive_number, None)
    """Number of ranks that the launcher starts; None: not known."""
    alone: tuple[int, int] | None = _declare_argument("--alone", _pid_and_start, None)
    """For a run without a launcher of ours: pid and start of its launcher, or zeros
    (`RunWithoutLauncher`)."""
    listen: str | None = _declare_argument("--listen", str, None)
    """HOST:PORT where the collector lets viewers in over TCP; None: nowhere."""
    serve: str | None = _declare_argument("--serve", str, None)
    """HOST:PORT where the collector receives the agents of other hosts; port 0: any free one. None: all
    ranks are on this host."""

    @property
    def launcher_pid(self) -> int:
        """The process from which the ranks descend. If it is a launcher of ours, it has started this process,
        too."""
        return os.getppid() if self.alone is None else self.alone[0]

    def make_run(self, state: RunOutcome, started_at: float, now_ns: int, exit_code: int | None) -> Run:
        """RUN of this run, which began at `started_at` in Unix seconds."""
        unix_ns = int(started_at * NS)
        return Run(
            version=VERSION,
            run_id=self.run_id,
            name=self.name[:MAX_TEXT],
            script=self.script[:MAX_TEXT],
            argv=tuple(word[:MAX_TEXT] for word in self.argv[:MAX_CARD]),
            unix_ns=unix_ns,
            # When the run began on CLOCK_MONOTONIC, which cannot be read of the past.
            monotonic_ns=max(0, now_ns - (time.time_ns() - unix_ns)),
            state=state,
            exit_code=exit_code,
            simulated=self.simulated,
        )

    def is_to_serve(self) -> bool:
        """Whether ranks of other hosts have joined since, which the collector is to receive."""
        return self.alone is not None and self.serve is None and bool(read_role(self.run_dir))


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Arguments from a command line; argparse ends the process with code 2 where they are wrong."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for argument in fields(Arguments):
        if "option" not in argument.metadata:
            continue
        option, parse = argument.metadata["option"], argument.metadata["parse"]
        if parse is None:
            parser.add_argument(option, dest=argument.name, action="store_true")
            continue
        required = argument.default is MISSING
        default = None if required else argument.default
        parser.add_argument(option, dest=argument.name, type=parse, default=default, required=required)
    parsed = vars(parser.parse_args(argv))
    command = read_command(parsed["run_dir"])
    parsed["script"] = parsed["script"] or "".join(command[:1])
    return Arguments(**parsed, argv=command)


LINGER_NS = 3_000_000_000
"""How long the run goes on after its last member: a rank started by hand may be late, or restarted."""


class Linger:
    """Decides that a run has ended once none of its processes runs any more."""

    def __init__(self) -> None:
        self._left_ns: int | None = None

    def is_over(self, present: bool, now_ns: int, linger_ns: int) -> bool:
        """Whether no process has been `present` for `linger_ns`."""
        if present:
            self._left_ns = None
            return False
        self._left_ns = now_ns if self._left_ns is None else self._left_ns
        return now_ns - self._left_ns >= linger_ns


def ranks_started(run_id: str) -> list[tuple[int, int]]:
    """Pid and start of the ranks of a run that torchrun has started on this host, reported or not.

    They have the run's id in their environment, and a session of their own, which no child of theirs has.
    """
    ranks = []
    for process in psutil.process_iter():
        # A process may end, or be another user's, while it is looked at.
        with suppress(psutil.Error, OSError):
            # torchrun starts each rank as leader of a session; children of ranks have the variables too.
            if os.getsid(process.pid) == process.pid:
                variables = process.environ()
                if variables.get("DDPTOP_RUN_ID") == run_id and "LOCAL_RANK" in variables:
                    ranks.append((process.pid, process_start(process.pid) or 0))
    return ranks


class RunWithoutLauncher:
    """The end of a run without a launcher of ours: when its ranks, and what may restart them, are gone."""

    def __init__(self, folder: Path, launcher: tuple[int, int], ranks_well: Callable[[], bool]) -> None:
        """`launcher`: pid and start of the process that may start ranks again (torchrun), or zeros.

        `ranks_well`: whether all ranks have exited without failure.
        """
        self._folder = folder
        self._launcher = launcher
        self._ranks_well = ranks_well
        self._linger = Linger()
        # A pipe with nobody to write: pollers need a descriptor for every source.
        self.descriptor, self._silent = os.pipe()
        """For a poller; never readable."""
        self.ended = False
        self.killed = False
        """Always False: the launcher is none of ours."""
        self.exit_code: int | None = None
        """Always None: no launcher reports it."""

    @property
    def ended_well(self) -> bool:
        """Whether the run has ended without failure."""
        return self._ranks_well()

    def check_end(self, now_ns: int) -> None:
        """Check whether the run has ended; to be called once a second."""
        pid, start = self._launcher
        # A pid alone may be another process by now; with its start it is the same one.
        present = has_members(self._folder) or (pid > 0 and process_start(pid) == start)
        self.ended = self._linger.is_over(
            # Where the launcher itself is watched, or the end is requested, nobody is waited for who may be
            # late.
            present,
            now_ns,
            0 if pid or end_requested(self._folder) else LINGER_NS,
        )

    def read_lines(self) -> None:
        """There is nothing to read."""

    def take_exits(self) -> list[tuple[int, int]]:
        """None: no launcher reports them."""
        return []

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        os.close(self._silent)


MAX_LINE_BYTES = 4096


class LauncherPipe:
    """Standard input, read without blocking: JSON lines, or its end when the launcher was killed.

    `{"exits": [{"pid": P, "exit_code": N}]}`: processes that the launcher started have exited.
    `{"exit_code": N}`: the run has ended. A killed launcher leaves its ranks running, as torchrun does: then
    the run ends with them.
    """

    def __init__(
        self,
        run_id: str,
        ranks_present: Callable[[], bool],
        ranks_well: Callable[[], bool],
        descriptor: int = 0,
    ) -> None:
        """`ranks_present`: whether ranks that have reported run on this host; `ranks_well`: whether all have
        exited without failure."""
        self._run_id = run_id
        self.descriptor = descriptor
        self.ended = False
        """The run has ended, and the collector is to end."""
        self.killed = False
        """The launcher has exited without reporting how the run ended."""
        self._left_behind: list[tuple[int, int]] = []
        """Pid and start of the ranks that a killed launcher has left, reported or not."""
        self._ranks_present = ranks_present
        self._ranks_well = ranks_well
        self._linger = Linger()
        self.exit_code: int | None = None
        """Exit code of the run; None: not reported."""
        self._data = b""
        self._exits: list[tuple[int, int]] = []
        # The loop must not wait for a launcher that has nothing to say.
        os.set_blocking(descriptor, False)

    @property
    def ended_well(self) -> bool:
        """Whether the run has ended without failure."""
        return self._ranks_well() if self.exit_code is None else self.exit_code == 0

    def check_end(self, now_ns: int) -> None:
        """Where the launcher was killed, check whether the run has ended; to be called once a second."""
        if self.killed:
            present = self._ranks_present() or any(
                process_start(pid) == start for pid, start in self._left_behind
            )
            self.ended = self._linger.is_over(present, now_ns, LINGER_NS)

    def close(self) -> None:
        """Standard input stays open."""

    def read_lines(self) -> None:
        """Read what has arrived. Unknown lines are ignored."""
        try:
            data = os.read(self.descriptor, MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # The end of the pipe without a report: the launcher was killed, and its ranks may run on.
        self.killed = not data and not self.ended
        *lines, self._data = (self._data + data).split(b"\n")
        # A line without an end must not grow in memory.
        self._data = self._data[-MAX_LINE_BYTES:]
        for line in lines:
            self._parse_line(line)
        if self.killed:
            self._left_behind = ranks_started(self._run_id)

    def take_exits(self) -> list[tuple[int, int]]:
        """Processes that have exited since the last call: pid, and exit code or -signal."""
        exits, self._exits = self._exits, []
        return exits

    def _parse_line(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
        except ValueError:
            return
        if not isinstance(fields, dict):
            return
        code = _exit_code_in(fields.get("exit_code"))
        if code is not None:
            self.exit_code = code
            self.ended = True
        exits = fields.get("exits")
        for entry in exits if isinstance(exits, list) else ():
            # Whatever the pipe holds: a wrong line costs itself, not the run.
            pid, code = (
                (entry.get("pid"), _exit_code_in(entry.get("exit_code")))
                if isinstance(entry, dict)
                else (None, None)
            )
            if type(pid) is int and pid > 0 and code is not None:
                self._exits.append((pid, code))


def open_launcher(
    arguments: Arguments, ranks_present: Callable[[], bool], ranks_well: Callable[[], bool]
) -> LauncherPipe | RunWithoutLauncher:
    """What says when the run ends: its launcher, or its processes where it has no launcher of ours."""
    if arguments.alone is None:
        return LauncherPipe(arguments.run_id, ranks_present, ranks_well)
    return RunWithoutLauncher(arguments.run_dir, arguments.alone, ranks_well)


def read_launcher(
    launcher: LauncherPipe | RunWithoutLauncher, watch: ProcessWatch, poller: zmq.Poller, now_ns: int
) -> None:
    """Read what the launcher has sent, and note the exits that it reports."""
    launcher.read_lines()
    for pid, code in launcher.take_exits():
        watch.note_exit_code(pid, code, now_ns)
    # A pipe at its end is readable for ever: polling would not sleep any more.
    if launcher.ended or launcher.killed:
        poller.unregister(launcher.descriptor)


def _exit_code_in(value: object) -> int | None:
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def send_line(line: Mapping[str, object]) -> None:
    """Send one JSON line to the launcher, which may be gone. In one piece: another thread may send too."""
    try:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    except OSError:
        # The interpreter would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
