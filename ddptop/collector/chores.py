"""What the collector does once a second besides moving messages."""

from __future__ import annotations

import sys
from dataclasses import asdict

from ddptop.collector.arguments import Arguments
from ddptop.collector.ends import Ends
from ddptop.collector.intake import Intake
from ddptop.collector.record import Record
from ddptop.host.folders import RunDirectoryError
from ddptop.host.gpus import GpuSampler
from ddptop.host.processes import current_process
from ddptop.host.rank_processes import ProcessWatch, UsageSampler
from ddptop.host.run_folder import RunFile, write_run_file
from ddptop.protocol.machine import Gpu
from ddptop.protocol.messages import Event

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
