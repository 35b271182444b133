"""Intake: messages from the link into the recording and the reducer, and acks back to the ranks.

`NewHistory` holds the history points that the recording does not have yet, `InternalErrors` counts failures
of our own, `Intake` feeds recording and reducer.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Container

import numpy as np

from ddptop.agent.admission import Admission
from ddptop.analysis.reducer import Reducer
from ddptop.collector.record import Record
from ddptop.collector.stall_watch import StallWatch, living_sessions
from ddptop.frames.history import COLUMNS
from ddptop.host.exits import RankProcess
from ddptop.host.rank_processes import ProcessWatch
from ddptop.protocol.checks import ProtocolError
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.messages import (
    LEFT,
    WELL,
    Bye,
    Clock,
    Event,
    Hello,
    Message,
    Progress,
    Received,
    Scalar,
    Steps,
)
from ddptop.recording.history import GROUP, HistoryPiece, PastEvent, joined, picked
from ddptop.transport.receiver import AckedReceiver

MOST_COARSE = 256
"""Most GROUPs in one point, 16,384 steps: the history in memory holds several such points."""

LOST = "lost_records"
"""Kind of the replay mark at a point by which records were lost."""


class NewHistory:
    """The group's history for the recording: what was added since the writer last took it."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._cursor: int | None = None
        self._lost = 0
        self._marked_s = 0.0
        self._taken: set[tuple[float, str]] = set()

    def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
        """New points in whole groups of steps, or with `final` all of them; None where there are none.

        `coarser`: one point covers so many times as many steps as usual.
        """
        group = GROUP * min(coarser, MOST_COARSE)
        reducer = self._reducer
        end = reducer.state.history_end
        begin = reducer.state.history.since(0).start
        first = begin if self._cursor is None else max(begin, self._cursor)
        stop = end if final else first + (end - first) // group * group
        if stop <= first:
            return None
        self._cursor = stop
        points = reducer.state.history.since(first)
        columns = {name: getattr(points, name)[: stop - first] for name in COLUMNS}
        groups = [
            picked({name: column[at : at + group] for name, column in columns.items()})
            for at in range(0, stop - first, group)
        ]
        window = reducer.state.figures.detail
        best = np.full(reducer.state.figures.world, np.nan) if window is None else window.best_self
        marks = self._marks(float(columns["time_s"][-1]))
        return HistoryPiece(joined(groups), np.asarray(best, np.float64), marks, self._happenings())

    def _happenings(self) -> tuple[PastEvent, ...]:
        """Events that were logged since the last call."""
        logged = self._reducer.state.log.all()
        fresh = [one for one in logged if (one.unix_s, one.kind) not in self._taken]
        self._taken = {(one.unix_s, one.kind) for one in logged}
        start_s = self._reducer.state.started_s
        return tuple(
            PastEvent(
                one.unix_s - start_s,
                one.kind,
                one.severity,
                one.rank,
                one.step,
                one.message,
                one.incarnation,
            )
            for one in fresh
        )

    def _marks(self, now_s: float) -> tuple[tuple[float, str], ...]:
        """Warnings of the analysis since the last call, and whether records were lost."""
        start_s = self._reducer.state.started_s
        marks = [
            (one.unix_s - start_s, one.kind)
            for one in self._reducer.state.log.all()
            if one.severity != "info" and one.unix_s - start_s > self._marked_s
        ]
        if marks:
            self._marked_s = max(at for at, _ in marks)
        lost = sum(member.lost_records for member in self._reducer.state.ranks)
        if lost > self._lost:
            marks.append((now_s, LOST))
        self._lost = lost
        return tuple(marks)


REPORT_REFUSED_NS = 10 * NS
"""Least time between two reports of refused messages: a process that sends them in a loop must not fill the
recording."""

SIMULATED_BOUND_NS = 50_000
"""Simulated hosts have this machine's clock; the bound is that of a clock exchange over a network."""


class InternalErrors:
    """Counts exceptions of our own that were caught; prints the first to stderr, the collector's log."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Count the exception that is being handled."""
        self.count += 1
        if self.count == 1:
            traceback.print_exc(file=sys.stderr)


