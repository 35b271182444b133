"""What the collector watches on its host: the ranks' processes and their exits, usage and GPUs, the disk."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.collector.intake import Intake
from ddptop.collector.launcher import Arguments
from ddptop.collector.record import Record
from ddptop.collector.stall_watch import living_sessions
from ddptop.host.exits import crash_evidence, crash_file, take_crash
from ddptop.host.folders import RunDirectoryError
from ddptop.host.gpus import GpuSampler
from ddptop.host.processes import current_process
from ddptop.host.rank_processes import ProcessWatch, UsageSampler
from ddptop.host.runs import RunFile, write_run_file
from ddptop.protocol.limits import MAX_STEP
from ddptop.protocol.machine import Gpu
from ddptop.protocol.messages import Event, Scalar

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.collector.stall_watch import StallWatch
    from ddptop.host.rank_processes import Gone, RankProcess


class Ends:
    """Says what the watch has found, in the ranks' names, and has the survivors of a death asked."""

    def __init__(
        self, directory: Path, watch: ProcessWatch, intake: Intake, reducer: Reducer, stalls: StallWatch
    ) -> None:
        """`directory`: the run's folder, where crash files are."""
        self._directory = directory
        self._watch = watch
        self._intake = intake
        self._reducer = reducer
        self._stalls = stalls

    def tell(self, now_ns: int) -> None:
        """Say which processes are gone, and of those gone before how they ended."""
        for gone in self._watch.take_gone(now_ns):
            if not gone.told:
                self._tell_crash(gone.process, now_ns)
                self._tell_unsent(gone, now_ns)
            if gone.told or gone.said_bye:
                if gone.ending is not None:
                    self._intake.say(_event("exit", gone), now_ns)
                continue
            self._intake.say(_event("lost_rank", gone), now_ns)
            self._stalls.note_death(now_ns, living_sessions(self._reducer))

    def tell_of_the_rest(self, now_ns: int) -> None:
        """At the end of the run: what is missing of processes whose end was not seen."""
        for gone in self._watch.unaccounted(now_ns):
            self._tell_unsent(gone, now_ns)

    def look(self, now_ns: int) -> None:
        """Say which processes were stopped or go on; once a second will do."""
        for process, held in self._watch.look(now_ns):
            fields: dict[str, Scalar] = {
                "session": process.session,
                "state": "stopped" if held else "running",
            }
            self._intake.say(Event("process", now_ns, process.rank, -1, fields), now_ns)

    def _tell_unsent(self, gone: Gone, now_ns: int) -> None:
        """How many steps the process had finished, where some of them have not arrived and never will."""
        process = gone.process
        arrived, at_least = self._reducer.state.steps_of(process.session)
        counted = gone.steps if gone.steps is not None else _left_count(self._directory, process.session)
        steps = at_least if counted is None else counted
        if steps > arrived or (counted is None and not gone.said_bye):
            fields: dict[str, Scalar] = {
                "session": process.session,
                "steps": steps,
                "exact": counted is not None,
            }
            self._intake.say(Event("unsent", gone.ended_ns, process.rank, steps, fields), now_ns)

    def _tell_crash(self, process: RankProcess, now_ns: int) -> None:
        text = take_crash(crash_file(self._directory, process.session))
        if not text:
            return
        members = self._reducer.state.ranks
        member = members[process.rank] if process.rank < len(members) else None
        known = member is not None and member.session == process.session
        evidence = crash_evidence(
            text,
            now_ns,
            member.step if member is not None and known else 0,
            member.progress if member is not None and known else None,
        )
        if evidence is not None:
            self._intake.say(evidence, now_ns, about=process)


def _left_count(directory: Path, session: int) -> int | None:
    """How many steps a process had finished that found no collector at its end; None: it left no word."""
    try:
        descriptor = os.open(directory / f"steps-{session}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 20)
        return int(data) if data.isdigit() and int(data) <= MAX_STEP else None
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _event(kind: str, gone: Gone) -> Event:
    process, ending = gone.process, gone.ending
    fields: dict[str, Scalar] = {
        "pid": process.pid,
        "session": process.session,
        "exit_code": ending.exit_code if ending is not None else None,
        "signal": ending.signal if ending is not None else None,
    }
    if gone.left:
        fields["left"] = True
    return Event(kind, gone.ended_ns, process.rank, -1, fields)


PERIOD_NS = 1_000_000_000

USAGE_KEPT_NS = 5 * PERIOD_NS
"""Pause between two readings of the ranks' processes that are recorded."""


class Chores:
    """Looks at the ranks' processes, tells of trouble with the recording, keeps the run file true."""

    def __init__(
        self,
        arguments: Arguments,
        record: Record,
        intake: Intake,
        watch: ProcessWatch,
        ends: Ends,
        gpus: GpuSampler,
        *,
        started_at: float,
    ) -> None:
        self._arguments = arguments
        self._record = record
        self._intake = intake
        self._watch = watch
        self._ends = ends
        self._started_at = started_at
        self._usage = UsageSampler()
        self._gpus = gpus
        self._due_ns = 0
        self._keep_usage_ns = 0
        self._announced: RunFile | None = None

    def work(self, now_ns: int) -> bool:
        """Do it, if a second has gone by; whether it has."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + PERIOD_NS
        self._ends.look(now_ns)
        keep = now_ns >= self._keep_usage_ns
        self._tell_gpus(now_ns, keep)
        for process, usage in self._usage.sample(self._watch.living(), now_ns):
            self._intake.say(usage, now_ns, about=process, keep=keep)
            self._keep_usage_ns = now_ns + USAGE_KEPT_NS if keep else self._keep_usage_ns
        self.say_news(now_ns)
        self._intake.tell_refused(now_ns)
        self.announce()
        return True

    def _tell_gpus(self, now_ns: int, keep: bool) -> None:
        """The GPUs that the ranks of this host say they use, as NVML last saw them."""
        used = {process: self._intake.bus_id_of(process) for process in self._watch.living()}
        self._gpus.want(bus_id for bus_id in used.values() if bus_id)
        for process, bus_id in used.items():
            reading = self._gpus.newest(bus_id)
            if reading is not None:
                self._intake.say(Gpu(**asdict(reading), t_ns=now_ns), now_ns, about=process, keep=keep)

    def say_news(self, now_ns: int) -> None:
        """Tell of trouble with the recording, once."""
        self._record.look()
        news = self._record.news()
        if news is not None:
            self._intake.say(Event("recording", now_ns, -1, -1, {"note": news}), now_ns)

    def announce(self) -> None:
        """Write the run file, where what it says has changed. Without one the run is only not listed."""
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
        if run == self._announced:
            return
        self._announced = run
        try:
            write_run_file(arguments.run_dir, run)
        except RunDirectoryError as error:
            print(f"ddptop collector: {error}", file=sys.stderr)
