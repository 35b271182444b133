"""What comes in: from the link into the recording and the reducer, and back to the ranks as acks.

The group's history for the recording: a few points of many steps, and the ranks' best times.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ddptop.analysis.reducer import Reducer
from ddptop.collector.admission import Admission, Mishaps
from ddptop.collector.record import Record
from ddptop.collector.stall_watch import StallWatch, living_sessions
from ddptop.frames.frame import History
from ddptop.host.exits import RankProcess
from ddptop.host.rank_processes import ProcessWatch
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.messages import LEFT, WELL, Bye, Clock, Event, Hello, Message, Received, Scalar, Steps
from ddptop.recording.history import GROUP, Found, Past, joined, picked
from ddptop.transport.receiver import AckedReceiver

MOST_COARSE = 256
"""A group of 16,384 steps: the history in memory holds several of them."""

LOST = "lost_records"
"""The mark of a moment by which records had been lost since the moment before."""

COLUMNS = tuple(field.name for field in fields(History) if field.name != "start")


class PastPoints:
    """Tells the writer what has been added to the history since it last asked."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._cursor: int | None = None
        self._lost = 0
        self._marked_s = 0.0
        self._told: set[tuple[float, str]] = set()

    def take(self, *, final: bool, coarser: int = 1) -> Past | None:
        """New points in whole groups of steps, or with `final` all of them; None where there are none.

        `coarser`: in how many times as many steps as usual there shall be one point.
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
        return Past(joined(groups), np.asarray(best, np.float64), marks, self._found())

    def _found(self) -> tuple[Found, ...]:
        """What happened since the last time, in words."""
        there = self._reducer.state.log.all()
        fresh = [one for one in there if (one.unix_s, one.kind) not in self._told]
        self._told = {(one.unix_s, one.kind) for one in there}
        start_s = self._reducer.state.started_s
        return tuple(
            Found(
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
        """What the analysis found since the last time, and that records were lost."""
        start_s = self._reducer.state.started_s
        found = [
            (one.unix_s - start_s, one.kind)
            for one in self._reducer.state.log.all()
            if one.severity != "info" and one.unix_s - start_s > self._marked_s
        ]
        if found:
            self._marked_s = max(at for at, _ in found)
        lost = sum(member.lost_records for member in self._reducer.state.ranks)
        if lost > self._lost:
            found.append((now_s, LOST))
        self._lost = lost
        return tuple(found)


REPORT_REFUSED_NS = 10 * NS
"""Least time between two counts of refused messages: who sends them in a loop does not fill the recording."""

MADE_UP_BOUND_NS = 50_000
"""Made-up hosts have this machine's clock; the bound is what a network would leave of it."""


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
        """0: no rank has said it yet."""
        self._mishaps = Mishaps()
        self._reported_refused = (0, 0)
        self._report_refused_ns = 0
        record.set_past(PastPoints(reducer))

    def drain(self, now_ns: int) -> int:
        """Take all that has arrived; returns the number of messages."""
        arrived = self._receiver.drain(now_ns)
        for received, body in arrived:
            try:
                self._take(received, body, now_ns)
            except Exception:  # noqa: BLE001  # whatever a message sets off, it costs that message alone
                self._mishaps.note()
        return len(arrived)

    def report_refused(self, now_ns: int, *, final: bool = False) -> None:
        """Say how many messages were refused or failed, where that has changed since it was last said."""
        counts = (self._receiver.refused, self._mishaps.count)
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
        """A message of the collector's own, about the group or about one rank's process."""
        rank, session = (about.rank, about.session) if about else (-1, 0)
        received = Received(now_ns, rank, session, 0, message)
        if keep:
            self._keep(received, encode(message))
        else:
            self._feed(received)

    def bus_id_of(self, process: RankProcess) -> str:
        """PCI bus id of the GPU that a rank says it uses; empty where it has none."""
        return str(self._reducer.state.cards.get(process.rank, {}).get("gpu.bus_id") or "")

    def _take(self, received: Received, body: bytes, now_ns: int) -> None:
        rank, session = received.rank, received.session
        if session != self._session_of.get(rank) and not isinstance(received.message, Hello):
            hello = self._admission.returning(rank, session)
            if hello is not None:
                self._note(Received(now_ns, rank, session, 0, hello), now_ns)
                self.report(Event("rank_returned", now_ns, rank, -1, {"session": session}), now_ns)
        self._note(received, now_ns)
        self._keep(received, body)
        self._note_trouble(received, now_ns)

    def _note(self, received: Received, now_ns: int) -> None:
        message, session = received.message, received.session
        if isinstance(message, Hello):
            self.world_size = message.world_size
            self._watch.forget(self._session_of.get(message.rank, 0))
            self._session_of[message.rank] = session
            if not self._watched and message.host not in self._hosts:
                self._hosts.add(message.host)
                self.report(Clock(now_ns, message.host, 0, MADE_UP_BOUND_NS), now_ns)
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
                self._admission.note_bye(received.rank, session, said=False)

    def _note_trouble(self, received: Received, now_ns: int) -> None:
        """After the reducer has it: what matters to those who ask the ranks."""
        message = received.message
        if isinstance(message, Evidence):
            self._stalls.answered(received.session, message.number)
        elif isinstance(message, Bye) and message.reason not in WELL:
            self._stalls.note_death(now_ns, living_sessions(self._reducer))

    def recall(self, received: Received, now_ns: int) -> None:
        """Take a message out of the recording of a collector before this one."""
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
        except Exception:  # noqa: BLE001  # the recording has it: a later version may know better
            self._mishaps.note()
