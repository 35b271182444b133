"""A run as its launcher manages it: run folder, collector, environment of the ranks, first and last line.

`WatchedRun` is the run of one launcher. `SharedRun` is the run of several, one per rank, as `srun ddptop-run
--ddptop-exec python train.py` starts them: the first one of a host starts the collector and prints how to
watch; the last one to exit ends it and prints the summary. They communicate by locks alone
(`ddptop.host.collector_start`).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions, prepend_path
from ddptop.collector.supervisor import EXIT_S, FINISH_S, CollectorSupervisor, RunSummary, summary_in
from ddptop.frames.numbers import counted
from ddptop.host import collector_start, processes
from ddptop.host.collector_address import CollectorAddress, read_address, read_role
from ddptop.host.end_notices import give_notice
from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.host.job_environment import spans_hosts
from ddptop.host.launcher_signal import note_launcher_failure, note_launcher_signal
from ddptop.host.processes import need_threads
from ddptop.host.runs import create_run_directory, read_run_file, remove_run_directory, write_command
from ddptop.recording.disk import numbered_paths

INJECT = Path(__file__).parent.parent / "training" / "inject"


class WatchedRun:
    """The run of this launcher, from its first line on stderr to its last."""

    def __init__(
        self, name: str, directory: Path, supervisor: CollectorSupervisor, member: int | None
    ) -> None:
        self._name = name
        self._directory = directory
        self._supervisor = supervisor
        self._member = member

    @classmethod
    def begin_run(cls, options: LaunchOptions, name: str, script: Sequence[str]) -> WatchedRun:
        """Start the collector and set the ranks' environment. Where it raises, everything is undone."""
        with new_run_folder(script, arguments=options.argv) as (run_id, directory, member, undo):
            record = recording_path(options, name)
            arguments = collector_arguments(options, name, run_id, directory, record)
            log, variables = directory / "collector.log", options.variables_for("collector in secret")
            supervisor = CollectorSupervisor(
                arguments, log, lambda text: note(f"run {name}: {text}"), variables=variables
            )
            supervisor.start_process()
            # If what follows fails, the collector ends as after a run.
            undo.callback(supervisor.finish_run, 0)
            prepare_ranks(options, directory, run_id)
        note(f"run {name}: {how_to_watch(name, listen=options.listen)}")
        return cls(name, directory, supervisor, member)

    def note_signal(self, number: int) -> None:
        """Note that this launcher has received a signal that ends the run. Never raises."""
        note_launcher_signal(self._directory, number)

    def prepare_end(self) -> None:
        """Have ranks, which are ended in a moment, send what they have. Takes 50 ms at most; never raises."""
        give_notice(self._directory)

    def note_exits(self, exits: Sequence[tuple[int, int]]) -> None:
        """Note that ranks have ended: pids, with exit codes as `subprocess` gives them. Never blocks or
        raises."""
        self._supervisor.report_exits(exits)

    def end_run(self, exit_code: int) -> None:
        """End the recording and print the summary in one line."""
        summary = self._supervisor.finish_run(exit_code)
        # Only now: while it is held nobody takes the folder for stale.
        if self._member is not None:
            os.close(self._member)
        if summary is None:
            # Nothing answers for it any more.
            with contextlib.suppress(RunDirectoryError, OSError):
                remove_run_directory(self._directory)
            note(f"run {self._name}: its collector did not answer; the recording holds what reached the disk")
        else:
            note(f"run {self._name}: {describe_summary(summary, exit_code)}")


@contextlib.contextmanager
def new_run_folder(
    script: Sequence[str], *, arguments: bool
) -> Iterator[tuple[str, Path, int | None, contextlib.ExitStack]]:
    """Make the folder of a new run; yields the run's id, the folder, this launcher's lock in it, and a stack.

    Where the block raises, all is undone, with what the block has put on the stack. `arguments`: as in
    `write_command`.
    """
    # Before anything is made: a run that cannot have its threads is not recorded.
    need_threads()
    run_id = secrets.token_hex(6)
    with contextlib.ExitStack() as undo:
        directory = create_run_directory(run_id)
        undo.callback(remove_run_directory, directory)
        # While no process of ours serves the folder, no other run may take it for stale.
        member = collector_start.become_member(directory)
        if member is not None:
            undo.callback(os.close, member)
        write_command(directory, script, arguments=arguments)
        yield run_id, directory, member, undo
        # All went well: what would be undone stays.
        undo.pop_all()


