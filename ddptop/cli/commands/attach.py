"""`ddptop attach`: record a run that was started without ddptop, from one of its next steps on."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit, note
from ddptop.protocol.outlets import print_text

WAIT_S = 60.0
"""For every rank to come to a forward with gradients: an evaluation may be under way."""

BEGIN_S = 300.0
"""For the step at which they begin; they begin there also when this command has gone."""

AHEAD_S, AHEAD_STEPS = 1.0, 3
"""How far ahead the step is at which ranks begin, whichever is later: each must have read it before."""

FORWARDS = 3
"""Forwards of each rank, with different numbers of collectives, that are needed to compare the ranks and to
see how fast the numbers grow."""

SHOWN = 8
"""Processes whose place is shown where no step begins: the run may hang."""

JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""Environment variables that the ranks of a job have in common, and no other job of the host."""

_BODY = """
def main():
    import json, os
    folder = {folder!r}
    try:
        import ddptop
        if ddptop.__version__ != {version!r}:
            raise ImportError("ddptop " + ddptop.__version__ + " is installed there, this is {version}")
        from ddptop.training import attached
    except Exception as error:
        import sys
        why = str(error)
        if isinstance(error, ImportError) and error.name:
            why = sys.executable + " has no " + error.name + ": pip install ddptop there"
        path = os.path.join(folder, "rank-%d" % os.getpid())
        with open(path + ".new", "w") as file:
            file.write(json.dumps({{"state": "refused", "why": why}}))
        os.replace(path + ".new", path)
    else:
        attached.{function}(folder, {number!r})
main()
"""

Reports = dict[int, dict[str, Any]]
"""By process id: what each process has reported (`training/attached.py`)."""


def _parse_pid(word: str) -> int:
    if word.isdecimal():
        return int(word)
    raise argparse.ArgumentTypeError(f"{word!r} is no process id; give the number of a rank's process")


class Attach(Command):
    """Injects the recorder into running ranks, or takes it out again."""

    name = "attach"
    summary = "Record a training that already runs and was started without ddptop."
    details = (
        "It works on one host. You need gdb, ddptop in the ranks' Python, and permission to trace your own "
        "processes. gdb stops each rank for a moment; the weights stay the same to the bit. Do not kill gdb "
        "with SIGKILL in that moment: the rank would die too. Python 3.14 needs no gdb (sys.remote_exec)."
    )
    examples = ("ddptop attach", "ddptop attach 4711", "ddptop attach --detach 4711")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Process ids and `--detach`."""
        parser.add_argument(
            "pid",
            nargs="*",
            type=_parse_pid,
            help="process id of any rank, for its whole job (default: the only job on this host)",
        )
        parser.add_argument(
            "--detach", action="store_true", help="take the recorder out again; the training goes on"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Attach or detach; Ctrl-C before the ranks have begun calls it off."""
        from ddptop.host.inject import why_not

        # All processes are checked before any is stopped.
        pids = ranks_of(options.pid)
        for pid in pids:
            problem = why_not(pid)
            if problem:
                raise CliError(problem, Exit.REFUSED if "belongs to another" in problem else Exit.FAILED)
        with tempfile.TemporaryDirectory(prefix="ddptop-attach-") as folder:
            exchange = Exchange(Path(folder), pids)
            if options.detach:
                exchange.inject_call("end")
                # None of them had the recorder in it.
                if not any(report["was"] for report in exchange.wait_for_state("detached").values()):
                    raise CliError("these processes were not attached to")
                print_text(f"detached from {len(pids)} rank{'s' * (len(pids) != 1)}")
            else:
                print_text(f"recording {len(pids)} rank{'s' * (len(pids) != 1)}: {begin_recording(exchange)}")
        return Exit.DONE


