"""The main loop of a host's agent: one thread, one poller, and an orderly end of the run."""

from __future__ import annotations

import random
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import zmq

from ddptop.agent.admission import Admission
from ddptop.agent.host_usage import HostClock, HostSampler, describe_host
from ddptop.agent.host_watch import HostWatch
from ddptop.agent.launcher import Arguments, open_launcher, read_launcher
from ddptop.agent.local_ranks import LocalRanks
from ddptop.agent.outbox import Outbox
from ddptop.agent.rank_relay import RankRelay
from ddptop.agent.round_times import LAST_MESSAGES_NS, QUIET_NS, next_second_ns, s_until_sent
from ddptop.agent.run_file import KeptRunFile
from ddptop.agent.run_folder import RunFolder
from ddptop.host.collector_address import CollectorAddress, read_address, read_role, write_address
from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.host.gpus import GpuSampler
from ddptop.host.rank_processes import ProcessWatch
from ddptop.host.runs import (
    read_run_file,
    remove_run_directory,
)
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Run
from ddptop.protocol.vocabulary import RunOutcome
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context

TICK_MS = 250
"""Longest sleep. A bundle goes out after each."""

LAST_PAUSE_S = 0.01
"""Sleep between rounds while somebody waits: a rank for the ack of its BYE, or the launcher at the end."""

UNREACHED_NS = 3 * NS
"""The collector is unreachable after this silence. Its replies come at least once a second."""

# A file system takes 255 bytes of a name, and the name of the host and a number come behind it.
MAX_NAME = 100
"""Characters of the run's name in that of a file."""

SUMMARY_NS = NS * 7 // 10
"""After the end of the run: the launcher, which waits 1 s at most, then gets its summary in any case."""

DELIVERY_NS = 30 * NS
"""How long after the end of the run the agent goes on until the collector has everything."""


