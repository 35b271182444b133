"""A run that is watched: its folder, its collector, the environment of its ranks, and what is said of it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions, prepend_path
from ddptop.collector.supervisor import CollectorSupervisor, Summary
from ddptop.recording.disk import numbered
from ddptop.transport import agents
from ddptop.transport.discovery import write_command
from ddptop.transport.processes import need_threads
from ddptop.transport.rundir import (
    RunDirectoryError,
    create_run_directory,
    remove_run_directory,
    state_directory,
)

INJECT = Path(__file__).parent.parent / "runtime" / "inject"


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
            member = agents.join(directory)
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
