"""What a replay shows of the parts of a recording that it has not read: marks, earlier history and events."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.event_log import KEPT
from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import LoggedEvent
from ddptop.frames.history import COLUMNS
from ddptop.frames.phrases import begin_phrase
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import BAD_WEIGHTS, ORDERLY_REASONS, Bye, Event, Hello, Run
from ddptop.recording import history as recorded_history
from ddptop.sources.player import Player

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Alert, Frame
    from ddptop.frames.history import History
    from ddptop.protocol.messages import Received
    from ddptop.recording.history import PastEvent
    from ddptop.recording.reader import Recording

REACHES_S = 1.0
"""Up to this length a gap between the recorded history and the part that was read counts as none."""


class Backfill:
    """The earlier history, for the charts. Not thread-safe.

    It is taken as the writer recorded it. What the writer did not record is read from the recording, once and
    in small parts.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._player: Player | None = None
        self._recorded: Mapping[str, Column] = recorded_history.join_pieces([])
        self._pieces = 0
        self._lacks = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be read."""
        return not self._lacks or (self._player is not None and self._player.at_end)

    def read_on(self, seconds: float) -> None:
        """Read for at most `seconds` seconds."""
        if self._player is None:
            # `sys.maxsize` rows: read from the start and in order, as only that gives the history.
            self._player = Player(self._recording, whole_rows=sys.maxsize)
            pasts = self._recording.history_pieces()
            if pasts:
                # Steps before the last recorded piece are in the pieces.
                self._player.jump_to(pasts[-1][0])
        self._player.read_on(self._recording.end_ns, until=time.monotonic() + seconds)

    def prepend_history(self, history: History) -> History:
        """The earlier history that is known by now, followed by `history`."""
        # No step is complete yet, so that there is nothing to complete.
        if not len(history.step):
            return history
        begin_s = float(history.time_s[0])
        recorded = self._by_writer()
        pieces = [recorded]
        end_s = float(recorded["time_s"][-1]) if len(recorded["time_s"]) else -math.inf
        if self._player is None:
            self._lacks = begin_s - max(end_s, 0.0) > REACHES_S
            return _join_history(pieces, history, begin_s)
        read = self._read_history(self._player, end_s)
        self._lacks = read is None or float(read.time_s[-1]) < begin_s
        if read is not None and not self._lacks:
            pieces.append({name: getattr(read, name) for name in COLUMNS})
        return _join_history(pieces, history, begin_s)

    def _by_writer(self) -> Mapping[str, Column]:
        pasts = self._recording.history_pieces()
        if len(pasts) > self._pieces:
            self._recorded = recorded_history.join_pieces(
                [self._recorded, *(piece.points for _, piece in pasts[self._pieces :])]
            )
            self._pieces = len(pasts)
        return self._recorded

    @staticmethod
    def _read_history(player: Player, end_s: float) -> History | None:
        """The history read by `player`; None: nothing after the recorded history, which ends at `end_s`.

        Steps may have ended before the run's own first moment: clocks of ranks and collector are set by hand
        or by NTP, so a time of 0 means nothing here.
        """
        read = player.reducer.state.history.since(0) if player.reducer.state.history_end else None
        return read if read is not None and float(read.time_s[-1]) > end_s else None


def _join_history(pieces: list[Mapping[str, Column]], history: History, begin_s: float) -> History:
    """All points in order of time, none of them twice. If two pieces overlap, the later piece is taken."""
    starts = [float(piece["time_s"][0]) if len(piece["time_s"]) else begin_s for piece in pieces]
    columns: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    for number, piece in enumerate(pieces):
        # A later piece is more exact, as it was read and not recorded in groups.
        until = min([begin_s, *starts[number + 1 :]])
        count = int(np.searchsorted(piece["time_s"], until))
        for name, kept in columns.items():
            kept.append(piece.get(name, piece["step_ms"])[:count])  # what is recorded are single steps
    whole = {name: np.concatenate([*kept, getattr(history, name)]) for name, kept in columns.items()}
    return replace(history, start=0, early=0, **whole)


class RecordedEvents:
    """All events that the run's collector recorded, in order of time. Not thread-safe."""

    def __init__(self) -> None:
        self._events: list[LoggedEvent] = []
        self._until_s = float("-inf")
        """The collector has recorded everything up to here."""

    def add_events(self, events: Iterable[PastEvent], started_s: float, until_s: float) -> None:
        """Events up to `until_s`; `started_s`: when the run began. Seconds since 1970."""
        self._events += [LoggedEvent(started_s + event.at_s, *event[1:]) for event in events]
        # An event may be logged after one that happened later.
        self._events.sort(key=_event_time_s)
        self._until_s = until_s

    def events_until(self, now_s: float, logged: Sequence[LoggedEvent]) -> tuple[LoggedEvent, ...]:
        """The last events at `now_s`, oldest first; `logged`: those of a reducer that began shortly before.

        Such a reducer reports again what began long before, and nothing that had ended by then. So the
        collector's events are taken for the time that it has recorded, the reducer's for the time after it.
        Of events that both have (from lasting messages: a rank joined) the reducer's is taken: it may cover
        more ranks.
        """
        recorded = self._events[: bisect_right(self._events, now_s, key=_event_time_s)]
        keys = {_event_key(event) for event in recorded}
        own_events = [event for event in logged if event.unix_s > self._until_s or _event_key(event) in keys]
        # An event that both have is taken from the reducer: it may cover more ranks.
        replaced = {_event_key(event) for event in own_events}
        return tuple(
            sorted(
                [*own_events, *(event for event in recorded if _event_key(event) not in replaced)],
                key=_event_time_s,
            )[-KEPT:]
        )