class Agent:
    """Serves the ranks of one host. A context manager: it leaves nothing open."""

    def __init__(
        self, arguments: Arguments, notify: Callable[[Mapping[str, object]], None] = lambda line: None
    ) -> None:
        """`notify` sends a line to the launcher.

        Raises RunDirectoryError where the folder is not ours alone or another process serves it.
        """
        self._arguments = arguments
        self._notify = notify
        self._directory = arguments.run_dir
        self._host = socket.gethostname()
        self._address: CollectorAddress | None = None
        self._clock = HostClock(self._host)
        self._second_due_ns = 0
        self._summary_sent = False
        self._is_replaced = False
        """This process is to become the collector, or the run's folder was removed."""
        self._loss_is_reported = False
        with ExitStack() as stack:
            # Without a launcher, the members of the run have their locks in the folder, too.
            self._folder = RunFolder(self._directory, can_make_again=arguments.alone is None)
            stack.callback(self._folder.close)
            self._build_parts(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def serve_run(self) -> bool:
        """Serve until the run has ended and is delivered.

        False where this process is to become the collector, or the run's folder was removed: ranks send the
        next process what this one has not acked.
        """
        while not self._pipe.ended:
            self._work_round()
            if self._is_replaced:
                self._outbox.close_recording(None)
                return False
            self._wait_for_round()
        self._deliver_rest()
        return True

    def _wait_for_round(self) -> None:
        """Sleep until the next round. Where it is due, compare clocks with the collector meanwhile."""
        now_ns = time.monotonic_ns()
        pause_s = s_until_sent(now_ns)
        if self._relay.any_ends(now_ns):
            pause_s = LAST_PAUSE_S
        elif self._watch and self._clock.is_due(now_ns):
            # The wait for the next round is used: comparing clocks needs no time of its own.
            self._sender.compare_clocks(pause_s)
        time.sleep(max(0.0, now_ns / NS + pause_s - time.monotonic()))

    @property
    def is_to_collect(self) -> bool:
        """Whether a rank has decided that the collector of the run is to be on this host."""
        return bool(read_role(self._directory))

    def _build_parts(self, stack: ExitStack) -> None:
        arguments = self._arguments
        now_ns = time.monotonic_ns()
        context = new_context()
        stack.callback(context.term)
        self._poller = zmq.Poller()
        watch = ProcessWatch(lambda fd: self._poller.register(fd, zmq.POLLIN), self._poller.unregister)
        stack.callback(watch.close)
        self._watch = watch
        gpus = GpuSampler()
        stack.callback(gpus.close)
        # An agent does not know how the run ended; the collector does.
        self._pipe = open_launcher(arguments, watch.any_present, lambda: True)
        stack.callback(self._pipe.close)
        # Never 0, which is the collector's own session.
        session = random.SystemRandom().getrandbits(62) + 1
        self._session = session
        # Read together, so that both are of the same moment.
        clocks = (time.monotonic_ns(), time.time_ns())
        host = describe_host(self._host, arguments.run_id, session, lambda: clocks)
        self._sender = BundleSender(
            context,
            host,
            leave=lambda messages: self._outbox.note_dropped(messages),
        )
        stack.callback(self._sender.close)
        # An agent before this one, which was killed, may have left a local recording of the same run.
        before = read_run_file(self._directory)
        if before is not None and before.run_id != arguments.run_id:
            before = None
        self._started_at = time.time() if before is None else before.started_at
        recording = self._recording_path(arguments.name)
        run = self._run_message("live", now_ns)
        self._outbox = Outbox(self._sender, session, run, recording, self._tell_person)
        admission = Admission(launcher=arguments.launcher_pid, most_ranks=arguments.most_ranks)
        self._ranks = LocalRanks.bind(
            context,
            self._directory,
            watch,
            admission,
            run_id=arguments.run_id,
            epoch=random.SystemRandom().getrandbits(62),
            one_part=True,
        )
        stack.callback(self._ranks.close)
        self._relay = RankRelay(self._directory, self._ranks, self._sender, self._outbox)
        self._own_watch = HostWatch(self._directory, arguments.run_id, self._relay, watch, gpus, recording)
        self._sampler = HostSampler(watch.living_processes)
        self._run_file = KeptRunFile(arguments, self._started_at)
        for source in (self._pipe.descriptor, self._ranks.socket):
            self._poller.register(source, zmq.POLLIN)
        # Only an agent's run file: a collector that was here before has a recording of the whole run.
        if before is not None and before.recording is not None and before.collector_host is not None:
            self._outbox.resume_recording(Path(before.recording))
        self._relay.recall_ranks(now_ns)
        self._check_address()
        self._update_run_file(now_ns)

    def _recording_path(self, name: str) -> Path | None:
        """The path of a local recording: in the folder of recordings, named after run and host."""
        if self._arguments.record is None:
            return None
        try:
            plain = re.sub(r"[^\w.-]", "_", name)[:MAX_NAME]  # it has come through the job's store
            return state_directory() / f"{plain}@{self._host}.ddptop"
        except RunDirectoryError:
            return None

    def _work_round(self) -> int:
        """Wait for something, do what is due; returns the number of messages that ranks sent."""
        ready = dict(self._poller.poll(TICK_MS))
        now_ns = time.monotonic_ns()
        # First: the exit code of a process can be read until its parent reaps it.
        self._watch.note_readable(ready.keys(), now_ns)
        arrived = self._relay.relay_arrived(now_ns)
        if self._pipe.descriptor in ready:
            read_launcher(self._pipe, self._watch, self._poller, now_ns)
        # After the messages: a BYE that has just arrived explains an exit.
        self._own_watch.report_exits(now_ns)
        if not self._pipe.ended:  # nothing is reported any more that would have to be acked, too
            self._own_watch.check_each_second(now_ns)
        if now_ns >= self._second_due_ns:
            self._second_due_ns = next_second_ns(now_ns)
            self._check_second(now_ns)
        self._exchange_with_collector(now_ns)
        return arrived

    def _exchange_with_collector(self, now_ns: int) -> None:
        """Send and receive on the link to the collector, and pass on to the ranks what came."""
        answers = self._sender.exchange_messages(now_ns)
        before = self._outbox.local_recording
        self._outbox.update_recording(now_ns, answers)
        if self._outbox.local_recording != before:
            # Before ranks are acked: if this process is killed, the next agent finds their records by it.
            self._update_run_file(now_ns)
        for session, seq in answers.acked:
            self._ranks.mark_safe(session, seq)
            # Acks of the ranks' sessions say nothing about the agent's own reports.
            self._relay.note_acked(seq if session == self._session else 0)
        for session, number in answers.asked:
            self._ranks.ask_rank(session, number)
        # Not after the run has ended: the collector needs no clock then, and may have ended too.
        # A host without ranks needs no clock but at its start, where the first ranks may report any moment.
        if answers.clock and not self._pipe.ended and (self._watch or self._clock.is_new):
            clock = self._clock.note_exchanges(answers.clock, time.monotonic_ns())
            if clock is not None:
                self._outbox.report_message(clock, now_ns)
        # Last: all that was received in this round is in the outbox, or in the file.
        self._ranks.acknowledge(safe=self._outbox.is_safe, detail_every=self._sender.detail_every)

    def _check_second(self, now_ns: int) -> None:
        self._is_replaced = self.is_to_collect or not self._folder.is_served(self._fill_folder)
        self._check_address()
        self._outbox.check_recording()
        self._pipe.check_end(now_ns)
        self._sender.set_usage(
            replace(
                self._sampler.read_usage(now_ns),
                round_trip_ns=self._clock.round_trip_ns,
                kept=self._outbox.n_kept,
                local_recording=self._outbox.local_recording,
                thinned=self._relay.thinned + self._outbox.without_detail,
            )
        )
        self._relay.report_refused(now_ns)
        self._update_run_file(now_ns)
        if self._outbox.lost_rows and not self._loss_is_reported:
            self._loss_is_reported = True  # how many is said by the collector, from the recording
            self._tell_person(
                "lost", "records will be missing: the collector is not reached, and nothing has room for them"
            )

    def _fill_folder(self) -> None:
        """Bind and write into the run's folder, which was made again."""
        self._ranks.bind_again(self._directory)
        if self._address is not None:
            write_address(self._directory, self._address)
        self._run_file.forget_written()

    def _check_address(self) -> None:
        """Connect to the collector that the run's folder names, if it is another one than before."""
        address = read_address(self._directory)
        if address is None or address == self._address:
            return
        # Another host has another clock: exchanges with both do not belong together.
        if self._address is None or address.host != self._address.host:
            self._clock = HostClock(self._host)
        # Before `connect_to`, which closes the socket that the poller has.
        self._forget_link()
        try:
            self._sender.connect_to(
                address.endpoint, address.server_key, KeyPair(address.agent_public, address.agent_secret)
            )
        except (zmq.ZMQError, ValueError) as error:
            self._tell_person("address", f"no connection to {address.endpoint}: {error}")
            return
        self._address = address
        self._outbox.path = self._recording_path(address.name)  # each launcher has made up a name of its own
        assert self._sender.socket is not None
        self._poller.register(self._sender.socket, zmq.POLLIN)

    def _forget_link(self) -> None:
        if self._sender.socket is not None:
            self._poller.unregister(self._sender.socket)

    def _update_run_file(self, now_ns: int) -> None:
        replied_ns = self._sender.replied_ns
        self._run_file.write_if_changed(
            world_size=self._ranks.world_size,
            recording=self._outbox.local_recording,
            collector_host="" if self._address is None else self._address.host,
            collector_reached=replied_ns is not None and now_ns - replied_ns < UNREACHED_NS,
        )

    def _deliver_rest(self) -> None:
        """Receive the last messages, and go on until the collector has everything, or record it here.

        Only once it has everything is the end reported: the collector waits for that, and may then leave at
        any moment, also before this agent has the ack.
        """
        begun_ns = received_ns = time.monotonic_ns()
        accounted = reported = False
        while (now_ns := time.monotonic_ns()) - begun_ns < DELIVERY_NS:
            if self._work_round():
                received_ns = now_ns
            # A last message of a rank must not wait for the next bundle, as ranks end now.
            self._sender.flush()
            quiet = not self._watch and now_ns - received_ns > QUIET_NS
            if not accounted and (quiet or now_ns - begun_ns > LAST_MESSAGES_NS):
                accounted = True
                self._own_watch.report_unaccounted(now_ns)
            if accounted and self._outbox.is_delivered and self._outbox.local_recording is None:
                if not self._sender.connected:
                    if reported or now_ns - begun_ns > UNREACHED_NS:
                        break
                elif not reported:
                    reported = True
                    self._outbox.report_end(now_ns)
                elif not self._outbox.n_kept:
                    break
            # The launcher waits for this line, a second at most; delivery may take longer.
            if not self._summary_sent and now_ns - begun_ns > SUMMARY_NS:
                self._outbox.begin_local_recording(now_ns)
                self._exchange_with_collector(now_ns)
                self._send_summary()
            time.sleep(LAST_PAUSE_S)
        state: RunOutcome = "failed" if self._pipe.exit_code else "finished"
        now_ns = time.monotonic_ns()
        # What the collector has not acked by now is kept here, for `ddptop merge`.
        self._outbox.begin_local_recording(now_ns)
        self._outbox.close_recording(self._run_message(state, now_ns), now_ns)
        self._send_summary()
        # Last of all: a next process must find nothing of a run that has ended.
        remove_run_directory(self._directory)

    def _send_summary(self) -> None:
        if self._summary_sent:
            return
        self._summary_sent = True
        self._notify(
            {
                "steps": None,
                "records": self._outbox.rows,
                "recording": self._outbox.local_recording,
                "recording_note": self._outbox.trouble_note,
                "goes_on": not self._outbox.is_delivered,
            }
        )

    def _run_message(self, state: RunOutcome, now_ns: int) -> Run:
        """The message about the run for a local recording."""
        return self._arguments.make_run(state, self._started_at, now_ns, self._pipe.exit_code)

    def _tell_person(self, kind: str, text: str) -> None:
        """One line for a person."""
        self._notify({"news": kind, "text": text})
