"""A run that is watched: its folder, its collector, the environment of its ranks, and what is said of it.

A run of several launchers, one per rank, as `srun ddptop-run --ddptop-exec python train.py` starts them.

The first of a host starts the collector, and says how to watch; the last to end has it end, and says what
there is. Nothing passes between them but locks (`transport.agents`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions, prepend_path
from ddptop.collector.supervisor import FINISH_S, CollectorSupervisor, Summary, summary_in
from ddptop.host import collector_start, processes
from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.host.processes import need_threads, process_start
from ddptop.host.runs import create_run_directory, read_run_file, remove_run_directory, write_command
from ddptop.recording.disk import numbered

INJECT = Path(__file__).parent.parent / "training" / "inject"


class WatchedRun:
    """One run from its first line on stderr to its last."""

    def __init__(
        self, name: str, directory: Path, supervisor: CollectorSupervisor, member: int | None
    ) -> None:
        self._name = name
        self._directory = directory
        self._supervisor = supervisor
        self._member = member

    @classmethod
    def begin(cls, options: LaunchOptions, name: str, script: Sequence[str]) -> WatchedRun:
        """Start the collector and prepare the ranks' environment. Leaves nothing where it raises."""
        need_threads()
        run_id = secrets.token_hex(6)
        with contextlib.ExitStack() as undo:
            directory = create_run_directory(run_id)
            undo.callback(remove_run_directory, directory)
            # While a collector that died is not replaced yet, no other run shall take the folder for stale.
            member = collector_start.join(directory)
            if member is not None:
                undo.callback(os.close, member)
            record = recording_path(options, name)
            arguments = collector_arguments(options, name, run_id, directory, record)
            write_command(directory, script, arguments=options.argv)
            supervisor = CollectorSupervisor(
                arguments, directory / "collector.log", lambda text: note(f"run {name}: {text}")
            )
            supervisor.start()
            undo.callback(supervisor.finish, 0)
            prepare_ranks(options, directory, run_id)
            undo.pop_all()
        note(f"run {name}: watch it with `ddptop {name}`")
        return cls(name, directory, supervisor, member)

    def note_exits(self, exits: Sequence[tuple[int, int]]) -> None:
        """Ranks have ended: pids, with exit codes as `subprocess` gives them. Never blocks or raises."""
        self._supervisor.tell_exits(exits)

    def end(self, exit_code: int) -> None:
        """Bring the recording to its end and say in one line what there is."""
        summary = self._supervisor.finish(exit_code)
        if self._member is not None:
            os.close(self._member)
        if summary is None:
            with contextlib.suppress(RunDirectoryError, OSError):
                remove_run_directory(self._directory)
            note(f"run {self._name}: its collector did not answer; the recording holds what reached the disk")
        else:
            note(f"run {self._name}: {in_words(summary, exit_code)}")


def prepare_ranks(options: LaunchOptions, directory: Path, run_id: str) -> None:
    """Set what ranks inherit from this process, so that they are recorded."""
    os.environ["DDPTOP_RUN_DIR"] = str(directory)
    os.environ["DDPTOP_RUN_ID"] = run_id
    os.environ["DDPTOP_BUDGET"] = str(options.budget)
    os.environ["DDPTOP_DETAIL"] = options.detail
    os.environ["DDPTOP_ARGV"] = "on" if options.argv else "off"
    os.environ["PYTHONPATH"] = prepend_path("PYTHONPATH", str(INJECT))


def in_words(summary: Summary, exit_code: int) -> str:
    """What the last line says of a run."""
    if summary.steps is None and not summary.records and not summary.lost:
        hint = "" if exit_code else " (is ddptop installed in the Python that trains?)"
        return f"no step of a DDP model was seen{hint}"
    words = [f"{summary.records:,} records" if summary.steps is None else f"{summary.steps + 1:,} steps"]
    if summary.recording:
        words.append(f"recorded in {summary.recording}")
    if summary.note:
        words.append(summary.note)
    if summary.lost:
        words.append(f"{summary.lost:,} records lost")
    return ", ".join(words)


def recording_path(options: LaunchOptions, name: str) -> str:
    """Where to record, or `off`; never a file that is there. Raises RunDirectoryError.

    In a folder that was asked for it is a file of the run's name.
    """
    if options.record == "off":
        return "off"
    wanted = state_directory() if options.record == "auto" else Path(options.record).absolute()
    if wanted.is_dir():
        wanted /= f"{name}.ddptop"
    elif wanted.exists() and not wanted.is_file():
        raise RunDirectoryError(f"{wanted} is no regular file")
    return str(next(path for path in numbered(wanted) if not os.path.lexists(path)))


def collector_arguments(
    options: LaunchOptions, name: str, run_id: str, directory: Path, record: str
) -> list[str]:
    """Words of the command line of `python -m ddptop.collector`.

    Nothing of the script's is in it: every user of the machine may read it.
    """
    named = {
        "--run-dir": str(directory),
        "--run-id": run_id,
        "--name": name,
        "--record": record,
        "--record-limit": str(options.record_limit),
        "--stall": str(options.stall),
    }
    if options.most_ranks is not None:
        named["--most-ranks"] = str(options.most_ranks)
    return [word for pair in named.items() for word in pair]


def one_of_many(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of the run that this launcher shares with others of its host; None where it has one alone."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or ""
    if "SLURM_PROCID" not in environment or not tasks.isdecimal() or int(tasks) < 2:
        return None
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if job and step:
        return collector_start.run_id_of("slurm", job, step, environment.get("SLURM_RESTART_COUNT", ""))
    parent = os.getppid()
    return collector_start.run_id_of("tasks", job, parent, process_start(parent))


class SharedRun:
    """This launcher's part in it."""

    def __init__(self, folder: Path, member: int | None, agent: int) -> None:
        self._folder = folder
        self._member = member
        self._agent = agent

    @classmethod
    def begin(cls, run_id: str, options: LaunchOptions, name: str, script: Sequence[str]) -> SharedRun:
        """Join the run, or begin it, and prepare this rank's environment. Leaves the run where it raises."""
        with contextlib.ExitStack() as undo:
            folder = collector_start.folder_of(run_id)
            member = collector_start.join(folder)
            if member is not None:
                undo.callback(os.close, member)
            agent = collector_start.watch_agent(folder)
            undo.callback(os.close, agent)
            write_command(folder, script, arguments=options.argv)
            command = [sys.executable, "-m", "ddptop.cli.agent", str(folder), run_id, "0:0"]
            begun = collector_start.start(
                folder, command, processes.environment() | options.as_environment(name)
            )
            prepare_ranks(options, folder, run_id)
            os.environ["DDPTOP_AGENT"] = "0:0"  # the ranks see to it that the collector is there
            undo.pop_all()
        if begun:
            note(f"run {name}: watch it with `ddptop {name}`")
        return cls(folder, member, agent)

    def end(self, exit_code: int) -> None:
        """Leave the run; as the last, wait a moment for its recording and say what there is."""
        if self._member is None:
            return
        last = collector_start.is_last(self._member)
        run = read_run_file(self._folder) if last else None
        if last:
            collector_start.have_it_end(self._member)
        os.close(self._member)
        if run is not None:
            said = collector_start.said_by(self._agent, FINISH_S)
            summary = None if said is None else summary_in(said.decode())
            if summary is not None:
                note(f"run {run.name}: {in_words(summary, exit_code)}")
        with contextlib.suppress(OSError):
            os.close(self._agent)
