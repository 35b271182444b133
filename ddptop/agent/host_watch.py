"""What is watched on one host: the ranks' processes, their exits, usage and GPUs, and files that they left.

An agent watches its host with it, and the collector its own. Where the reports go, and what is known from the
messages of the ranks, is behind `RanksOfHost`.
"""

from __future__ import annotations

import socket
from collections.abc import Container, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from ddptop.agent.round_times import next_second_ns
from ddptop.host.early_failures import take_failures
from ddptop.host.exits import (
    RankProcess,
    crash_evidence,
    crash_file,
    take_crash,
)
from ddptop.host.kernel_view import FullDisks, UsageSampler, folders_of, kernel_view, workers_of
from ddptop.host.launcher_signal import LauncherSignal, read_launcher_signal
from ddptop.host.processes import process_start, start_after
from ddptop.host.rank_starts import RankStarts
from ddptop.host.step_counters import read_step_count, remove_step_count, unread_counts
from ddptop.host.worker_calls import WorkerCalls
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Gpu, Usage
from ddptop.protocol.messages import IN_INITIALIZATION, LAUNCHER_SIGNAL, Event, Scalar

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.host.exits import RankExit
    from ddptop.host.gpus import GpuSampler
    from ddptop.host.rank_processes import ProcessWatch
    from ddptop.protocol.messages import Hello, Message, Progress

SILENT_NS = 3 * NS
"""A rank is read from outside after this long without a heartbeat. Six were due by then."""

USAGE_KEPT_NS = 5 * NS
"""Pause between two readings of the ranks' processes that are recorded, unless a CPU quota throttles them."""


class RanksOfHost(Protocol):
    """Takes the reports, and has what is known of the ranks from their messages."""

    asked: set[int]
    """Sessions that were asked what they are doing; emptied once what the kernel shows is reported."""

    def report_message(
        self, message: Message, now_ns: int, *, about: RankProcess | None = None, keep: bool = True
    ) -> None:
        """Take a message about one rank's process, or an event of the host as a whole.

        `keep`: False for a reading that is not recorded.
        """

    def report_readings(
        self, readings: Sequence[tuple[RankProcess, Message]], now_ns: int, *, keep: bool
    ) -> None:
        """Take readings of processes, as `report_message` takes each."""

    def note_death(self, now_ns: int) -> None:
        """Note that a process has exited without a BYE: the other ranks are to be asked what they are
        doing."""

    def steps_of(self, session: int) -> tuple[int, int]:
        """For the process of a session: steps whose rows have arrived, and steps that it has finished at
        least."""

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        """Its step and newest heartbeat; (0, None) where another process has its rank by now."""

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank reports to use; empty where it has none."""

    def take_unread(self, hello: Hello, now_ns: int) -> bool:
        """Take the HELLO of a process that exited before it was read; False where its rank is another's."""

    @property
    def known_sessions(self) -> Container[int]:
        """Sessions whose HELLO was received."""


