"""The collector's main loop: one thread, one poller, and an orderly end of the run."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import zmq

from ddptop.agent.admission import Admission
from ddptop.agent.host_watch import HostWatch
from ddptop.agent.launcher import Arguments, LauncherPipe, RunWithoutLauncher, ranks_started
from ddptop.agent.run_file import KeptRunFile
from ddptop.analysis.reducer import Reducer
from ddptop.collector.flight_analyser import FlightAnalyser
from ddptop.collector.intake import Intake, InternalErrors
from ddptop.collector.record import Earlier, Record, earlier
from ddptop.collector.stall_watch import StallWatch, living_sessions
from ddptop.collector.viewers import Viewers
from ddptop.frames.frame import Frame
from ddptop.host.gpus import GpuSampler
from ddptop.host.nccl_ras import RasClient
from ddptop.host.processes import process_start
from ddptop.host.rank_processes import ProcessWatch
from ddptop.host.runs import (
    ensure_run_directory,
    flight_folder,
    hold_lock,
    holds_folder,
    ingest_endpoint,
    remove_run_directory,
    view_endpoint,
)
from ddptop.protocol.limits import MAX_CARD, MAX_TEXT, NS, VERSION
from ddptop.protocol.messages import Event, Run, Scalar
from ddptop.protocol.vocabulary import RunOutcome
from ddptop.transport.credit import CreditServer
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context

TICK_MS = 100
"""Longest sleep: acks follow the recording's flush, which is due every 250 ms."""

PAUSE_S = 0.01
"""Pause after a round: many ranks then share one wake-up and one ack; 10 ms delay no screen."""

GAP_NS = 2 * NS
"""A round that begins this late was interrupted: by a signal, or for lack of processor time. Four heartbeats
of each rank are due in that time. With a short stall timeout it is half of that, at least LEAST_GAP_NS."""
LEAST_GAP_NS = NS

SUSPEND_NS = NS
"""Least difference between CLOCK_BOOTTIME and CLOCK_MONOTONIC that counts as a suspended machine."""

LAST_MESSAGES_NS = 2 * NS
"""How long the end of the run waits for ranks that have not sent BYE and whose process runs."""

QUIET_NS = NS // 10
"""Without a message for this long, and with no rank to wait for, everything has arrived."""

LAST_FRAME_NS = NS // 2
"""How long viewers have to take the last frame."""


