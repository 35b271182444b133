"""The log of events. An event on many ranks at about the same time is one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import LoggedEvent
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from ddptop.protocol.vocabulary import Severity

KEPT = 100
UNORDERED = frozenset({"warning", "compiling"})
"""Kinds of events that one rank may report several of, in any order."""
TOGETHER_S = 30.0
"""Ranks join, restart and end within seconds of each other. Events further apart get separate lines."""


@dataclass(slots=True)
class _Entry:
    unix_s: float
    kind: str
    severity: Severity
    ranks: list[int]
    step: int | None
    text: str
    incarnation: int
    host: str | None = None
    world: int = 0
    counted: set[int] = field(default_factory=set)


class EventLog:
    """The last hundred events."""

    def __init__(self) -> None:
        self.kept = KEPT
        """Most events; an export keeps more."""
        self._entries: list[_Entry] = []
        self.incarnation = 0
        """Elastic restarts so far; kept with each event that is added."""
        self.changes = 0
        """Events added so far, and ranks added to them."""

    def add(
        self,
        unix_s: float,
        kind: str,
        message: str,
        *,
        severity: Severity | None = None,
        rank: int | None = None,
        step: int | None = None,
        host: str | None = None,
    ) -> None:
        """Add an event. `message` is its whole text; `severity`: None, as declared for its kind."""
        ranks = [] if rank is None else [rank]
        severity = severity or condition_of(kind).severity
        self._put(_Entry(unix_s, kind, severity, ranks, step, message, self.incarnation, host))

    def add_rank(
        self,
        unix_s: float,
        kind: str,
        text: str,
        rank: int,
        world: int,
        *,
        severity: Severity | None = None,
        step: int | None = None,
    ) -> None:
        """Add an event of one rank. Several ranks with the same `text` (`joined`) share one line."""
        same = (text, world, self.incarnation)
        for entry in reversed(self._entries):
            if entry.kind != kind or unix_s - entry.unix_s > TOGETHER_S:
                continue
            if (entry.text, entry.world, entry.incarnation) == same and rank not in entry.counted:
                entry.ranks.append(rank)
                entry.counted.add(rank)
                self.changes += 1
                return
            if kind not in UNORDERED:
                break
        severity = severity or condition_of(kind).severity
        self._put(_Entry(unix_s, kind, severity, [rank], step, text, self.incarnation, None, world, {rank}))

    def _put(self, entry: _Entry) -> None:
        self.changes += 1
        self._entries.append(entry)
        # Of thousands many at once: to look for the oldest one each time took most of an export.
        if len(self._entries) > self.kept + self.kept // 1000 * 250:
            kept = {id(each_entry) for each_entry in self._newest()}
            self._entries = [each_entry for each_entry in self._entries if id(each_entry) in kept]

    def _newest(self) -> list[_Entry]:
        """The newest entries by time, not by order of arrival: a batch of steps is about an earlier time."""
        return sorted(self._entries, key=lambda entry: entry.unix_s)[-self.kept :]

    def all(self) -> tuple[LoggedEvent, ...]:
        """All events, oldest first."""
        return tuple(
            LoggedEvent(
                e.unix_s, e.kind, e.severity, _only(e.ranks), e.step, _message(e), e.incarnation, e.host
            )
            for e in self._newest()
        )


def _only(ranks: list[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None


def _message(entry: _Entry) -> str:
    if not entry.world:
        return entry.text
    if entry.kind == "restart":
        return f"{entry.text}: {ranks_phrase(entry.ranks, entry.world)}"
    many = len(entry.ranks) > 1 and entry.text.startswith("was ")
    text = "were" + entry.text[len("was") :] if many else entry.text
    return f"{ranks_phrase(entry.ranks, entry.world)}{'' if text.startswith(':') else ' '}{text}"
