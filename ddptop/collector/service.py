"""The collector's main loop: one thread, one poller, and an orderly end of the run."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import zmq

from ddptop.agent.admission import Admission
from ddptop.agent.host_watch import HostWatch
from ddptop.agent.internal_errors import InternalErrors
from ddptop.agent.launcher import Arguments, open_launcher, read_launcher
from ddptop.agent.local_ranks import LocalRanks
from ddptop.agent.round_times import LAST_MESSAGES_NS, QUIET_NS, READ_AT_S, s_until_sent
from ddptop.agent.run_file import KeptRunFile
from ddptop.agent.run_folder import RunFolder
from ddptop.analysis.health.outside_end import unexplained_ends
from ddptop.analysis.ledger.recorded import VERSION as LEDGER_VERSION
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.stall.start import reached_phrase
from ddptop.collector.agent_port import Listen
from ddptop.collector.alert_calls import VARIABLE, AlertCalls
from ddptop.collector.flight_analyser import FlightAnalyser
from ddptop.collector.intake import Intake
from ddptop.collector.interruption import InterruptionWatch
from ddptop.collector.record import Counts, EarlierRun, Record, note_kind, open_earlier
from ddptop.collector.remote_hosts import OwnHost, RemoteHosts
from ddptop.collector.sample_requests import SampleRequests
from ddptop.collector.simulated_hosts import MESSAGES
from ddptop.collector.stall_check import StallCheck
from ddptop.collector.stall_watch import StallWatch
from ddptop.collector.viewers import LiveFrames, Viewers
from ddptop.frames.numbers import counted
from ddptop.frames.phrases import missing_records_phrase
from ddptop.frames.verdict import verdict
from ddptop.host.folders import RunDirectoryError
from ddptop.host.gpus import GpuSampler
from ddptop.host.nccl_ras import RasClient
from ddptop.host.rank_processes import ProcessWatch
from ddptop.host.rank_starts import count_initializing_ranks
from ddptop.host.runs import (
    flight_folder,
    remove_run_directory,
    view_endpoint,
    write_command,
)
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event, Hello, Scalar
from ddptop.protocol.vocabulary import RunOutcome
from ddptop.transport.credit import CreditServer
from ddptop.transport.sockets import bind_again, new_context

TICK_MS, IDLE_TICK_MS = 100, 500
"""Longest sleep, and longest where nobody waits and no other host takes part. A sleep of a second would look
like an interruption of this process."""

MS = NS // 1000

PAUSE_NS = 10_000_000, 25_000_000, 50_000_000
"""Bounds of the pause after a round. Messages that are read together cost less, so the pause is four times as
long as the round, within these bounds: the least pause, the least one while messages of other hosts are held
back, and the longest. A pause that would end about when held messages are due ends exactly then."""

OTHER_HOSTS_NS = NS * 6 // 10
"""How long the end of the run waits for ranks of other hosts. The launcher waits meanwhile, a second at
most."""

BACKGROUND_NS = 30 * NS
"""How long after that the collector goes on to receive from other hosts, without a launcher."""

CATCH_UP_NS = NS
"""Longest round after an interruption, in which everything that waits is read."""

LAST_ACKS_NS = NS // 4
"""How long agents have to receive their last acks."""

LAST_CREDIT_NS = 5 * NS // 4
"""How long viewers have to ask for the last frame: they ask for one every 0.9 s, or more often."""

LAST_FRAME_MS = 500
"""How long the last frames have to go out."""


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
        self._is_replaced = False
        self._arguments = arguments
        self._directory = arguments.run_dir
        self._remark: str | None = None
        """About the port for other hosts, for a person."""
        with ExitStack() as stack:
            # Without a launcher, the members of the run have their locks in the folder, too.
            self._folder = RunFolder(self._directory, can_make_again=arguments.alone is None)
            stack.callback(self._folder.close)
            with open_earlier(self._directory, arguments.record, arguments.run_id) as before:
                self._build_parts(stack, before.path, resume=before.recording is not None)
                self._begin_run(before)
            self._stack = stack.pop_all()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def serve_run(self) -> dict[str, object] | None:
        """Serve until the run has ended, then finish; returns the summary for the launcher.

        None where the run's folder was removed, or the next collector is to receive other hosts, too: that
        makes the folder again and continues the recording; ranks send it what this one has not acked.
        """
        while not self.pipe.ended:
            self.work_round()
            if self._is_replaced:
                self._record.close()
                return None
        n_initialized = count_initializing_ranks(self._directory)  # the folder is gone in the end
        self._receive_last_messages(LAST_MESSAGES_NS, OTHER_HOSTS_NS)
        # The launcher gets its summary now and ends, without waiting for other hosts.
        if missing := self.intake.hosts_missing(time.monotonic_ns()):
            self._notify(self._make_summary(n_initialized) | {"missing": missing})
            self._receive_last_messages(BACKGROUND_NS, BACKGROUND_NS)
        self._host.report_unaccounted(time.monotonic_ns())
        self.intake.report_missing(time.monotonic_ns())
        self._send_last_acks()
        self._finish_run()
        return self._make_summary(n_initialized)

    def _build_parts(self, stack: ExitStack, recording: Path | None, *, resume: bool) -> None:
        arguments = self._arguments
        epoch = random.SystemRandom().getrandbits(62)
        context = new_context()
        stack.callback(context.term)
        self._poller = zmq.Poller()
        watch = ProcessWatch(lambda fd: self._poller.register(fd, zmq.POLLIN), self._poller.unregister)
        stack.callback(watch.close)
        self._counts = Counts()
        self._record = Record(recording, limit_bytes=arguments.record_limit, resume=resume)
        stack.callback(self._record.close)
        self._gpus = GpuSampler()
        stack.callback(self._gpus.close)
        self.reducer = Reducer(stall_s=arguments.stall_s, tail=resume)
        self.pipe = open_launcher(arguments, watch.any_present, self._ranks_well)
        stack.callback(self.pipe.close)
        admission = Admission(
            launcher=arguments.launcher_pid, most_ranks=arguments.most_ranks, simulated=arguments.simulated
        )
        hosts = self._remote_hosts(context, admission, epoch)
        if hosts is not None:
            stack.callback(hosts.close)
        ranks = self._ranks = self._bind_ranks(context, watch, admission, hosts, epoch)
        stack.callback(ranks.close)
        self.server = CreditServer(context, view_endpoint(self._directory), listen=arguments.listen)
        stack.callback(self.server.close, LAST_FRAME_MS)
        # A lambda, here and below, since the intake is made only below, with this object.
        self.frames = LiveFrames(
            self.reducer,
            self._record,
            "simulated" if arguments.simulated else "live",
            lambda session, number: self.intake.ask_rank(session, number),
        )
        self.viewers = Viewers(self.server, self.frames, epoch=epoch)
        self._watch = watch
        self._stalls = StallWatch(lambda session, number: self.intake.ask_rank(session, number))
        self.intake = Intake(ranks, self._record, self.reducer, watch, self._stalls, hosts)
        self.hosts = hosts
        self._only_host: OwnHost | None = None
        flights = FlightAnalyser(
            flight_folder(self._directory), self._record.path, self.intake.report_message
        )
        stack.callback(flights.close)
        self._stall_check = StallCheck(
            self.reducer,
            self.intake,
            self._stalls,
            watch,
            hosts,
            flights,
            RasClient(self.intake.report_message),
        )
        self._samples = SampleRequests(self.reducer, self.intake.ask_rank, self.intake.askable_sessions)
        self._calls = AlertCalls(os.environ.get(VARIABLE, ""), self.reducer, self.intake.report_message)
        stack.callback(self._calls.close)
        of_hosts = () if hosts is None else hosts.sockets
        for source in (self.pipe.descriptor, ranks.socket, *self.server.sockets, *of_hosts):
            self._poller.register(source, zmq.POLLIN)

    def _bind_ranks(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        watch: ProcessWatch,
        admission: Admission,
        hosts: RemoteHosts | None,
        epoch: int,
    ) -> LocalRanks:
        """The ranks of this host, at a socket in the run's folder."""

        def check_hello(hello: Hello) -> None:
            if hosts is not None:
                hosts.check_rank(hello, hello.host)

        return LocalRanks.bind(
            context,
            self._directory,
            watch,
            admission,
            run_id=self._arguments.run_id,
            epoch=epoch,
            check_hello=check_hello,
            simulated_types=MESSAGES if self._arguments.simulated else (),
        )

    def _remote_hosts(
        self, context: zmq.Context[zmq.Socket[bytes]], admission: Admission, epoch: int
    ) -> RemoteHosts | None:
        """None where all ranks are on this host, or other hosts cannot be received: this one still is."""
        if self._arguments.serve is None:
            return None
        try:
            listen = Listen.parse_text(self._arguments.serve)
            hosts = RemoteHosts(context, self._arguments, listen, self.reducer, admission, epoch=epoch)
        except (OSError, RunDirectoryError, ValueError, zmq.ZMQError) as error:
            self._remark = f"other hosts are not recorded: {self._arguments.serve}: {error}"
            return None
        self._remark = hosts.remark
        return hosts

    def _ranks_well(self) -> bool:
        members = self.reducer.state.ranks
        return bool(members) and all(member.finished and not member.ended_badly for member in members)

    def _begin_run(self, before: EarlierRun) -> None:
        """Begin the run, or continue it."""
        now_ns, arguments = time.monotonic_ns(), self._arguments
        for received in before.read_end(self.reducer.state):
            self.intake.recall_message(received, now_ns)
            self._calls.recall_message(received.message)
        for session, seq in before.last_numbers().items():
            self.intake.recall_number(session, seq)
        self.reducer.end_recall()
        started_at = time.time() if before.started_at is None else before.started_at
        # A recording that is continued has its RUN message already.
        if self.reducer.state.run is None:
            self._report_run("live", now_ns, started_at=started_at)
            # A replay must see a stall when this run saw it, and divide the time as it did.
            settings: dict[str, Scalar] = {
                "stall_s": arguments.stall_s,
                "launcher": arguments.alone is None,
                "ledger": LEDGER_VERSION,
            }
            self.intake.report_message(Event("settings", now_ns, -1, -1, settings), now_ns)
        if before.recording is not None or before.started_at is not None:
            self.intake.report_message(
                Event("collector_restart", now_ns, -1, -1, {"pid": os.getpid()}), now_ns
            )
        self._host = HostWatch(
            self._directory, arguments.run_id, self.intake, self._watch, self._gpus, self._record.path
        )
        self._host.take_unread(now_ns)  # before the processes that have replaced them report
        self._run_file = KeptRunFile(arguments, started_at)
        self._update_run_file()
        if self.hosts is not None:
            self.hosts.begin_reports(self.intake.report_message, self._watch.living_processes)
        self._interruptions = InterruptionWatch(self.intake.report_message, arguments.stall_s)

    def longest_sleep_ms(self, now_ns: int) -> int:
        """How long a round waits at most for something to arrive."""
        # At the end of the run a launcher waits until nothing has arrived for QUIET_NS.
        if self.hosts is not None or self.pipe.ended:
            return TICK_MS
        due = [due_ns for due_ns in (self._record.due_ns, self._watch.due_ns) if due_ns is not None]
        # Rounded up: waking a moment too early would be a round for nothing.
        return min([IDLE_TICK_MS, *(max(0, -((now_ns - due_ns) // MS)) for due_ns in due)])

    def _wait_for_ranks(self, ready: Collection[object]) -> bool:
        """Where a rank has sent, wait for the others, which send at the same moment; returns whether it has
        waited. What comes at another moment is read at once."""
        if self.hosts is not None or self.pipe.ended or {*ready} != {self._ranks.socket}:
            return False
        pause_s = s_until_sent(time.monotonic_ns())
        if pause_s > READ_AT_S:
            return False
        time.sleep(pause_s)
        return True

    def _work_each_second(self, now_ns: int) -> None:
        """Report what the collector counts itself, look for stalls, and ask ranks for what is missing."""
        self.intake.report_recording(now_ns)
        self.intake.report_refused(now_ns)
        self._is_replaced = not self._folder.is_served(self._fill_folder) or self._arguments.is_to_serve()
        self._update_run_file()
        for event in self._counts.new_events(self.reducer.state, now_ns):
            self.intake.report_message(event, now_ns)
        self._notify_losses()
        # After exits and losses were reported, which explain a stall.
        self._stall_check.check_stall(now_ns)
        self._samples.ask_due(now_ns)
        self._introduce_only_host()
        self._calls.call_for_changes(now_ns)
        self.pipe.check_end(now_ns)

    def work_round(self) -> int:
        """Wait for something, do what is due; returns the number of messages that ranks sent."""
        begun_ns = time.monotonic_ns()
        most_ms = self.viewers.ms_until_frame(begun_ns, self.longest_sleep_ms(begun_ns))
        ready = dict(self._poller.poll(most_ms))
        all_sent = self._wait_for_ranks(ready)
        now_ns = time.monotonic_ns()
        # First: the exit code of a process can be read until its parent reaps it.
        self._watch.note_readable(ready.keys(), now_ns)
        interrupted = self._interruptions.check_round(now_ns)
        held_until_ns = self.intake.held_until_ns
        arrived = self.intake.take_arrived(now_ns, at_once=interrupted or self.pipe.ended)
        if arrived and self.pipe.ended:
            self._record.write_all()  # the ranks that are left wait for these acks
        catch_up_ns = now_ns + CATCH_UP_NS if interrupted else 0
        while time.monotonic_ns() < catch_up_ns and self.intake.take_arrived(now_ns, at_once=True):
            continue  # no conclusions before everything that waits has been read
        if self.pipe.descriptor in ready:
            read_launcher(self.pipe, self._watch, self._poller, now_ns)
            if self.pipe.killed:
                event = Event("launcher_killed", now_ns, -1, -1, {"message": "recorded until its ranks end"})
                self.intake.report_message(event, now_ns)
        # After the messages: what a process has sent last is taken before its exit is reported.
        self._host.report_exits(now_ns)
        if self._host.check_each_second(now_ns):
            self._work_each_second(now_ns)
        self.server.drain_credits(now_ns)
        if self.pipe.ended:
            self.intake.acknowledge_written(now_ns, at_once=True)  # senders wait for these
        # A frame right before held messages are taken would show them a whole interval late.
        taken = now_ns >= held_until_ns or self.intake.held_until_ns > held_until_ns
        sent = taken and self.viewers.serve_due(now_ns)  # directly after the newest messages were taken
        if not self.pipe.ended:
            # After the frame, which a viewer waits for; ranks go on meanwhile.
            if all_sent:
                self._record.write_all()  # no more will come for a while: its acks need no later round
            self.intake.acknowledge_written(now_ns)
        if sent:
            # While nobody waits: the frame has just left.
            self.frames.prepare_next()
        if self.hosts is not None:
            self.hosts.check_hosts(now_ns, emptied=self.intake.emptied, interrupted=interrupted)
        elif self._only_host is not None:
            self._only_host.report_if_due(now_ns)
        # Otherwise the next round begins at once: more has arrived than one round reads.
        if self.intake.emptied:
            self._pause_after_round(now_ns)
        return arrived

    def _pause_after_round(self, begun_ns: int) -> None:
        ended_ns = time.monotonic_ns()
        left_ns = self.intake.held_until_ns - ended_ns
        least_ns = PAUSE_NS[1 if left_ns > PAUSE_NS[0] else 0]
        pause_ns = min(max(least_ns, 4 * (ended_ns - begun_ns)), PAUSE_NS[2])
        # It wakes up exactly when what is held may be taken: a viewer's next frame waits for that.
        time.sleep((left_ns if 0 < left_ns < pause_ns + PAUSE_NS[0] else pause_ns) / NS)

    def _fill_folder(self) -> None:
        """Bind and write into the run's folder, which was made again."""
        self._ranks.bind_again(self._directory)
        bind_again(self.server.socket, view_endpoint(self._directory))
        with suppress(RunDirectoryError, OSError):
            write_command(self._directory, self._arguments.argv)
            if self.hosts is not None:
                self.hosts.write_files_again(self._directory)
        self._run_file.forget_written()

    def _introduce_only_host(self) -> None:
        """Report of this host from now on, where all ranks that are known are on it."""
        if self._only_host is not None or self.hosts is not None or self._arguments.simulated:
            return
        # Of a run over several hosts each agent reports its own.
        if {*self.reducer.state.presence.hellos.of_hosts} == {socket.gethostname()}:
            self._only_host = OwnHost(self._arguments.run_id, self.intake.report_message, tuple)

    def _update_run_file(self) -> None:
        self._run_file.write_if_changed(
            world_size=self._ranks.world_size, recording=self._record.existing_path
        )

    def _notify_losses(self) -> None:
        """Notify the launcher, for a person without a screen: missing records, errors of the recording."""
        lost, note = self._counts.lost, self._record.trouble_note
        notices = {
            "lost": f"{missing_records_phrase(lost)} so far" if lost else None,
            note and note_kind(note): note,
        }
        notices |= {"serve": self._remark, "listen": self.server.remark, "on-alert": self._calls.remark}
        for kind, text in notices.items():
            if kind is not None and text is not None and kind not in self._notified:
                self._notified.add(kind)
                self._notify({"news": kind, "text": text})

    def _receive_last_messages(self, most_ns: int, other_hosts_ns: int) -> None:
        """Go on until every rank has sent BYE or exited, and no more messages arrive.

        At most `most_ns`; where only ranks of other hosts are missing, at most `other_hosts_ns`.
        """
        begun_ns = received_ns = time.monotonic_ns()
        while (now_ns := time.monotonic_ns()) - begun_ns < most_ns:
            if self.work_round():
                received_ns = now_ns
            if not self._watch:
                quiet = now_ns - received_ns > QUIET_NS
                if (quiet and not self.intake.hosts_missing(now_ns)) or now_ns - begun_ns >= other_hosts_ns:
                    return

    def _send_last_acks(self) -> None:
        """Where agents have not reported their end: ack what they sent well before the connections close."""
        self._record.write_all()
        end_ns = time.monotonic_ns() + LAST_ACKS_NS
        # Rounds go on: acks that were held back leave in them.
        while (now_ns := time.monotonic_ns()) < end_ns and self.intake.hosts_missing(now_ns):
            self.work_round()

    def _finish_run(self) -> None:
        """Report how the run ended: to the recording and to the viewers."""
        now_ns = time.monotonic_ns()
        # The analyser would otherwise report into a recording that is closed.
        self._stall_check.close()
        self.intake.report_refused(now_ns, final=True)
        self._calls.call_at_end(now_ns, well=self.pipe.ended_well)
        # Last of all messages, so that a recording that has it is complete.
        self._report_run("finished" if self.pipe.ended_well else "failed", now_ns)
        self._record.close()
        # Acked after the file is closed: only now is its end safe, too.
        self.intake.acknowledge_written(now_ns, at_once=True)
        self.intake.report_recording(now_ns)
        # Only those that have asked lately: a stopped viewer would hold up the end.
        watching = self.server.active_since(now_ns - 2 * NS)
        served: set[bytes] = set()
        while watching - served and time.monotonic_ns() - now_ns < LAST_CREDIT_NS:
            self.server.drain_credits(time.monotonic_ns())
            served |= {viewer.name for viewer in self.server.waiting_viewers()}
            self.viewers.serve_due(time.monotonic_ns(), final=True)
            self.server.socket.poll(TICK_MS)
        remove_run_directory(self._directory)

    def _report_run(self, state: RunOutcome, now_ns: int, *, started_at: float = 0.0) -> None:
        """`started_at`: in Unix seconds, of the first report; later ones repeat it."""
        run = self._arguments.make_run(state, started_at, now_ns, self.pipe.exit_code)
        if (first := self.reducer.state.run) is not None:
            run = replace(
                run,
                # The run's folder, from which they come, may be gone.
                script=run.script or first.script,
                argv=run.argv or first.argv,
                unix_ns=first.unix_ns,
                monotonic_ns=first.monotonic_ns,
            )
        self.intake.report_message(run, now_ns)

    def _describe_failure(self) -> str:
        """The failure that ended the run, as the screen says it; empty where none has, or a signal did."""
        state = self.reducer.state
        if state.run is None or state.run.state != "failed" or not unexplained_ends(state):
            return ""
        with InternalErrors():  # the launcher waits for the summary
            return verdict(self.reducer.frame(time.monotonic_ns())).sentence
        return ""

    def _make_summary(self, n_initialized: int) -> dict[str, object]:
        members = self.reducer.state.ranks
        reached = reached_phrase(self.reducer.state)
        if not reached and n_initialized:
            reached = f"{counted(n_initialized, 'rank')} came to init_process_group"
        return {
            "steps": self.reducer.state.complete_step,
            "records": sum(member.records for member in members),
            "lost": sum(member.lost_records for member in members),
            "recording": self._record.existing_path,
            "recording_note": self._record.trouble_note,
            # A rank that has ended within a second has left a mark alone.
            "failure": self._describe_failure(),
            "reached": "; ".join(filter(None, (reached, self.reducer.state.missing.refused_reason))),
        }