def begin_recording(exchange: Exchange) -> str:
    """Have all ranks begin at one step. Returns the command that shows the run. Raises CliError."""
    try:
        exchange.inject_call("begin")
        but = "; nothing was recorded, training goes on as before"
        first_step = step_to_begin(exchange.wait_for_state("waiting", FORWARDS, but=but))
    # Also at Ctrl-C: ranks that wait for the word to begin are told that it will not come.
    except BaseException:
        exchange.announce_begin(-1)
        raise
    exchange.announce_begin(first_step)
    reports = exchange.wait_for_state("recording", wait_s=BEGIN_S)
    folder = Path(next(iter(reports.values()))["folder"])
    return f"ddptop {_run_name(folder)}".rstrip()


def _run_name(folder: Path) -> str:
    from ddptop.host.runs import read_run_file

    end = time.monotonic() + 10
    while time.monotonic() < end:
        run = read_run_file(folder)
        if run is not None:
            return run.name
        time.sleep(0.05)
    note(f"the collector has not started yet; its errors are in {folder / 'collector.log'}")
    return ""


class Exchange:
    """What this command and the ranks write for one another, in files of a folder."""

    def __init__(self, folder: Path, pids: Sequence[int]) -> None:
        self._folder = folder
        self._pids = pids
        # A number of its own: an earlier attach may have left its code in the same processes.
        self._number = secrets.token_hex(8)

    def inject_call(self, function: str) -> None:
        """Have each process call this function of `ddptop.training.attached`. Raises CliError."""
        from ddptop import __version__
        from ddptop.host.inject import InjectionError, inject_file

        file = self._folder / "injected.py"
        file.write_text(
            _BODY.format(
                folder=str(self._folder), version=__version__, function=function, number=self._number
            )
        )
        for pid in self._pids:
            try:
                inject_file(pid, file)
            except InjectionError as error:
                raise CliError(str(error), Exit.FAILED) from None

    def announce_begin(self, collectives: int) -> None:
        """Have the ranks begin at the first step with this number of collectives before it; -1: not at
        all."""
        new = self._folder / "go.new"
        new.write_text(str(collectives))
        new.replace(self._folder / "go")

    def wait_for_state(
        self, state: str, forwards: int = 0, wait_s: float | None = None, but: str = ""
    ) -> Reports:
        """Wait until all ranks report this state and at least `forwards` forwards. Raises CliError, after
        WAIT_S with the words of `but`."""
        wait_s = WAIT_S if wait_s is None else wait_s
        end = time.monotonic() + wait_s
        while True:
            reports = {pid: self._read_report(pid) for pid in self._pids}
            for pid, report in reports.items():
                # A refusal or an end first: waiting on would not change it.
                if report.get("state") == "refused":
                    raise CliError(f"process {pid}: {report['why']}")
                if not Path(f"/proc/{pid}").exists():
                    raise CliError(f"process {pid} has ended")
            late = [
                pid
                for pid, report in reports.items()
                if report.get("state") != state or len(report.get("forwards", ())) < forwards
            ]
            if not late:
                return reports
            if time.monotonic() > end:
                raise CliError(
                    f"process {late[0]} has begun no training step within {wait_s:g} s "
                    f"({reports[late[0]].get('state', 'its main thread runs no Python')}): "
                    f"{describe_calls(self._pids)}{but}"
                )
            time.sleep(0.02)

    def _read_report(self, pid: int) -> dict[str, Any]:
        try:
            report: dict[str, Any] = json.loads((self._folder / f"rank-{pid}").read_text())
        except FileNotFoundError:
            return {}
        return report


def describe_calls(pids: Sequence[int]) -> str:
    """Where the first SHOWN processes are in the user's own code, in a sentence: `process 4711 is in
    train.py:26 main, process 4712 is in train.py:9 tokenize`."""
    from ddptop.host.worker_calls import call_of

    calls = [(pid, call_of(pid)) for pid in pids[:SHOWN]]
    calls_read = [f"process {pid} is in {call}" for pid, call in calls if call]
    why = "py-spy may not, or finds no code of yours" if shutil.which("py-spy") else "pip install py-spy"
    return ", ".join(calls_read) or f"it cannot be read where they are ({why})"