def prepare_ranks(options: LaunchOptions, directory: Path, run_id: str) -> None:
    """Set the variables by which ranks, which inherit them, are recorded."""
    os.environ["DDPTOP_RUN_DIR"] = str(directory)
    os.environ["DDPTOP_RUN_ID"] = run_id
    os.environ.update(options.variables_for("ranks"))
    # In front: the rank's interpreter takes the first `sitecustomize` that it finds.
    os.environ["PYTHONPATH"] = prepend_path("PYTHONPATH", str(INJECT))


def how_to_watch(name: str, host: str | None = None, *, here: bool = True, listen: str | None = None) -> str:
    """The command to type on the collector's host (`here`), and the one to paste elsewhere.

    `host`: the name of the collector's host, where the run may be watched from another one. `listen`: where
    viewers are let in over TCP.
    """
    commands = [f"watch it with `ddptop {name}`"] if here else []
    job = os.environ.get("SLURM_JOB_ID", "")
    # A job of Slurm is reached by its number from any node.
    target = f"slurm:{job}" if job.isdecimal() else host and f"{_user_prefix()}{host}/{name}"
    if target:
        commands.append(f"{'from elsewhere' if here else 'watch it'} with `ddptop --connect {target}`")
    if listen is not None:
        address, _, port = listen.rpartition(":")
        # These mean all addresses, of which none can be typed elsewhere.
        reached = socket.gethostname() if address in ("0.0.0.0", "[::]", "*") else address
        commands.append(f"with a key over TCP with `ddptop --connect {reached}:{port} --key FILE`")
    return ", ".join(commands)


def where_recorded(address: CollectorAddress) -> str:
    """Where the run is recorded, in a sentence for the hosts that the collector is not on."""
    return f"recorded on {address.host}, {how_to_watch(address.name, address.host, here=False)}"


def _user_prefix() -> str:
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a container may have no name for its user
        return ""


def describe_summary(summary: RunSummary, exit_code: int) -> str:
    """The last line about a run."""
    if summary.steps is None and not summary.records and not summary.lost:
        if summary.reached:
            return f"no training step was seen: {summary.reached}"
        hint = "" if exit_code else " (no torch imported, or no ddptop in the Python that trains)"
        if os.environ.get("DDPTOP") == "0":
            hint = " (DDPTOP=0 turns the recorder off)"
        return f"no training step was seen{hint}"
    parts = [
        counted(summary.records, "record") if summary.steps is None else counted(summary.steps + 1, "step")
    ]
    if summary.recording:
        parts.append(f"recorded in {summary.recording}")
    if summary.note:
        # The run is over: nothing goes on any more.
        parts.append(summary.note.removeprefix("recording goes on: "))
    if summary.lost:
        parts.append(f"{counted(summary.lost, 'record')} missing")
    failure = f"{summary.failure}; " if summary.failure else ""
    return failure + ", ".join(parts)


def recording_path(options: LaunchOptions, name: str) -> str:
    """Where to record, or `off`; never an existing file. Raises RunDirectoryError.

    In a folder it is a file of the run's name. Where no path is given and there can be no folder of
    recordings, as in a container with a read-only home, the run is watched and not recorded.
    """
    if options.record == "off":
        return "off"
    try:
        path = state_directory() if options.record == "auto" else Path(options.record)
    except RunDirectoryError as error:
        note(f"run {name}: not recorded: {error}; --ddptop-record PATH records elsewhere")
        return "off"
    if path.is_dir() or options.record.endswith(os.sep):  # the writer makes what is missing
        path /= f"{name}.ddptop"
    elif path.exists() and not path.is_file():
        raise RunDirectoryError(f"{path} is no regular file")
    # `lexists`: a link that leads nowhere is something, too.
    return str(next(path for path in numbered_paths(path) if not os.path.lexists(path)))