def _event_time_s(event: LoggedEvent) -> float:
    return event.unix_s


def _event_key(event: LoggedEvent) -> tuple[float, str]:
    return round(event.unix_s, 3), event.kind


STALL = "stall"
"""The mark of a stall: ranks were asked for evidence."""

MAX_MARKS = 500
"""Marks of a recording that are kept: more than a bar has cells."""

QUIET = frozenset(
    (
        "rebuild",
        "joined",
        "timer",
        "phase_begins",
        "phase_ends",
        "saved",
        "evaluated",
        "compiled",
        BAD_WEIGHTS,
        "device",
        "analyser",
        "ras",
    )
)
"""Kinds of events that every healthy run has, or that belong to a stall or a NaN, which have their mark."""

SAME_STALL_S = 90.0
"""Ranks are asked every 60 s while a stall lasts: answers closer than this belong to the same one."""


def mark_kind(received: Received) -> str | None:
    """The kind of mark that a message leaves, if any."""
    message = received.message
    if isinstance(message, Event):
        return None if message.kind in QUIET or _is_well(message) else message.kind
    # Number 0 is what a rank sends at its exit, which has a mark of its own.
    if isinstance(message, Evidence) and message.number > 0:
        return STALL
    if isinstance(message, Hello) and message.incarnation > 0:
        return "restart"
    if isinstance(message, Bye) and message.reason not in ORDERLY_REASONS:
        return "failed_rank"
    if isinstance(message, Run) and message.state == "failed":
        return "failed"
    return None


def _is_well(event: Event) -> bool:
    """A process that ended with code 0 or after it had left its group, or runs again."""
    if event.kind == "exit":
        return not any(map(event.fields.get, ("exit_code", "signal"))) or bool(event.fields.get("left"))
    return event.kind == "process" and event.fields.get("state") != "stopped"


class RecordedPast:
    """Marks and events of a whole recording, without reading its steps. Not thread-safe.

    They come from the messages that stay valid and from what the run's own collector recorded.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.marks = Marks()
        self._events = RecordedEvents()
        self._marked_ns = self._pieces = 0
        self._recorded_ns = 0
        """Up to here the marks are those that the run's own collector recorded."""

    def read_new(self) -> None:
        """Read what the recording has by now."""
        recording = self._recording
        self.marks.add_messages(recording.lasting_messages(from_ns=self._marked_ns), recording.start_ns)
        self._marked_ns = recording.end_ns + 1
        pieces = recording.history_pieces()
        started_s = recording.run.unix_ns / NS
        for end_ns, piece in pieces[self._pieces :]:
            self.marks.add_recorded(piece.marks)
            if piece.events is not None:
                until_s = started_s + (end_ns - recording.run.monotonic_ns) / NS
                self._events.add_events(piece.events, started_s, until_s)
        self._pieces = len(pieces)
        self._recorded_ns = pieces[-1][0] if pieces else 0

    def complete_frame(self, frame: Frame, player: Player) -> Frame:
        """The player's frame with all events of the run, also where the player has not read all of it."""
        # The collector has seen the run from the start; after a jump a reducer reports things again.
        unix_s = player.reducer.state.unix_s
        recorded_s = unix_s(self._recorded_ns)
        fresh = [event for event in frame.events if event.unix_s > recorded_s]
        self.marks.add_events(fresh, unix_s(self._recording.start_ns))
        # A reducer that has seen everything has all events itself.
        if player.from_start:
            return frame
        events = self._events.events_until(frame.unix_s, frame.events)
        alerts = (
            frame.alerts
            if player.recalls
            else tuple(_with_recorded_begin(alert, events) for alert in frame.alerts)
        )
        return replace(frame, events=events, alerts=alerts)