class HostWatch:
    """Reports exits as they are noticed, all else once a second."""

    def __init__(
        self,
        directory: Path,
        run_id: str,
        ranks: RanksOfHost,
        processes: ProcessWatch,
        gpus: GpuSampler,
        recording: Path | None,
    ) -> None:
        """`directory`: the run's folder, where processes leave files at their exit. `recording`: the file, or
        another in its folder, that is written on this host."""
        self._directory = directory
        self._run_id = run_id
        self._ranks = ranks
        self._processes = processes
        self._gpus = gpus
        self._usage = UsageSampler()
        self._starts = RankStarts(directory, run_id)
        self._calls = WorkerCalls()
        self._disks = FullDisks()
        self._recording = recording
        self._launcher_signal: LauncherSignal | None = None
        """The one that was reported last."""
        self._due_ns = 0
        self._keep_usage_ns = 0
        self._without_steps: set[int] = set()
        """Sessions of ranks that failed before their first step."""

    def report_exits(self, now_ns: int) -> None:
        """Report processes that have exited, and exit codes that are known only now; ask the survivors."""
        # First the signal that the launcher has received: it may be why the ranks exit.
        self._report_launcher_signal(now_ns)
        for rank_exit in self._processes.take_exits(now_ns):
            # Once for each process: `reported` ones come a second time, with an exit code that was found
            # later.
            if not rank_exit.reported:
                # The crash file and the counter are read before the exit is reported: the report says what is
                # missing.
                self._report_crash(rank_exit.process, now_ns)
                self._report_unsent(rank_exit, now_ns)
                remove_step_count(self._directory, rank_exit.process.session)
            if rank_exit.reported or rank_exit.said_bye:
                if rank_exit.exit_code is not None:
                    self._ranks.report_message(rank_exit.to_event("exit"), now_ns, about=rank_exit.process)
                continue
            self._ranks.report_message(rank_exit.to_event("lost_rank"), now_ns, about=rank_exit.process)
            # At once: their launcher ends them some 0.2 s later, and what they were doing would be lost.
            self._ranks.note_death(now_ns)

    def _report_launcher_signal(self, now_ns: int) -> None:
        newest = read_launcher_signal(self._directory)
        if newest is not None and newest != self._launcher_signal:
            self._launcher_signal = newest
            fields: dict[str, Scalar] = {"signal": newest.name, "host": socket.gethostname()}
            self._ranks.report_message(Event(LAUNCHER_SIGNAL, newest.t_ns, -1, -1, fields), now_ns)

    def report_unaccounted(self, now_ns: int) -> None:
        """Report missing steps of processes whose exit or HELLO was not noticed; at the end of the run."""
        self.take_unread(now_ns)
        for rank_exit in self._processes.unaccounted_exits(now_ns):
            self._report_unsent(rank_exit, now_ns)
            if rank_exit.exit_code is not None:
                self._ranks.report_message(rank_exit.to_event("lost_rank"), now_ns, about=rank_exit.process)
        for hello, count in unread_counts(self._directory, self._run_id, self._ranks.known_sessions):
            if count.ended and self._ranks.take_unread(hello, now_ns):
                fields: dict[str, Scalar] = {"session": hello.session, "steps": count.steps, "exact": True}
                if count.finished:
                    fields["finished"] = True
                process = RankProcess(hello.session, hello.rank, hello.pid)
                event = Event("unsent", now_ns, hello.rank, count.steps, fields)
                self._ranks.report_message(event, now_ns, about=process)

    def take_unread(self, now_ns: int) -> None:
        """Take the HELLOs of processes that were killed before they were read, and the failures of ranks that
        never reported: their exits are reported."""
        for hello, count in unread_counts(self._directory, self._run_id, self._ranks.known_sessions):
            # A pid with a later start is another process: the one that wrote the file has ended.
            runs = process_start(hello.pid) is not None and not start_after(hello.pid, hello.unix_ns / NS)
            if not count.ended and not runs:
                self._ranks.take_unread(hello, now_ns)
        for hello, evidence in take_failures(self._directory, self._run_id, self._ranks.known_sessions):
            if self._ranks.take_unread(hello, now_ns):
                process = RankProcess(hello.session, hello.rank, hello.pid)
                self._ranks.report_message(evidence, now_ns, about=process)
                self._without_steps.add(hello.session)

    def check_each_second(self, now_ns: int) -> bool:
        """Check everything else, if a second has passed; whether it has."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = next_second_ns(now_ns)
        # First, so that a process that was found only now is in the reports below.
        self.take_unread(now_ns)
        self._report_late(now_ns)
        self._report_stopped(now_ns)
        self._report_calls(now_ns)
        self._report_asked(now_ns)
        self._report_disks(now_ns)
        self._report_usage(now_ns)
        return True

    def _report_crash(self, process: RankProcess, now_ns: int) -> None:
        """Report the stacks that a fatal signal has left in a file, as evidence of the rank."""
        text = take_crash(crash_file(self._directory, process.session))
        if not text:
            return
        evidence = crash_evidence(text, now_ns, *self._ranks.progress_of(process))
        if evidence is not None:
            self._ranks.report_message(evidence, now_ns, about=process)

    def _report_unsent(self, rank_exit: RankExit, now_ns: int) -> None:
        """How many steps the process had finished, where some of them have not arrived and never will."""
        process = rank_exit.process
        # Its failure came before its first step: there is nothing that could be missing.
        if process.session in self._without_steps:
            return
        arrived, at_least = self._ranks.steps_of(process.session)
        steps, exact = rank_exit.steps or 0, rank_exit.steps is not None
        # A process that was killed has no last message, but its counter outlives it in memory or in a file.
        count = None if exact else read_step_count(self._directory, process.session)
        if not exact:
            steps, exact = (0, False) if count is None else (count.steps, count.exact)
        # Without an exact number the last heartbeat says how far it was at least.
        steps = steps if exact else max(steps, at_least)
        # Of a killed process without a counter it is reported that the number is not known.
        if steps > arrived or (not exact and not rank_exit.said_bye):
            fields: dict[str, Scalar] = {"session": process.session, "steps": steps, "exact": exact}
            if not exact:
                fields["has_counter"] = count is not None
            event = Event("unsent", rank_exit.noticed_ns, process.rank, steps, fields)
            self._ranks.report_message(event, now_ns, about=process)

    def _report_stopped(self, now_ns: int) -> None:
        """Processes that a signal has stopped, or continued."""
        for process, stopped in self._processes.check_processes(now_ns):
            state = "stopped" if stopped else "running"
            fields: dict[str, Scalar] = {"session": process.session, "state": state}
            self._ranks.report_message(
                Event("process", now_ns, process.rank, -1, fields), now_ns, about=process
            )

    def _report_late(self, now_ns: int) -> None:
        """Report ranks that others wait for in `init_process_group`, and those that do not meet after a
        restart."""
        meeting = self._starts.find_meeting()
        if meeting is not None:
            about: dict[str, Scalar] = {**meeting._asdict(), "ranks": " ".join(map(str, meeting.ranks))}
            self._ranks.report_message(Event(IN_INITIALIZATION, now_ns, -1, -1, about), now_ns)
        for late in self._starts.find_late():
            fields: dict[str, Scalar] = {"world": late.world, "late_s": late.late_s, "torch": late.torch}
            fields |= {"waiting": " ".join(map(str, late.waiting))} | dict(late.view._asdict())
            event = Event("not_initialized", now_ns, late.rank, -1, fields)
            process = RankProcess(0, late.rank, late.view.pid)
            self._ranks.report_message(event, now_ns, about=process)
            # A rank that has not come so far cannot be asked: its calls are read from outside.
            self._calls.request_calls(process, [late.view.pid], now_ns)

    def _report_asked(self, now_ns: int) -> None:
        """Report what the kernel shows of the processes that were asked, and of those that they have
        started."""
        asked = {*self._ranks.asked}
        # Emptied before the reports: a session that is asked meanwhile is reported the next time.
        self._ranks.asked.clear()
        for process in self._processes.living_processes() if asked else ():
            view = kernel_view(process.pid) if process.session in asked else None
            if view is None:
                continue
            fields: dict[str, Scalar] = {"session": process.session}
            workers = workers_of(process.pid)
            # Those that sleep as an idle one does come last.
            ordered = sorted(workers, key=lambda worker: "poll" in worker.waits_in)
            # Only ranks that send no heartbeats are read from outside: the others answer themselves.
            silent = [process.pid] if self._is_silent(process, now_ns) else []
            self._calls.request_calls(process, (*silent, *(worker.pid for worker in ordered)), now_ns)
            self._calls.request_calls(process, silent if view.state not in "Tt" else [], now_ns, native=True)
            for prefix, kernel_process in [("", view), *((f"worker{i}_", w) for i, w in enumerate(workers))]:
                fields |= {f"{prefix}{name}": value for name, value in kernel_process._asdict().items()}
            self._ranks.report_message(
                Event("kernel", now_ns, process.rank, -1, fields), now_ns, about=process
            )

    def _is_silent(self, process: RankProcess, now_ns: int) -> bool:
        """Whether a rank sends no heartbeats: it runs no Python, and will not answer."""
        _, progress = self._ranks.progress_of(process)
        return progress is not None and now_ns - progress.t_ns > SILENT_NS

    def _report_calls(self, now_ns: int) -> None:
        """Report where workers and silent ranks are in their code, of those that have been read."""
        for process, call in self._calls.take_calls(now_ns):
            fields: dict[str, Scalar] = {"session": process.session, **call}
            event = Event("worker_call", now_ns, process.rank, -1, fields)
            self._ranks.report_message(event, now_ns, about=process)

    def _report_disks(self, now_ns: int) -> None:
        """Folders of the ranks, and of recordings, that are full, or no longer."""
        living, recording = self._processes.living_processes(), self._recording

        def folders() -> dict[str, str]:
            folder_paths = (
                {} if recording is None else {f"{recording.parent} (recordings)": str(recording.parent)}
            )
            return folder_paths | {
                name: path for process in living for name, path in folders_of(process.pid).items()
            }

        # A full disk is looked for only while ranks run: they fill it, and an event needs one of them.
        for name, full in self._disks.check_folders(folders, now_ns) if living else ():
            fields: dict[str, Scalar] = {"session": living[0].session, "folder": name, "full": full}
            self._ranks.report_message(
                Event("disk", now_ns, living[0].rank, -1, fields), now_ns, about=living[0]
            )

    def _report_usage(self, now_ns: int) -> None:
        """Readings of the ranks' processes and their GPUs."""
        usages = self._usage.sample_usage(self._processes.living_processes(), now_ns)
        readings: list[tuple[RankProcess, Gpu | Usage]] = [*self._gpu_readings(now_ns), *usages]
        is_kept = now_ns >= self._keep_usage_ns
        if is_kept and usages:
            self._keep_usage_ns = next_second_ns(now_ns + USAGE_KEPT_NS - NS)
        for keep in (True, False):
            # Of a throttled rank the verdict rests on each of these readings.
            of_kind = [
                (process, reading)
                for process, reading in readings
                if keep is (is_kept or bool(isinstance(reading, Usage) and reading.throttled_pct))
            ]
            self._ranks.report_readings(of_kind, now_ns, keep=keep)

    def _gpu_readings(self, now_ns: int) -> list[tuple[RankProcess, Gpu]]:
        """The newest NVML readings of the GPUs that the ranks of this host use."""
        used = {process: self._ranks.bus_id_of(process) for process in self._processes.living_processes()}
        # All at once: NVML is read by a thread of its own, and the newest reading is taken here.
        self._gpus.request_gpus(bus_id for bus_id in used.values() if bus_id)
        newest = ((process, self._gpus.newest_reading(bus_id)) for process, bus_id in used.items())
        return [
            (process, Gpu(**asdict(reading), t_ns=now_ns))
            for process, reading in newest
            if reading is not None
        ]