def step_to_begin(reports: Reports) -> int:
    """The number of collectives before the step at which the ranks begin.

    Raises CliError where ranks are missing, or do not launch the same collectives before each step: their
    steps could not be paired.
    """
    ranks = sorted(report["rank"] for report in reports.values())
    world = next(iter(reports.values()))["world"]
    if ranks != list(range(world)):
        missing = sorted(set(range(world)) - set(ranks))
        raise CliError(
            f"{len(missing)} of {world} ranks were not found on this host (rank {missing[0]} first): "
            "attach needs them all. Start the run with ddptop-run, or name every process"
        )
    numbers = [[number for number, _ in report["forwards"]] for report in reports.values()]
    # Where the ranks overlap: each has seen forwards from another moment on.
    low, high = max(map(min, numbers)), min(map(max, numbers))
    common = [[number for number in rank_numbers if low <= number <= high] for rank_numbers in numbers]
    if any(rank_numbers != common[0] for rank_numbers in common):
        raise CliError(
            "the ranks do not launch the same collectives before each step: steps cannot be paired"
        )
    # The rank that is furthest: all others have yet to come to what it has passed.
    (first, began), (last, ended) = max(
        ((report["forwards"][0], report["forwards"][-1]) for report in reports.values()),
        key=lambda ends: ends[1][0],
    )
    steps = sorted(later - earlier for rank_numbers in numbers for earlier, later in pairwise(rank_numbers))
    a_second = (last - first) / max(ended - began, 1e-3) * AHEAD_S
    # Beyond the furthest rank by three of the longest steps, or by a second of them.
    return int(last + max(AHEAD_STEPS * steps[-1], ceil(a_second)))


MOST_SHOWN = 100
"""Characters of a command in the list of jobs."""


def ranks_of(pids: Sequence[int]) -> list[int]:
    """The processes of the job that `pids` are ranks of, or of the only job of this host. Raises CliError.

    Processes whose environment names no job (`mp.spawn`) are taken as they are.
    """
    ranks = dict(find_ranks())
    jobs = set(ranks.values())
    if not pids:
        if len(jobs) != 1:
            what = f"{len(jobs)} jobs run" if jobs else "no rank was found"
            # One rank of each job: that with the lowest PID.
            first = {ranks[pid]: pid for pid in sorted(ranks, reverse=True)}
            listed = "".join(f"\n  {pid}  {_command_of(pid)}" for pid in sorted(first.values()))
            raise CliError(f"{what} on this host: name a process (ddptop attach PID){listed}", Exit.USAGE)
        return sorted(ranks)
    named = {ranks[pid] for pid in pids if pid in ranks}
    # Not found by their environment, as ranks of mp.spawn.
    if not named:
        return sorted(set(pids))
    if len(named) > 1 or any(pid not in ranks for pid in pids):
        raise CliError("these processes are not ranks of one job", Exit.USAGE)
    return sorted(pid for pid, job in ranks.items() if job in named)


def _command_of(pid: int) -> str:
    """The script of a process with its arguments, in one line; empty where it has ended."""
    import psutil

    from ddptop.cli.launch_options import own_script

    with suppress(psutil.Error, OSError):
        words = " ".join(own_script(psutil.Process(pid).cmdline())).split()
        return " ".join(words)[:MOST_SHOWN]
    return ""


def find_ranks() -> Iterable[tuple[int, tuple[str, ...]]]:
    """Process id and job of each rank of this user. Workers of ranks are left out: they have the environment
    of their rank."""
    import psutil

    from ddptop.host.inject import why_not

    environments: dict[int, tuple[int, dict[str, str]]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            values = process.environ()
            # Asked last: it reads three files of each process.
            if "RANK" in values and "MASTER_PORT" in values and why_not(process.pid) is None:
                environments[process.pid] = process.ppid(), values
    for pid, (parent, values) in environments.items():
        of_parent = environments.get(parent, (0, {}))[1]
        if of_parent.get("RANK") != values["RANK"]:
            yield pid, tuple(values.get(name, "") for name in JOB)