def _with_recorded_begin(alert: Alert, events: Sequence[LoggedEvent]) -> Alert:
    """The alert, which a reducer has made that began shortly before, with the begin that was recorded.

    An earlier version recorded no more of it than this event."""
    if not condition_of(alert.kind).begin_is_event:
        return alert
    kinds = (alert.kind, f"{alert.kind}_end")
    # The newest begin or end of this kind: an end means that the alert has begun again since.
    last = next((event for event in reversed(events) if event.kind in kinds), None)
    if last is None or last.kind != alert.kind or last.unix_s >= alert.since_s:
        return alert
    if last.rank not in (None, alert.rank):
        return alert
    alert = replace(alert, since_s=last.unix_s)
    if alert.kind == "replica_drift":
        return replace(alert, step=last.step, message=last.message)
    if alert.kind == "nan" and alert.step is not None and last.step is not None:
        # The sentence has the step that this reducer saw first; the recorded one is earlier.
        last_finite_step = alert.evidence.get("last_finite_step")
        seen = begin_phrase(alert.step, last_finite_step if isinstance(last_finite_step, int) else -1)
        begin = last.message.rpartition(" since ")[2]
        message = alert.message.replace(f"since {seen}", f"since {begin}")
        message = message.replace(f"from {seen} to", f"from {begin} to")
        message = message.replace(f"at {seen}", f"from {begin} to {alert.step:,}")
        # Where it began is in the event's text alone.
        evidence = {name: value for name, value in alert.evidence.items() if name != "last_finite_step"}
        return replace(alert, step=last.step, message=message, evidence=evidence)
    return alert


class Marks:
    """All marks, as moments. Shares of the duration are computed when they are asked for: a recording may
    grow."""

    def __init__(self) -> None:
        self._moments: dict[tuple[float, str], None] = {}
        self._stalls: list[int] = []
        """Seconds at which there was a sign of a stall, in order."""

    def add_messages(self, messages: Iterable[Received], start_ns: int) -> None:
        """Marks that messages of the recording leave."""
        for received in messages:
            kind = mark_kind(received)
            if kind is not None:
                self._add_mark((received.t_ns - start_ns) / 1e9, kind)

    def add_events(self, events: Iterable[LoggedEvent], start_unix_s: float) -> None:
        """Marks of what the analysis has logged: a straggler, a loss that is no number."""
        for event in events:
            if event.severity != "info":
                self._add_mark(event.unix_s - start_unix_s, event.kind)

    def add_recorded(self, marks: Iterable[tuple[float, str]]) -> None:
        """Marks that the run's own collector recorded: seconds since the run began, and the kind."""
        for at_s, kind in marks:
            self._add_mark(at_s, kind)

    def _add_mark(self, at_s: float, kind: str) -> None:
        if kind == STALL and not self._begins_stall(int(at_s)):
            return
        # The same thing, reported by two sources or of many ranks at once, is one mark.
        if len(self._moments) < MAX_MARKS:
            self._moments[round(at_s, 1), kind] = None

    def _begins_stall(self, at_s: int) -> bool:
        """Whether this is the first sign of a stall; notes it."""
        place = bisect_left(self._stalls, at_s)
        near = [
            second
            for second in self._stalls[max(0, place - 1) : place + 1]
            if abs(second - at_s) < SAME_STALL_S
        ]
        # Kept in order, since the next sign is compared with its neighbours only.
        if at_s not in near:
            self._stalls.insert(place, at_s)
        return not near

    def marks_by_share(self, duration_s: float) -> tuple[tuple[float, str], ...]:
        """(share of the duration, kind), in order of time."""
        # A recording of a single moment has no length.
        whole = max(duration_s, 1e-9)
        return tuple((min(1.0, max(0.0, mark_s / whole)), kind) for mark_s, kind in sorted(self._moments))
