"""Marks for the replay bar: what happened in a recording, and where."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ddptop.protocol.evidence import Evidence
from ddptop.protocol.messages import WELL, Bye, Event, Hello, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.frames.frame import Happening
    from ddptop.protocol.messages import Received

STALL = "stall"
"""The mark of ranks that were asked for evidence: the step had stood still."""

MAX_MARKS = 500
"""More than a bar has cells."""

QUIET = frozenset(("rebuild", "joined", "timer", "phase_begins", "phase_ends", "device", "analyser", "ras"))
"""Kinds of events that every healthy run has, or that belong to a stall, which has its mark."""

SAME_STALL_S = 90.0
"""Ranks are asked anew every 60 s while a stall lasts: answers closer than this tell of the same one."""


def mark_of(received: Received) -> str | None:
    """The kind of mark that a message leaves, if any."""
    message = received.message
    if isinstance(message, Event):
        return None if message.kind in QUIET or _is_well(message) else message.kind
    if isinstance(message, Evidence) and message.number > 0:
        return STALL
    if isinstance(message, Hello) and message.incarnation > 0:
        return "restart"
    if isinstance(message, Bye) and message.reason not in WELL:
        return "failed_rank"
    if isinstance(message, Run) and message.state == "failed":
        return "failed"
    return None


def _is_well(event: Event) -> bool:
    """A process that ended with code 0 or after it had left its group, or runs again."""
    if event.kind == "exit":
        return not any(map(event.fields.get, ("exit_code", "signal"))) or bool(event.fields.get("left"))
    return event.kind == "process" and event.fields.get("state") != "stopped"


class Marks:
    """All marks, as moments; shares of the duration are computed when asked, for a recording may grow."""

    def __init__(self) -> None:
        self._moments: dict[tuple[float, str], None] = {}
        self._stalls: list[int] = []
        """Seconds at which there was a sign of a stall, in order."""

    def add_messages(self, messages: Iterable[Received], start_ns: int) -> None:
        """Marks that messages of the recording leave."""
        for received in messages:
            kind = mark_of(received)
            if kind is not None:
                self._add((received.t_ns - start_ns) / 1e9, kind)

    def add_happenings(self, happenings: Iterable[Happening], start_unix_s: float) -> None:
        """Marks of what the analysis found: a straggler, a loss that is no number."""
        for happening in happenings:
            if happening.severity != "info":
                self._add(happening.unix_s - start_unix_s, happening.kind)

    def add_found(self, marks: Iterable[tuple[float, str]]) -> None:
        """Marks that the run's own collector wrote down: seconds since the run began, and the kind."""
        for at_s, kind in marks:
            self._add(at_s, kind)

    def _add(self, at_s: float, kind: str) -> None:
        if kind == STALL and not self._begins(int(at_s)):
            return
        # The same thing from two roads, or of many ranks at once, is one mark.
        if len(self._moments) < MAX_MARKS:
            self._moments[round(at_s, 1), kind] = None

    def _begins(self, at_s: int) -> bool:
        """Whether this is the first sign of a stall; notes it."""
        at = bisect_left(self._stalls, at_s)
        near = [
            second for second in self._stalls[max(0, at - 1) : at + 1] if abs(second - at_s) < SAME_STALL_S
        ]
        if at_s not in near:
            self._stalls.insert(at, at_s)
        return not near

    def shares(self, duration_s: float) -> tuple[tuple[float, str], ...]:
        """(share of the duration, kind), in order of time."""
        whole = max(duration_s, 1e-9)
        return tuple((min(1.0, max(0.0, at / whole)), kind) for at, kind in sorted(self._moments))
