"""What the collector watches on its host: the ranks' processes, exits, usage and GPUs; the recording."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from ddptop.collector.stall_watch import living_sessions
from ddptop.host.exits import crash_evidence, crash_file, read_step_count, take_crash, unread_hellos
from ddptop.host.folders import RunDirectoryError
from ddptop.host.processes import current_process
from ddptop.host.rank_processes import UsageSampler
from ddptop.host.runs import RunFile, write_run_file
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Gpu
from ddptop.protocol.messages import Event, Scalar

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.collector.intake import Intake
    from ddptop.collector.launcher import Arguments
    from ddptop.collector.record import Record
    from ddptop.collector.stall_watch import StallWatch
    from ddptop.host.exits import RankExit, RankProcess
    from ddptop.host.gpus import GpuSampler
    from ddptop.host.rank_processes import ProcessWatch

PERIOD_NS = NS

USAGE_KEPT_NS = 5 * NS
"""Pause between two readings of the ranks' processes that are recorded."""


class HostWatch:
    """Reports exits as they are noticed, all else once a second; keeps the run file up to date."""

    def __init__(
        self,
        arguments: Arguments,
        record: Record,
        intake: Intake,
        reducer: Reducer,
        stalls: StallWatch,
        processes: ProcessWatch,
        gpus: GpuSampler,
        *,
        started_at: float,
    ) -> None:
        """`started_at`: when the run began, in Unix seconds."""
        self._arguments = arguments
        self._record = record
        self._intake = intake
        self._reducer = reducer
        self._stalls = stalls
        self._processes = processes
        self._gpus = gpus
        self._started_at = started_at
        self._usage = UsageSampler()
        self._due_ns = 0
        self._keep_usage_ns = 0
        self._run_file: RunFile | None = None

    def report_exits(self, now_ns: int) -> None:
        """Report processes that have exited, and exit codes that are known only now; ask the survivors."""
        for rank_exit in self._processes.take_exits(now_ns):
            if not rank_exit.reported:
                self._report_crash(rank_exit.process, now_ns)
                self._report_unsent(rank_exit, now_ns)
            if rank_exit.reported or rank_exit.said_bye:
                if rank_exit.exit_code is not None:
                    self._intake.report(rank_exit.event("exit"), now_ns)
                continue
            self._intake.report(rank_exit.event("lost_rank"), now_ns)
            self._stalls.note_death(now_ns, living_sessions(self._reducer))

    def report_unaccounted(self, now_ns: int) -> None:
        """At the end of the run: report missing steps of processes whose exit, or HELLO, was not noticed."""
        for rank_exit in self._processes.unaccounted(now_ns):
            self._report_unsent(rank_exit, now_ns)
        state, arguments = self._reducer.state, self._arguments
        for hello, steps in unread_hellos(arguments.run_dir, arguments.run_id, state.sessions):
            has_process = hello.rank < len(state.ranks) and state.ranks[hello.rank].hello is not None
            if not has_process and self._intake.take_unread(hello, now_ns):
                fields: dict[str, Scalar] = {"session": hello.session, "steps": steps, "exact": True}
                self._intake.report(Event("unsent", now_ns, hello.rank, steps, fields), now_ns)

    def check(self, now_ns: int) -> bool:
        """Check everything else, if a second has passed; whether it has."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + PERIOD_NS
        self._report_stopped(now_ns)
        keep = now_ns >= self._keep_usage_ns
        self._report_gpus(now_ns, keep)
        for process, usage in self._usage.sample(self._processes.living(), now_ns):
            self._intake.report(usage, now_ns, about=process, keep=keep)
            self._keep_usage_ns = now_ns + USAGE_KEPT_NS if keep else self._keep_usage_ns
        self.report_recording(now_ns)
        self._intake.report_refused(now_ns)
        self.update_run_file()
        return True

    def report_recording(self, now_ns: int) -> None:
        """Report an error of the recording, once."""
        self._record.check()
        note = self._record.take_new_note()
        if note is not None:
            self._intake.report(Event("recording", now_ns, -1, -1, {"note": note}), now_ns)

    def update_run_file(self) -> None:
        """Write the run file, where its content has changed. Without one the run is only not listed."""
        arguments = self._arguments
        pid, start, boot, namespace = current_process()
        run = RunFile(
            name=arguments.name,
            run_id=arguments.run_id,
            pid=pid,
            process_start=start,
            boot_id=boot,
            pid_namespace=namespace,
            started_at=self._started_at,
            script=arguments.script,
            world_size=self._intake.world_size,
            recording=self._record.existing,
            directory=arguments.run_dir,
        )
        if run == self._run_file:
            return
        self._run_file = run
        try:
            write_run_file(arguments.run_dir, run)
        except RunDirectoryError as error:
            print(f"ddptop collector: {error}", file=sys.stderr)

    def _report_crash(self, process: RankProcess, now_ns: int) -> None:
        """The stacks that a fatal signal has left in a file, as evidence of the rank."""
        text = take_crash(crash_file(self._arguments.run_dir, process.session))
        if not text:
            return
        ranks = self._reducer.state.ranks
        state = ranks[process.rank] if process.rank < len(ranks) else None
        if state is not None and state.session != process.session:
            state = None
        step, progress = (0, None) if state is None else (state.step, state.progress)
        evidence = crash_evidence(text, now_ns, step, progress)
        if evidence is not None:
            self._intake.report(evidence, now_ns, about=process)

    def _report_unsent(self, rank_exit: RankExit, now_ns: int) -> None:
        """How many steps the process had finished, where some of them have not arrived and never will."""
        process = rank_exit.process
        arrived, at_least = self._reducer.state.steps_of(process.session)
        counted = rank_exit.steps
        if counted is None:
            counted = read_step_count(self._arguments.run_dir, process.session)
        steps = at_least if counted is None else counted
        if steps > arrived or (counted is None and not rank_exit.said_bye):
            fields: dict[str, Scalar] = {
                "session": process.session,
                "steps": steps,
                "exact": counted is not None,
            }
            self._intake.report(Event("unsent", rank_exit.noticed_ns, process.rank, steps, fields), now_ns)

    def _report_stopped(self, now_ns: int) -> None:
        """Processes that a signal has stopped, or continued."""
        for process, stopped in self._processes.check(now_ns):
            state = "stopped" if stopped else "running"
            fields: dict[str, Scalar] = {"session": process.session, "state": state}
            self._intake.report(Event("process", now_ns, process.rank, -1, fields), now_ns)

    def _report_gpus(self, now_ns: int, keep: bool) -> None:
        """The newest NVML readings of the GPUs that the ranks of this host use."""
        used = {process: self._intake.bus_id_of(process) for process in self._processes.living()}
        self._gpus.request(bus_id for bus_id in used.values() if bus_id)
        for process, bus_id in used.items():
            reading = self._gpus.newest(bus_id)
            if reading is not None:
                self._intake.report(Gpu(**asdict(reading), t_ns=now_ns), now_ns, about=process, keep=keep)