def collector_arguments(
    options: LaunchOptions, name: str, run_id: str, directory: Path, record: str
) -> list[str]:
    """The arguments of `python -m ddptop.collector`.

    They hold nothing of the script's: every user of the machine can read them.
    """
    named = {
        "--run-dir": str(directory),
        "--run-id": run_id,
        "--name": name,
        "--record": record,
        **options.collector_arguments,
    }
    if options.most_ranks is not None:
        named["--most-ranks"] = str(options.most_ranks)
    return [part for pair in named.items() for part in pair]


class Announcement:
    """The line that says how to watch a run over several hosts, once it is known where it is recorded."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        self._ending = threading.Event()
        self._thread = threading.Thread(
            target=self._wait_for_address, name="ddptop-announcement", daemon=True
        )
        self._thread.start()

    def stop_waiting(self) -> None:
        """End the thread that waits: there is no more to wait for."""
        self._ending.set()
        self._thread.join(1.0)

    def _wait_for_address(self) -> None:
        while not self._ending.wait(0.2):
            if read_role(self._folder):
                note(f"run {self._name}: {how_to_watch(self._name, socket.gethostname())}")
                return
            address = read_address(self._folder)
            if address is not None:
                note(f"run {address.name}: {where_recorded(address)}")
                return


class SharedRun:
    """This launcher's part in a run of several launchers."""

    def __init__(
        self, folder: Path, member: int | None, agent: int, announcement: Announcement | None
    ) -> None:
        self._folder = folder
        self._member = member
        self._agent = agent
        self._announcement = announcement

    @classmethod
    def begin_run(cls, run_id: str, options: LaunchOptions, name: str, script: Sequence[str]) -> SharedRun:
        """Join the run, or begin it, and set this rank's environment. Where it raises, that is undone."""
        with contextlib.ExitStack() as undo:
            folder = collector_start.folder_of(run_id)
            member = collector_start.become_member(folder)
            if member is not None:
                undo.callback(os.close, member)
            agent = collector_start.open_agent_lock(folder)
            undo.callback(os.close, agent)
            # Each launcher writes the same: they run the same script.
            write_command(folder, script, arguments=options.argv)
            several = options.hosts == "auto" and spans_hosts(os.environ.get("MASTER_ADDR"))
            command = [sys.executable, "-m", "ddptop.cli.agent", str(folder), run_id, "0:0"]
            command += ["--several-hosts"] if several else []
            begun = collector_start.start_collector(
                folder, command, processes.child_environment() | options.as_environment(name)
            )
            prepare_ranks(options, folder, run_id)
            os.environ["DDPTOP_AGENT"] = "0:0"  # the ranks keep the collector running
            if several:
                os.environ["DDPTOP_EXCHANGE"] = "1"  # and bring its address to the other hosts
            announcement = Announcement(name, folder) if begun and several else None
            undo.pop_all()
        if begun and not several:
            note(f"run {name}: {how_to_watch(name, listen=options.listen)}")
        return cls(folder, member, agent, announcement)

    def note_signal(self, number: int) -> None:
        """Note that this launcher has received a signal, which ends its rank. Never raises."""
        note_launcher_signal(self._folder, number)

    def prepare_end(self) -> None:
        """As `WatchedRun.prepare_end`, with all ranks of this host."""
        give_notice(self._folder)

    def end_run(self, exit_code: int) -> None:
        """Leave the run; the last one waits for the collector's summary and prints it."""
        if exit_code:
            note_launcher_failure(self._folder)
        if self._announcement is not None:
            self._announcement.stop_waiting()
        # Without its lock nobody knows whether this launcher is the last.
        if self._member is None:
            return
        run = read_run_file(self._folder)
        # Asked while the lock is still held: only then can it be the last.
        last = collector_start.request_end(self._member)
        os.close(self._member)
        if last and run is not None:
            # Over several hosts the collector goes on by itself.
            patience_s = EXIT_S if os.environ.get("DDPTOP_EXCHANGE") == "1" else FINISH_S
            summary_text = collector_start.read_summary(self._agent, patience_s)
            summary = None if summary_text is None else summary_in(summary_text.decode())
            if summary is not None:
                note(f"run {run.name}: {describe_summary(summary, exit_code)}")
        with contextlib.suppress(OSError):
            os.close(self._agent)