class Intake:
    """Feeds recording and reducer. `watched` is False where pids mean nothing (simulated ranks)."""

    def __init__(
        self,
        receiver: AckedReceiver,
        record: Record,
        reducer: Reducer,
        watch: ProcessWatch,
        stalls: StallWatch,
        admission: Admission,
        *,
        watched: bool,
    ) -> None:
        self._receiver = receiver
        self._record = record
        self._reducer = reducer
        self._watch = watch
        self._stalls = stalls
        self._admission = admission
        self._watched = watched
        self._hosts: set[str] = set()
        self._session_of: dict[int, int] = {}
        self.world_size = 0
        """0: no rank has reported it yet."""
        self._errors = InternalErrors()
        self._reported_refused = (0, 0)
        self._report_refused_ns = 0
        record.set_history(NewHistory(reducer))

    def drain(self, now_ns: int) -> int:
        """Take all that has arrived; returns the number of messages."""
        arrived = self._receiver.drain(now_ns)
        for received, body in arrived:
            try:
                self._take(received, body, now_ns)
            except Exception:  # noqa: BLE001 - an error costs one message, not the collector
                self._errors.note()
        return len(arrived)

    def report_refused(self, now_ns: int, *, final: bool = False) -> None:
        """Report how many messages were refused or failed, where that has changed since the last time."""
        counts = (self._receiver.refused, self._errors.count)
        if counts == self._reported_refused or (now_ns < self._report_refused_ns and not final):
            return
        self._reported_refused, self._report_refused_ns = counts, now_ns + REPORT_REFUSED_NS
        fields: dict[str, Scalar] = {
            "refused": counts[0],
            "failed": counts[1],
            "reason": self._receiver.refused_why[:MAX_TEXT],
        }
        self.report(Event("refused_messages", now_ns, -1, -1, fields), now_ns)

    def acknowledge(self, now_ns: int) -> None:
        """Let the recording write what is due, and ack what it has written."""
        self._record.tick(now_ns)
        self._receiver.detail_every = self._reducer.state.detail_every
        self._receiver.acknowledge(safe=self._record.safe)

    def report(
        self, message: Message, now_ns: int, *, about: RankProcess | None = None, keep: bool = True
    ) -> None:
        """A message of the collector's own, about the group or about one rank's process.

        An event names its rank itself.
        """
        named = about is not None and not isinstance(message, Event)
        rank, session = (about.rank, about.session) if about and named else (-1, 0)
        received = Received(now_ns, rank, session, 0, message)
        if keep:
            self._keep(received, encode(message))
        else:
            self._feed(received)

    def take_unread(self, hello: Hello, now_ns: int) -> bool:
        """A HELLO that a process has left in a file, since no collector read it; whether it is admitted."""
        ranks = self._reducer.state.ranks
        if hello.rank < len(ranks) and ranks[hello.rank].hello is not None:
            return False
        try:
            self._admission(hello, None)
        except ProtocolError:
            return False
        self._take(Received(now_ns, hello.rank, hello.session, 0, hello), encode(hello), now_ns)
        return True

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank reports to use; empty where it has none."""
        return str(self._reducer.state.cards.get(process.rank, {}).get("gpu.bus_id") or "")

    def steps_of(self, session: int) -> tuple[int, int]:
        """For a process: (steps whose rows have arrived, steps that it has finished at least)."""
        return self._reducer.state.steps_of(session)

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        """Its step and newest heartbeat; (0, None) where another process has its rank by now."""
        ranks = self._reducer.state.ranks
        state = ranks[process.rank] if process.rank < len(ranks) else None
        return (
            (0, None) if state is None or state.session != process.session else (state.step, state.progress)
        )

    def note_death(self, now_ns: int) -> None:
        """A process has exited without a BYE: the other ranks are asked what they are doing."""
        self._stalls.note_death(now_ns, living_sessions(self._reducer))

    @property
    def known_sessions(self) -> Container[int]:
        """Sessions whose HELLO was received."""
        return self._reducer.state.sessions

    def report_recording(self, now_ns: int) -> None:
        """Report an error of the recording, once."""
        self._record.check()
        note = self._record.take_new_note()
        if note is not None:
            self.report(Event("recording", now_ns, -1, -1, {"note": note}), now_ns)

    def _take(self, received: Received, body: bytes, now_ns: int) -> None:
        rank, session = received.rank, received.session
        if session != self._session_of.get(rank) and not isinstance(received.message, Hello):
            hello = self._admission.returning(rank, session)
            if hello is not None:
                self._note(Received(now_ns, rank, session, 0, hello), now_ns)
                self.report(Event("rank_returned", now_ns, rank, -1, {"session": session}), now_ns)
        self._note(received, now_ns)
        self._keep(received, body)
        self._note_failure(received, now_ns)

    def _note(self, received: Received, now_ns: int) -> None:
        message, session = received.message, received.session
        if isinstance(message, Hello):
            self.world_size = message.world_size
            self._watch.forget(self._session_of.get(message.rank, 0))
            self._session_of[message.rank] = session
            if not self._watched and message.host not in self._hosts:
                self._hosts.add(message.host)
                self.report(Clock(now_ns, message.host, 0, SIMULATED_BOUND_NS), now_ns)
            if self._watched:
                process = RankProcess(session, message.rank, message.pid)
                self._watch.add(process, message.unix_ns / NS, now_ns)
        elif isinstance(message, Bye):
            self._watch.note_bye(session, left_group=message.reason == LEFT)
            self._admission.note_bye(received.rank, session)
        else:
            trains = isinstance(message, Steps)
            self._watch.note_message(session, now_ns, trains=trains)
            if trains:
                self._admission.note_bye(received.rank, session, sent=False)

    def _note_failure(self, received: Received, now_ns: int) -> None:
        """Note what decides which ranks are asked for evidence; called once the reducer has the message."""
        message = received.message
        if isinstance(message, Evidence):
            self._stalls.answered(received.session, message.number)
        elif isinstance(message, Bye) and message.reason not in WELL:
            self.note_death(now_ns)

    def recall(self, received: Received, now_ns: int) -> None:
        """Take a message from the recording of an earlier collector."""
        self._note(received, now_ns)
        if isinstance(received.message, Hello):
            self._admission.recall(received.message)
        self._record.recall(received)
        self._receiver.recall(received.session, received.seq)
        message = received.message
        if isinstance(message, Evidence):
            self._stalls.recall(received.session, message.number, now_ns)
        elif isinstance(message, Event):
            self._recall_event(message)
        self._feed(received)

    def _recall_event(self, event: Event) -> None:
        session = event.fields.get("session")
        if not isinstance(session, int):
            return
        if event.kind in ("lost_rank", "exit"):
            self._watch.forget(session)
        elif event.kind == "process":
            self._watch.recall_stopped(session, event.fields.get("state") == "stopped")

    def _keep(self, received: Received, body: bytes) -> None:
        self._record.add(received, body)
        self._feed(received)

    def _feed(self, received: Received) -> None:
        try:
            self._reducer.feed(received)
        except Exception:  # noqa: BLE001 - the recording has it: a later version may read it
            self._errors.note()
