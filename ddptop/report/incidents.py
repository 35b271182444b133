"""Stalls, deaths and troubles, as they stood when they stood: the end of a run shows only some of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ddptop.frames.frame import Alert
from ddptop.protocol.evidence import Evidence
from ddptop.report.content import Standstill

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.frames.frame import Frame, Happening
    from ddptop.frames.stall import Death
    from ddptop.protocol.messages import Received
    from ddptop.protocol.vocabulary import AlertKind

NS = 1_000_000_000

EVERY_NS = NS
"""Between two questions whether the step stands."""

PATIENCE = 10
"""A stall is looked at again after a tenth of its age: the first minute closely, an hour's end roughly."""

MOST_BETWEEN_NS = 60 * NS

TOLD_ELSEWHERE = frozenset({"straggler", "stall"})
"""Kinds of alerts that the report has a place of their own for."""

PASSING = frozenset({"nan", "replica_drift", "interruption"})
"""Kinds of happenings that tell of a trouble which may be over before anybody looks."""

LOG_FULL = 100
"""The reducer's log drops its oldest happening when it holds more than this."""

SAME_S = 1.0
"""Two stalls of a group are further apart than this."""


class Incidents:
    """Watches the reducer while it is fed."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.stalls: list[Standstill] = []
        self._deaths: dict[tuple[int, int | None], Death] = {}
        self._troubles: dict[tuple[str, int | None, int | None], Alert] = {}
        self._older: list[Happening] = []
        self._newer: tuple[Happening, ...] = ()
        self._unseen = 0
        self._asked_ns = self._seen_ns = 0
        self._standing_ns: int | None = None

    @property
    def deaths(self) -> tuple[Death, ...]:
        """In order of time; of those that belong together the cause first."""
        return tuple(self._deaths.values())

    @property
    def troubles(self) -> tuple[Alert, ...]:
        """Alerts that held at some time, in order of time; also such as came and went between two looks."""
        found = [*self._troubles.values()]
        known: set[tuple[str, float]] = {
            (alert.kind, alert.since_s if alert.step is None else alert.step) for alert in found
        }
        for one in self.happenings:
            key = (one.kind, one.unix_s if one.step is None else one.step)
            if one.kind in PASSING and key not in known:
                known.add(key)
                kind = cast("AlertKind", one.kind)
                found.append(Alert(kind, one.severity, one.rank, one.step, one.unix_s, one.message))
        return tuple(sorted(found, key=lambda alert: alert.since_s))

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """All of them, oldest first."""
        self._read_log()
        return (*self._older, *self._newer)

    def after(self, received: Received, now_ns: int) -> None:
        """A message was fed."""
        self._unseen += 1
        if self._unseen >= LOG_FULL // 2:
            self._read_log()
        if isinstance(received.message, Evidence):
            self._seen_ns = 0
        if now_ns - self._asked_ns >= EVERY_NS:
            self._asked_ns = now_ns
            self._look_for_stall(now_ns)

    def see(self, frame: Frame) -> None:
        """Take note of what a frame tells."""
        for death in frame.deaths:
            whose = (death.rank, death.position.pid)
            self._deaths.pop(whose, None)  # the newest frame knows best in which order
            self._deaths[whose] = death
        for alert in frame.alerts:
            if alert.kind in TOLD_ELSEWHERE:
                continue
            key = (alert.kind, alert.rank, alert.step) if alert.kind == "nan" else (alert.kind, None, None)
            known = self._troubles.get(key)
            if known is not None and alert.kind in PASSING:
                continue  # how it began says more than how it went on
            since_s = alert.since_s if known is None else min(known.since_s, alert.since_s)
            self._troubles[key] = replace(alert, since_s=since_s)

    def _look_for_stall(self, now_ns: int) -> None:
        since_ns = self._reducer.stalled_since(now_ns)
        if since_ns is None:
            self.end_stall(now_ns)
            return
        self._standing_ns = since_ns
        if now_ns - self._seen_ns >= min(MOST_BETWEEN_NS, (now_ns - since_ns) // PATIENCE):
            self._seen_ns = now_ns
            self.see_stall(self._reducer.frame(now_ns))

    def see_stall(self, frame: Frame) -> None:
        """Remember the stall that a frame shows: the newest verdict, but never a question for an answer."""
        self.see(frame)
        found = _standstill(frame)
        if found is None:
            return
        before = self.stalls[-1] if self.stalls else None
        if before is None or abs(before.since_s - found.since_s) > SAME_S:
            self.stalls.append(found)
        elif found.kind not in ("", "asking") or before.kind in ("", "asking"):
            self.stalls[-1] = found
        else:
            self.stalls[-1] = replace(before, lasted_s=found.lasted_s)

    def end_stall(self, now_ns: int) -> None:
        """The step moves again, or is out of sight."""
        if self._standing_ns is None or not self.stalls:
            return
        last = self.stalls[-1]
        running = [member for member in self._reducer.state.ranks if member.hello is not None]
        moved_ns = max((member.moved_ns for member in running), default=now_ns)
        until_s = max(self._reducer.state.unix_s(min(now_ns, moved_ns)), last.since_s + last.lasted_s)
        self._standing_ns = None
        if self._reducer.state.run is not None and self._reducer.state.run.state != "live":
            return  # it ended so
        self.stalls[-1] = replace(last, until_s=until_s, lasted_s=max(0.0, until_s - last.since_s))

    def _read_log(self) -> None:
        self._unseen = 0
        newer = self._reducer.state.log.all()
        if len(newer) >= LOG_FULL:
            self._older += [one for one in self._newer if one.unix_s < newer[0].unix_s]
        self._newer = newer


def _standstill(frame: Frame) -> Standstill | None:
    """The stall of a frame; where no verdict is given, what its alert says."""
    stall = frame.stall
    if stall is not None:
        return Standstill(
            kind=stall.kind,
            since_s=stall.since_s,
            until_s=None,
            lasted_s=max(0.0, frame.unix_s - stall.since_s),
            step=stall.step,
            sentence=stall.sentence,
            detail=stall.detail,
            ranks=stall.ranks,
            waiting=stall.waiting,
            positions=stall.positions,
        )
    alert = next((alert for alert in frame.alerts if alert.kind == "stall"), None)
    if alert is None:
        return None
    lasted_s = max(0.0, frame.unix_s - alert.since_s)
    return Standstill("", alert.since_s, None, lasted_s, alert.step, alert.message, (), (), (), ())
