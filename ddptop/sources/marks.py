"""Marks for the replay bar: what happened in a recording, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.protocol.messages import Bye, Event, Hello, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.analysis.frames import Happening
    from ddptop.protocol.messages import Received

MAX_MARKS = 500
"""More than a bar has cells."""

QUIET = frozenset(("rebuild", "joined"))
"""Kinds of events that every healthy run has."""


def mark_of(received: Received) -> str | None:
    """The kind of mark that a message leaves, if any."""
    message = received.message
    if isinstance(message, Event):
        return None if message.kind in QUIET else message.kind
    if isinstance(message, Hello) and message.incarnation > 0:
        return "restart"
    if isinstance(message, Bye) and message.reason != "finished":
        return "failed_rank"
    if isinstance(message, Run) and message.state == "failed":
        return "failed"
    return None


class Marks:
    """All marks, as moments; shares of the duration are computed when asked, for a recording may grow."""

    def __init__(self) -> None:
        self._moments: dict[tuple[float, str], None] = {}

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

    def _add(self, at_s: float, kind: str) -> None:
        # The same thing from two roads, or of many ranks at once, is one mark.
        if len(self._moments) < MAX_MARKS:
            self._moments[round(at_s, 1), kind] = None

    def shares(self, duration_s: float) -> tuple[tuple[float, str], ...]:
        """(share of the duration, kind), in order of time."""
        whole = max(duration_s, 1e-9)
        return tuple((min(1.0, max(0.0, at / whole)), kind) for at, kind in sorted(self._moments))
