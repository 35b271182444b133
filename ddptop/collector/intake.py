"""Intake: messages from the links into the recording and the reducer, and acks back."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddptop.agent.local_ranks import LocalRanks
from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.collector.record import Record
from ddptop.collector.remote_hosts import RemoteHosts
from ddptop.collector.simulated_hosts import SimulatedHosts
from ddptop.collector.stall_watch import StallWatch
from ddptop.host.exits import RankProcess
from ddptop.host.rank_processes import ProcessWatch
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import HOST_END, About
from ddptop.protocol.message_run import READINGS, EncodedRun, MessageRun
from ddptop.protocol.messages import (
    ORDERLY_REASONS,
    Bye,
    Event,
    Hello,
    Message,
    Progress,
    Received,
    Scalar,
    Steps,
)
from ddptop.transport.receiver import MOST_DRAINED

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState

USUAL = READINGS | {Steps}
"""Messages that only the recording and the reducer need: nearly all that come. The others are unusual, as in
`MessageRun.unusual_within`."""

FEWEST_TOGETHER = 2
"""Fewest messages that are taken as one run. A run of two costs hardly more than one message alone."""


class Intake:
    """Feeds recording and reducer."""

    def __init__(
        self,
        ranks: LocalRanks,
        record: Record,
        reducer: Reducer,
        watch: ProcessWatch,
        stalls: StallWatch,
        hosts: RemoteHosts | None = None,
    ) -> None:
        """`ranks`: those of this host; `hosts`: the other hosts of the run, where there are any."""
        self._ranks = ranks
        self._record = record
        self._reducer = reducer
        self._watch = watch
        self._stalls = stalls
        self._hosts = hosts
        self._simulated_hosts = SimulatedHosts()
        self.asked = ranks.asked
        """Sessions that were asked what they are doing; emptied by `HostWatch`."""
        self.emptied = True
        """Whether all that had arrived was read at the last `take_arrived`."""
        self._awaited = False
        """A process may wait for its last ack."""
        self._errors = ranks.errors
        record.set_history(NewHistory(reducer))

    @property
    def held_until_ns(self) -> int:
        """Before this moment what many other hosts send is only read; 0: they are few."""
        return 0 if self._hosts is None else self._hosts.receiver.held_until_ns

    def take_arrived(self, now_ns: int, *, at_once: bool = False) -> int:
        """Take all that has arrived; returns the number of messages. Many other hosts' messages are taken
        together, unless `at_once`."""
        # Other hosts first: the clocks are compared by the moment at which their bundles are read.
        relayed = None if self._hosts is None else self._hosts.receive_relayed(now_ns, at_once=at_once)
        arrived = self._ranks.receive_messages(now_ns)
        # Fewer than the limit means that the socket had no more.
        self.emptied = len(arrived) < MOST_DRAINED
        if len(arrived) < FEWEST_TOGETHER:
            self._take_each(arrived, now_ns)
        else:
            begin = 0
            for index, (received, _) in enumerate(arrived):
                # It may decide which process is which rank: the messages before it are taken first.
                if not self._is_usual(received):
                    if begin < index:
                        self._take_together(arrived[begin:index], now_ns)
                    self._take_each(arrived[index : index + 1], now_ns)
                    begin = index + 1
            self._take_together(arrived[begin:], now_ns)
        if self._hosts is None or relayed is None:
            return len(arrived)
        self.emptied = self.emptied and self._hosts.emptied
        if len(relayed):
            self._take_all_relayed(relayed, now_ns)
        return len(arrived) + len(relayed)

    def report_refused(self, now_ns: int, *, final: bool = False) -> None:
        """Report how many messages were refused or failed, where that has changed since the last time."""
        elsewhere = (0, "") if self._hosts is None else (self._hosts.refused, self._hosts.refused_why)
        event = self._ranks.take_refused(now_ns, refused_elsewhere=elsewhere, final=final)
        if event is not None:
            self.report_message(event, now_ns)

    def acknowledge_written(self, now_ns: int, *, at_once: bool = False) -> None:
        """Let the recording write what is due, and ack what it has written; `at_once`: as the run ends."""
        # Written before it is acked: an ack means that the record survives this process.
        self._record.write_due(now_ns)
        safe, detail_every = self._record.is_safe, self._reducer.state.detail_every
        self._ranks.acknowledge(safe=safe, detail_every=detail_every)
        if self._hosts is not None:
            self._hosts.receiver.detail_every = detail_every
            self._hosts.receiver.acknowledge(safe=safe, at_once=at_once or self._awaited)
            # Kept until an ack could go out: what they wait for may not be written yet.
            self._awaited &= not safe

    def report_message(
        self, message: Message, now_ns: int, *, about: RankProcess | None = None, keep: bool = True
    ) -> None:
        """Record and take a message of the collector's own, about the group or about one rank's process.

        An event names its rank itself.
        """
        named = about is not None and not isinstance(message, Event)
        rank, session = (about.rank, about.session) if about and named else (-1, 0)
        received = Received(now_ns, rank, session, 0, message)
        if keep:
            self._keep_message(received, encode(message))
        else:
            self._feed_reducer(received)

    def report_readings(
        self, readings: Sequence[tuple[RankProcess, Message]], now_ns: int, *, keep: bool
    ) -> None:
        """Readings of ranks' processes, taken together."""
        if not readings:
            return
        messages = [
            Received(now_ns, process.rank, process.session, 0, reading) for process, reading in readings
        ]
        if keep:
            run = EncodedRun.of_encoded([(received, encode(received.message)) for received in messages])
            self._take_usual(run, 0, len(run))
        else:
            with self._errors:
                self._reducer.feed_run(MessageRun.of(messages), 0, self._errors.note_exception)

    def take_unread(self, hello: Hello, now_ns: int) -> bool:
        """Take the HELLO that a process has left in a file, since no collector read it; whether it fits."""
        ranks = self._reducer.state.ranks
        # A rank that runs has a process: this HELLO is of one that was before it.
        if hello.rank < len(ranks) and ranks[hello.rank].running:
            return False
        if not self._ranks.admit_unread(hello):
            return False
        self._take_message(Received(now_ns, hello.rank, hello.session, 0, hello), encode(hello), now_ns)
        return True

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank reports to use; empty where it has none."""
        return str(self._reducer.state.cards.get(process.rank, {}).get("gpu.bus_id") or "")

    def steps_of(self, session: int) -> tuple[int, int]:
        """For the process of a session: steps whose rows have arrived, and steps that it has finished at
        least."""
        return self._reducer.state.steps_of(session)

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        """Its step and newest heartbeat; (0, None) where another process has its rank by now."""
        ranks = self._reducer.state.ranks
        state = ranks[process.rank] if process.rank < len(ranks) else None
        return (
            (0, None) if state is None or state.session != process.session else (state.step, state.progress)
        )

    def note_death(self, now_ns: int) -> None:
        """Note that a process has exited without a BYE: the other ranks are asked what they are doing."""
        self._stalls.note_death(now_ns, self.askable_sessions(now_ns))

    def askable_sessions(self, now_ns: int) -> list[int]:
        """Sessions of the ranks that run, as far as is known, and can be asked for evidence."""
        sessions = [member.session for member in self._reducer.state.ranks if member.running]
        return sessions if self._hosts is None else self._hosts.reachable_sessions(sessions, now_ns)

    def hosts_missing(self, now_ns: int) -> list[str]:
        """Other hosts of which more may come: from a rank without BYE and exit, or from the agent."""
        waiting = set() if self._hosts is None else self._hosts.not_ended(now_ns)
        return sorted(waiting | {member.host for member in self._members_missing()})

    def report_missing(self, now_ns: int) -> None:
        """Report as lost, at the end of the run, what the ranks of missing hosts had not sent, if it is
        known."""
        for member in self._members_missing():
            assert member.hello is not None
            received, finished = self.steps_of(member.session)
            steps = max(received, finished)
            fields: dict[str, Scalar] = {"session": member.session, "steps": steps, "exact": False}
            fields["host"] = member.host
            self.report_message(Event("unsent", now_ns, member.hello.rank, steps, fields), now_ns)

    def _members_missing(self) -> list[RankState]:
        if self._hosts is None:
            return []
        # Processes that are watched here end with their exit; only those of other hosts can be missing.
        local_sessions = self._watch.sessions
        return [m for m in self._reducer.state.ranks if m.running and m.session not in local_sessions]

    def ask_rank(self, session: int, number: int) -> None:
        """Ask the rank behind a session what it is doing; may get lost."""
        self._ranks.ask_rank(session, number)
        if self._hosts is not None:
            self._hosts.receiver.ask_rank(session, number)

    @property
    def known_sessions(self) -> Container[int]:
        """Sessions whose HELLO was received."""
        return self._reducer.state.sessions.by_number

    def report_recording(self, now_ns: int) -> None:
        """Report an error of the recording, once, and what it has lost. The recording says by itself why it
        stops, and what is missing in it."""
        self._record.check_file()
        note = self._record.take_new_note()
        if note is not None:
            event = Event("recording", now_ns, -1, -1, {"note": note})
            # Not written where the disk takes nothing: the note is about just that.
            self.report_message(event, now_ns, keep=not self._record.is_failing)
        for event in self._record.take_missing():
            self.report_message(event, now_ns, keep=False)

    def _is_usual(self, received: Received) -> bool:
        """Whether it is one of USUAL, from the process that has the rank."""
        if received.session != self._ranks.session_of(received.rank):
            return False
        return type(received.message) in USUAL

    def _take_together(self, messages: list[tuple[Received, bytes]], now_ns: int) -> None:
        # Each sender is noted even where the messages cannot be taken as one run.
        noted = [(self._note_message(received, now_ns), body) for received, body in messages]
        try:
            run = EncodedRun.of_encoded(noted)
        except Exception:  # noqa: BLE001  # no message may end the collector
            self._errors.note_exception()
            for received, body in noted:
                with self._errors:
                    self._keep_message(received, body)
        else:
            self._take_usual(run, 0, len(run))

    def _take_each(self, messages: list[tuple[Received, bytes]], now_ns: int) -> None:
        for received, body in messages:
            with self._errors:
                self._take_message(received, body, now_ns)

    def _take_message(self, received: Received, body: bytes, now_ns: int) -> None:
        hello = self._ranks.find_returning(received)
        if hello is not None:
            rank, session = received.rank, received.session
            # The HELLO again: whatever follows is of a process that the admission had replaced.
            self._ranks.note_sender(Received(now_ns, rank, session, 0, hello), now_ns)
            self.report_message(Event("rank_returned", now_ns, rank, -1, {"session": session}), now_ns)
        self._keep_message(self._note_message(received, now_ns), body)
        self._note_answer_or_failure(received, now_ns)

    def _note_message(self, received: Received, now_ns: int) -> Received:
        """Note who has sent a message, and return it as it is to be kept. An error in noting does not lose
        it."""
        of_agent = self._simulated_hosts.of_agent(received)
        if of_agent is None:
            with self._errors:
                self._ranks.note_sender(received, now_ns)
        return of_agent or received

    def _take_all_relayed(self, relayed: EncodedRun, now_ns: int) -> None:
        """Messages of each session in their order; first introductions, last what agents report themselves.
        Those that need nothing else are taken in columns."""
        # What an agent reports of a process comes after what that process has sent itself.
        # Order within a session stays, since `sorted_by` is stable.
        _, ranks, _, _ = relayed.heads
        order = np.where(ranks < 0, 2, 1)
        order[self._find_introductions(relayed)] = 0
        relayed, begin = relayed.sorted_by(order), 0
        for place, received in relayed.unusual_within(0, len(relayed)):
            self._take_usual(relayed, begin, place)
            with self._errors:
                self._take_relayed(received, relayed.body(place), now_ns)
            begin = place + 1
        self._take_usual(relayed, begin, len(relayed))

    def _find_introductions(self, run: EncodedRun) -> list[int]:
        """Places of the first messages of new ranks' sessions, up to their first usual one.

        Each of these messages divides what is taken together: they are taken first.
        """
        if run.steps is None:
            return []
        ranks, unusual = self._reducer.state.ranks, run.unusual_within(0, len(run))
        session_of_new: dict[int, int] = {}  # by rank; of several, that of its first HELLO
        for _, received in unusual:
            rank = received.rank
            if type(received.message) is Hello and (rank >= len(ranks) or ranks[rank].hello is None):
                session_of_new.setdefault(rank, received.session)
        unusual_places = {place for place, _ in unusual}
        _, _, sessions, _ = run.heads
        introductions: list[int] = []
        for session in {*session_of_new.values()}:
            for place in np.flatnonzero(sessions == session).tolist():
                if place not in unusual_places:
                    break  # later messages of the session depend on its steps
                introductions.append(place)
        return introductions

    def _take_usual(self, run: EncodedRun, begin: int, stop: int) -> None:
        """Record and analyze the messages from place `begin` to before `stop`, all of them USUAL."""
        if begin == stop:
            return
        # The recording first: an error in the analysis must not lose a message.
        self._record.add_run(run, begin, stop, self._errors)
        with self._errors:
            self._reducer.feed_run(run, begin, self._errors.note_exception, stop=stop)

    def _take_relayed(self, received: Received, body: bytes, now_ns: int) -> None:
        """A message that came through an agent: its rank's process is watched there."""
        message = received.message
        if isinstance(message, Hello):
            self._ranks.note_remote(message)
        elif isinstance(message, About):
            about = decode(message.body)
            if isinstance(about, Event):
                self._awaited = True  # an agent waits for these at its end
                # The exit is recorded before the others are asked: their answers then follow it in a replay.
                if about.kind == "lost_rank":
                    self._keep_message(received, body)
                    self.note_death(now_ns)
                    return
        elif isinstance(message, Event) and message.kind == HOST_END and self._hosts is not None:
            self._hosts.note_end(received.session)
            self._awaited = True
        self._awaited |= isinstance(message, Bye)
        self._keep_message(received, body)
        self._note_answer_or_failure(received, now_ns)

    def _note_answer_or_failure(self, received: Received, now_ns: int) -> None:
        """Note what decides which ranks are asked for evidence; called once the reducer has the message."""
        message = received.message
        if isinstance(message, Evidence):
            self._stalls.note_answer(received.session, message.number)
        elif isinstance(message, Bye) and message.reason not in ORDERLY_REASONS:
            self.note_death(now_ns)

    def recall_message(self, received: Received, now_ns: int) -> None:
        """Take a message from the recording of an earlier collector."""
        message, hosts = received.message, self._hosts
        if hosts is not None:
            hosts.recall_message(received)
        if hosts is not None and isinstance(message, Hello) and hosts.is_remote(message):
            # Its process is on another host, whose agent watches it.
            self._ranks.note_remote(message)
        else:
            self._ranks.recall_sender(received, now_ns)
        self._record.recall_message(received)
        self.recall_number(received.session, received.seq)
        if isinstance(message, Evidence):
            self._stalls.recall_answer(received.session, message.number, now_ns)
        elif isinstance(message, Event):
            self._recall_event(message)
        self._feed_reducer(received)

    def recall_number(self, session: int, seq: int) -> None:
        """Note that an earlier collector has recorded a session up to this number."""
        self._ranks.recall_number(session, seq)
        if self._hosts is not None:
            self._hosts.receiver.note_recorded(session, seq)

    def _recall_event(self, event: Event) -> None:
        session = event.fields.get("session")
        if not isinstance(session, int):
            return
        if event.kind in ("lost_rank", "exit"):
            # Its exit is recorded: it is not to be reported a second time.
            self._watch.forget_session(session)
        elif event.kind == "process":
            self._watch.recall_stopped(session, event.fields.get("state") == "stopped")

    def _keep_message(self, received: Received, body: bytes) -> None:
        self._record.add_message(received, body)
        self._feed_reducer(received)

    def _feed_reducer(self, received: Received) -> None:
        # An error here costs only the figures: the recording has the message for a later version.
        with self._errors:
            self._reducer.feed(received)