class Collector:
    """Serves one run from its first rank to its last. A context manager: it leaves nothing open."""

    def __init__(
        self, arguments: Arguments, notify: Callable[[Mapping[str, object]], None] = lambda line: None
    ) -> None:
        """`notify` sends a line to the launcher.

        Raises RunDirectoryError where the folder is not ours alone or another collector serves it.
        """
        self._notify = notify
        self._notified: set[str] = set()
        self._folder_lost = False
        self._arguments = arguments
        self._gap_ns = min(GAP_NS, max(LEAST_GAP_NS, int(arguments.stall_s * NS / 2)))
        self._round_ns, self._suspended_ns = time.monotonic_ns(), _suspended_ns()
        self._directory = arguments.run_dir
        self._errors = InternalErrors()
        self._left_behind: list[tuple[int, int]] = []
        """Pid and start of ranks whose launcher was killed."""
        with ExitStack() as stack:
            ensure_run_directory(self._directory)
            self._lock = hold_lock(self._directory)
            stack.callback(os.close, self._lock)
            with earlier(self._directory, arguments.record, arguments.run_id) as before:
                self._build(stack, before.path, resume=before.recording is not None)
                self._begin(before)
            self._stack = stack.pop_all()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> dict[str, object] | None:
        """Serve until the run has ended, then finish; returns the summary for the launcher.

        None where the run's folder was removed: no process can connect any more. The next collector makes it
        again and continues the recording; ranks send it what this one has not acked.
        """
        while not self._pipe.ended:
            self._round()
            if self._folder_lost:
                self._record.close()
                return None
            time.sleep(PAUSE_S)
        self._receive_last_messages()
        self._host.report_unaccounted(time.monotonic_ns())
        self._finish()
        return self._summary()

    def _build(self, stack: ExitStack, recording: Path | None, *, resume: bool) -> None:
        arguments = self._arguments
        epoch = secrets.randbits(62)
        context = new_context()
        stack.callback(context.term)
        self._poller = zmq.Poller()
        watch = ProcessWatch(lambda fd: self._poller.register(fd, zmq.POLLIN), self._poller.unregister)
        stack.callback(watch.close)
        self._record = Record(recording, limit_bytes=arguments.record_limit, resume=resume)
        stack.callback(self._record.close)
        gpus = GpuSampler()
        stack.callback(gpus.close)
        self._gpus = gpus
        self._reducer = Reducer(stall_s=arguments.stall_s, tail=resume)
        self._pipe = self._open_pipe()
        stack.callback(self._pipe.close)
        launcher = os.getppid() if arguments.alone is None else arguments.alone[0]
        admission = Admission(
            launcher=launcher, most_ranks=arguments.most_ranks, simulated=arguments.simulated
        )
        receiver = AckedReceiver(
            context,
            ingest_endpoint(self._directory),
            epoch=epoch,
            run_id=arguments.run_id,
            hold_acks=True,
            admit=admission,
        )
        stack.callback(receiver.close)
        self._server = CreditServer(context, view_endpoint(self._directory))
        stack.callback(self._server.close, LAST_FRAME_NS // 1_000_000)
        self._viewers = Viewers(self._server, self._frame, epoch=epoch)
        self._watch = watch
        self._stalls = StallWatch(receiver.ask)
        self._intake = Intake(
            receiver,
            self._record,
            self._reducer,
            watch,
            self._stalls,
            admission,
            watched=not arguments.simulated,
        )
        self._flights = FlightAnalyser(flight_folder(self._directory), self._record.path, self._intake.report)
        stack.callback(self._flights.close)
        self._ras = RasClient(self._intake.report)
        for source in (self._pipe.descriptor, receiver.socket, self._server.socket):
            self._poller.register(source, zmq.POLLIN)

    def _open_pipe(self) -> LauncherPipe | RunWithoutLauncher:
        if self._arguments.alone is None:
            return LauncherPipe(self._ranks_present, self._ranks_well)
        return RunWithoutLauncher(self._directory, self._arguments.alone, self._ranks_well)

    def _ranks_well(self) -> bool:
        members = self._reducer.state.ranks
        return bool(members) and all(member.finished and not member.ended_badly for member in members)

    def _begin(self, before: Earlier) -> None:
        """Begin the run, or continue it."""
        now_ns = time.monotonic_ns()
        for received in before.records():
            self._intake.recall(received, now_ns)
        self._reducer.end_recall()
        started_at = time.time() if before.started_at is None else before.started_at
        if self._reducer.state.run is None:
            self._report_run("live", now_ns, started_at=started_at)
            # A replay must see a stall when this run saw it.
            settings = Event("settings", now_ns, -1, -1, {"stall_s": self._arguments.stall_s})
            self._intake.report(settings, now_ns)
        if before.recording is not None or before.started_at is not None:
            self._intake.report(Event("collector_restart", now_ns, -1, -1, {"pid": os.getpid()}), now_ns)
        arguments = self._arguments
        self._host = HostWatch(self._directory, arguments.run_id, self._intake, self._watch, self._gpus)
        self._run_file = KeptRunFile(
            self._directory,
            run_id=arguments.run_id,
            name=arguments.name,
            script=arguments.script,
            started_at=started_at,
        )
        self._update_run_file()
        self._round_ns = time.monotonic_ns()

    def _round(self) -> int:
        """Wait for something, do what is due; returns the number of messages that ranks sent."""
        ready = dict(self._poller.poll(self._viewers.wait_ms(time.monotonic_ns(), TICK_MS)))
        now_ns = time.monotonic_ns()
        # First: the exit code of a process can be read until its parent reaps it.
        self._watch.note_readable(ready.keys(), now_ns)
        interrupted = self._note_interruption(now_ns)
        arrived = self._intake.drain(now_ns)
        while interrupted and self._intake.drain(now_ns):
            continue  # no conclusions before everything that waits has been read
        if self._pipe.descriptor in ready:
            self._read_launcher(now_ns)
        self._host.report_exits(now_ns)
        if self._host.check(now_ns):
            self._intake.report_recording(now_ns)
            self._intake.report_refused(now_ns)
            self._update_run_file()
            self._folder_lost = not holds_folder(self._directory, self._lock)
            self._notify_losses()
            self._check_stall(now_ns)
            self._pipe.check(now_ns)
        self._intake.acknowledge(now_ns)
        self._server.drain(now_ns)
        self._viewers.serve(now_ns)
        return arrived

    def _update_run_file(self) -> None:
        self._run_file.update(world_size=self._intake.world_size, recording=self._record.existing)

    def _note_interruption(self, now_ns: int) -> bool:
        """Report a long time since the last round, when this process did not run; whether there was one."""
        begin_ns, self._round_ns = self._round_ns, now_ns
        suspended_ns, self._suspended_ns = self._suspended_ns, _suspended_ns()
        suspended_ns = self._suspended_ns - suspended_ns
        if suspended_ns >= SUSPEND_NS:  # CLOCK_MONOTONIC, which all ranks read, stopped as well
            text = f"the machine was suspended for {suspended_ns / NS:,.0f} s"
            self._report_interruption(now_ns, now_ns, suspended_ns, text)
        if now_ns - begin_ns < self._gap_ns:
            return False
        text = (
            f"recording interrupted for {(now_ns - begin_ns) / NS:,.0f} s: the collector did not run "
            "(stopped, or no processor time); what ranks sent meanwhile was read afterwards"
        )
        self._report_interruption(begin_ns, now_ns, now_ns - begin_ns, text)
        return True

    def _notify_losses(self) -> None:
        """Notify the launcher, for a person without a screen: lost records, errors of the recording."""
        lost = sum(member.lost_records for member in self._reducer.state.ranks) + self._record.unwritten
        notices = {"lost": f"{lost:,} records lost so far"} if lost else {}
        if self._record.note is not None:
            notices[self._record.note] = self._record.note
        for kind in notices.keys() - self._notified:
            self._notified.add(kind)
            self._notify({"news": kind, "text": notices[kind]})

    def _report_interruption(self, begin_ns: int, now_ns: int, lasted_ns: int, text: str) -> None:
        fields: dict[str, Scalar] = {
            "from_ns": begin_ns,
            "seconds": round(lasted_ns / NS, 3),
            "message": text,
        }
        self._intake.report(Event("interruption", now_ns, -1, -1, fields), now_ns)

    def _read_launcher(self, now_ns: int) -> None:
        self._pipe.read()
        for pid, code in self._pipe.take_exits():
            self._watch.note_exit_code(pid, code, now_ns)
        if self._pipe.ended or self._pipe.killed:
            self._poller.unregister(self._pipe.descriptor)
        if self._pipe.killed:
            self._left_behind = ranks_started(self._arguments.run_id)
            note: dict[str, Scalar] = {"message": "the run is recorded until its ranks end"}
            self._intake.report(Event("launcher_killed", now_ns, -1, -1, note), now_ns)

    def _ranks_present(self) -> bool:
        if self._watch.any_present():
            return True
        return any(process_start(pid) == start for pid, start in self._left_behind)

    def _check_stall(self, now_ns: int) -> None:
        try:
            since_ns = self._reducer.stalled_since(now_ns)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._errors.note()
        else:
            sessions = living_sessions(self._reducer)
            self._stalls.work(now_ns, since_ns, sessions)
            answered = self._stalls.take_complete(now_ns, sessions)
            self._flights.work(now_ns, answered)
            self._ras.work(now_ns, answered, self._pids_under_nccl())

    def _pids_under_nccl(self) -> set[int]:
        """Processes of this host's ranks whose process group is NCCL's."""
        members = self._reducer.state.ranks
        living = [process for process in self._watch.living() if process.rank < len(members)]
        hellos = [(process, members[process.rank].hello) for process in living]
        return {process.pid for process, hello in hellos if hello is not None and "nccl" in hello.backend}

    def _receive_last_messages(self) -> None:
        """Go on until every rank has sent BYE or exited, and no more messages arrive."""
        received_ns = time.monotonic_ns()
        end_ns = received_ns + LAST_MESSAGES_NS
        while (now_ns := time.monotonic_ns()) < end_ns:
            if self._round():
                received_ns = now_ns
            if not self._watch and now_ns - received_ns > QUIET_NS:
                return
            time.sleep(PAUSE_S)

    def _finish(self) -> None:
        """Report how the run ended: to the recording and to the viewers."""
        now_ns = time.monotonic_ns()
        self._flights.close()
        self._intake.report_refused(now_ns, final=True)
        self._report_run("finished" if self._pipe.well else "failed", now_ns)
        self._record.close()
        self._intake.acknowledge(now_ns)
        self._intake.report_recording(now_ns)
        watching = self._server.active_since(now_ns - 2 * NS)
        served: set[bytes] = set()
        while watching - served and time.monotonic_ns() - now_ns < LAST_FRAME_NS:
            self._server.drain(time.monotonic_ns())
            served |= {viewer.name for viewer in self._server.waiting()}
            self._viewers.serve(time.monotonic_ns(), final=True)
            self._server.socket.poll(TICK_MS)
        remove_run_directory(self._directory)

    def _report_run(self, state: RunOutcome, now_ns: int, *, started_at: float | None = None) -> None:
        arguments = self._arguments
        first = self._reducer.state.run
        argv = arguments.argv or (first.argv if first is not None else ())  # the run's folder may be gone
        if first is not None:
            began = (first.unix_ns, first.monotonic_ns)
        else:
            unix_ns = time.time_ns() if started_at is None else int(started_at * NS)
            began = (unix_ns, max(0, now_ns - (time.time_ns() - unix_ns)))
        run = Run(
            version=VERSION,
            run_id=arguments.run_id,
            name=arguments.name[:MAX_TEXT],
            script=(arguments.script or (first.script if first else ""))[:MAX_TEXT],
            argv=tuple(word[:MAX_TEXT] for word in argv[:MAX_CARD]),
            unix_ns=began[0],
            monotonic_ns=began[1],
            state=state,
            exit_code=self._pipe.exit_code,
            simulated=arguments.simulated,
        )
        self._intake.report(run, now_ns)

    def _frame(self, *, cursor: int, focus: int | None, want: str) -> Frame:
        return self._reducer.frame(
            time.monotonic_ns(),
            cursor=cursor,
            focus=focus,
            want=want,
            source="simulated" if self._arguments.simulated else "live",
            recording=self._record.existing,
        )

    def _summary(self) -> dict[str, object]:
        members = self._reducer.state.ranks
        return {
            "steps": self._reducer.state.complete_step,
            "records": sum(member.records for member in members),
            "lost": sum(member.lost_records for member in members) + self._record.unwritten,
            "recording": self._record.existing,
            "recording_note": self._record.note,
        }


def _suspended_ns() -> int:
    """How long the machine has been suspended since boot; 0 where the system has no such clock."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
