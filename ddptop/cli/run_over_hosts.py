"""A run over several hosts as the launcher of one of them manages it.

Which host runs the collector is known once the launchers have met (torchrun's rendezvous). Then this launcher
starts the collector, or the host's agent, and `AddressExchange` brings the collector's address to the others.
All of that happens in a thread: the rendezvous and the ranks do not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions
from ddptop.cli.watched_run import (
    collector_arguments,
    describe_summary,
    how_to_watch,
    new_run_folder,
    prepare_ranks,
    recording_path,
    where_recorded,
)
from ddptop.collector.supervisor import EXIT_S, CollectorSupervisor
from ddptop.host.address_exchange import AddressExchange, Job, Store, serve_argument
from ddptop.host.collector_address import CollectorAddress
from ddptop.host.end_notices import give_notice
from ddptop.host.folders import RunDirectoryError
from ddptop.host.launcher_signal import note_launcher_signal
from ddptop.host.meeting import AwaitedHosts, OpenRendezvous, remove_meeting, write_meeting
from ddptop.host.runs import remove_run_directory

LATE_MEETING_S = 30.0
"""torchrun prints nothing while it waits for hosts, which may take until its time-out of ten minutes."""


class RunOverHosts:
    """This host's part in the run, from its first line on stderr to its last."""

    def __init__(
        self, options: LaunchOptions, name: str, directory: Path, run_id: str, member: int | None
    ) -> None:
        self._options = options
        self._name = name
        self._directory = directory
        self._run_id = run_id
        self._member = member
        self._lock = threading.Lock()
        self._supervisor: CollectorSupervisor | None = None
        self._exits: list[tuple[int, int]] = []
        """Exits of ranks (pid, exit code) that were reported before there was a supervisor."""
        self._collects = False
        self._record = "off"
        self._ended = False
        self._have_met = False
        self._meeting: AwaitedHosts | None = None
        """What this launcher waits for, as it is in the run's folder."""
        self._meeting_began_s: float | None = None
        """When the wait began; None: it has not, or a line on stderr has told of it."""
        self._starting: contextlib.ExitStack | None = None
        self._collector: CollectorAddress | None = None
        """On another host."""
        self._exchange = AddressExchange(
            directory, _connect_store, self._try_start_process, self._note_collector
        )

    @classmethod
    def begin_run(cls, options: LaunchOptions, name: str, script: Sequence[str]) -> RunOverHosts:
        """Make the run's folder and set the ranks' environment. Where it raises, everything is undone."""
        with new_run_folder(script, arguments=options.argv) as (run_id, directory, member, _):
            prepare_ranks(options, directory, run_id)
        return cls(options, name, directory, run_id, member)

    def close_when_started(self, starting: contextlib.ExitStack) -> None:
        """Close it once viewers can connect, which is after the launchers have met."""
        self._starting = starting

    def note_rendezvous(self, job: Job) -> None:
        """Note that the launchers have met, for the first time or again. Returns at once, and never
        raises."""
        with self._lock:
            if not self._have_met:
                self._have_met = True
                remove_meeting(self._directory)
        self._exchange.note_job(job)

    def note_meeting(self, rendezvous: OpenRendezvous) -> None:
        """Note which hosts have come, as long as they have not met. Never raises."""
        meeting = AwaitedHosts(self._name, rendezvous.describe())
        now_s = time.monotonic()
        with self._lock:
            if self._have_met or self._ended:
                return
            if meeting != self._meeting:
                if self._meeting is None:
                    self._meeting_began_s = now_s
                self._meeting = meeting
                write_meeting(self._directory, meeting)
            if self._meeting_began_s is None or now_s - self._meeting_began_s < LATE_MEETING_S:
                return
            self._meeting_began_s = None
        note(meeting.sentence)

    def note_signal(self, number: int) -> None:
        """Note that this launcher has received a signal that ends the run. Never raises."""
        note_launcher_signal(self._directory, number)

    def prepare_end(self) -> None:
        """Have ranks, which are ended in a moment, send what they have. Takes 50 ms at most; never raises."""
        give_notice(self._directory)

    def note_exits(self, exits: Sequence[tuple[int, int]]) -> None:
        """Note that ranks have ended: pids, with exit codes as `subprocess` gives them. Never blocks or
        raises."""
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None:
                self._exits += exits
                return
        supervisor.report_exits(exits)

    def end_run(self, exit_code: int) -> None:
        """End the collector or the agent, and print in one line what became of the run's records.

        Takes a second at most: a process of ours that needs longer goes on by itself.
        """
        end_s = time.monotonic() + EXIT_S
        # First: it could start a collector just now.
        self._exchange.end_thread()
        with self._lock:
            # Under the lock, so that the other thread starts none after this.
            self._ended = True
            supervisor = self._supervisor
        summary = None
        if supervisor is not None:
            summary = supervisor.finish_run(exit_code, most_s=max(0.0, end_s - time.monotonic()))
        # After the supervisor: as long as this lock is held the folder is nobody's to remove.
        if self._member is not None:
            os.close(self._member)
        if summary is None and not (supervisor is not None and supervisor.goes_on):
            with contextlib.suppress(RunDirectoryError, OSError):
                remove_run_directory(self._directory)
        if supervisor is None:  # the hosts have not met
            return
        collector = self._collector
        if summary is None:
            process = "collector" if self._collects else "agent"
            if supervisor.goes_on:
                where = f", recording in {self._record}" if self._collects else ""
                note(f"run {self._name}: its {process} goes on by itself for a moment{where}")
            else:
                note(f"run {self._name}: its {process} did not answer; what it had sent is recorded")
        elif self._collects or collector is None:
            note(f"run {self._name}: {describe_summary(summary, exit_code)}")
        # Recorded elsewhere: only what this host has kept by itself is worth a line.
        elif summary.recording:
            note(f"run {collector.name}, this host: {describe_summary(summary, exit_code)}")

    def _try_start_process(self, job: Job, collects: bool) -> None:
        """Start the collector or the agent. In the thread of the exchange."""
        try:
            self._start_process(job, collects)
        except Exception as error:  # noqa: BLE001 - training goes on without a recording
            note(f"cannot record: {error}; running without it".replace("\n", " "))

    def _start_process(self, job: Job, collects: bool) -> None:
        options, name = self._options, self._name
        self._record = record = recording_path(options, name)
        arguments = collector_arguments(options, name, self._run_id, self._directory, record)
        if collects:
            arguments += ["--serve", serve_argument(job, options.port)]
        supervisor = CollectorSupervisor(
            arguments,
            self._directory / "collector.log",
            lambda text: note(f"run {self._name}: {text}"),
            module="ddptop.collector" if collects else "ddptop.agent",
            variables=self._options.variables_for("collector in secret"),
        )
        with self._lock:
            if self._ended:
                # The run has ended while the thread was on its way here.
                return
            supervisor.start_process()
            self._collects = collects
            self._supervisor, exits = supervisor, self._exits
        supervisor.report_exits(exits)
        if self._starting is not None:
            self._starting.close()
        if collects:
            note(f"run {name}: {how_to_watch(name, socket.gethostname(), listen=options.listen)}")

    def _note_collector(self, address: CollectorAddress) -> None:
        first = self._collector is None
        self._collector = address
        if first:
            note(f"run {address.name}: {where_recorded(address)}")


def _connect_store(job: Job) -> Store:
    from ddptop.training.torch_compat.job_store import JobStore

    return JobStore(job.address, job.port)
