"""Replica drift: DDP keeps the parameters of all ranks equal; checksums tell when they are not.

Each check covers some pieces of a model on all ranks of its process group. Of a piece on which they differ
the value that more than half of the ranks have is right; without such a majority nobody is blamed.

One check of a model's replicas: what the ranks said of the same pieces after the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from ddptop.analysis.event_log import EventLog
    from ddptop.protocol.messages import Replica, Scalar

MAX_LINES = 64
"""Different answers to one check that are kept: a healthy group gives one."""


class Opinion(NamedTuple):
    """What the ranks say of one piece."""

    told: frozenset[int]
    """Ranks that said something of it: each takes as many pieces as its budget allows."""
    odd: tuple[int, ...]
    """Ranks without the majority's value; all that told where there is none; empty where all are equal."""
    certain: bool
    """There is a majority."""


@dataclass(slots=True)
class _Line:
    """Ranks that agree as far as each has told, with the longest answer among them."""

    values: tuple[int, ...]
    counts: dict[int, int]
    """Rank -> how many pieces it told."""

    def takes(self, rank: int, values: tuple[int, ...]) -> bool:
        """Add the rank if it agrees."""
        common = min(len(values), len(self.values))
        if values[:common] != self.values[:common]:
            return False
        self.counts[rank] = len(values)
        if len(values) > common:
            self.values = values
        return True


@dataclass(slots=True)
class Check:
    """The answers so far."""

    pieces: int
    heard: set[int] = field(default_factory=set)
    lines: list[_Line] = field(default_factory=list)
    overflow: set[int] = field(default_factory=set)
    """Ranks whose answers differed from so many others that they are not kept."""

    def add(self, rank: int, values: tuple[int, ...]) -> None:
        """A rank's answer."""
        self.heard.add(rank)
        if any(line.takes(rank, values) for line in self.lines):
            return
        if len(self.lines) < MAX_LINES:
            self.lines.append(_Line(values, {rank: len(values)}))
        else:
            self.overflow.add(rank)

    def complete(self, group: tuple[int, ...], present: Set[int]) -> bool:
        """Every rank of the group (empty: all) that is there has answered."""
        if not group:
            return len(self.heard) >= len(present) and present <= self.heard
        return all(rank in self.heard or rank not in present for rank in group)

    def opinions(self) -> Iterator[Opinion]:
        """Of each piece, the check's first one first."""
        least = min(min(line.counts.values()) for line in self.lines)
        everybody = frozenset(self.heard)
        for i in range(max(len(line.values) for line in self.lines)):
            if i < least and len(self.lines) == 1:
                yield Opinion(everybody, (), True)
            else:
                yield self._of(i)

    def _of(self, i: int) -> Opinion:
        held: dict[int, list[int]] = {}
        for line in self.lines:
            ranks = [rank for rank, count in line.counts.items() if count > i]
            if ranks:
                held.setdefault(line.values[i], []).extend(ranks)
        told = frozenset(rank for ranks in held.values() for rank in ranks) | self.overflow
        if len(held) == 1 and not self.overflow:
            return Opinion(told, (), True)
        most = max(held, key=lambda value: len(held[value]))
        certain = 2 * len(held[most]) > len(told)
        odd = {rank for value, ranks in held.items() if not certain or value != most for rank in ranks}
        return Opinion(told, tuple(sorted(odd | self.overflow)), certain)


OPEN_CHECKS = 8
"""Checks of one model that wait for ranks; the ranks of a step report within a second or so of each other."""

MAX_PIECES = 4096
"""Pieces of one model that are remembered."""


class _Key(NamedTuple):
    """A model of the ranks that reduce its gradients together; no ranks: all."""

    model: int
    ranks: tuple[int, ...]


class _Equal(NamedTuple):
    """The last check that saw a piece equal on the ranks that told it, and the last one on all ranks."""

    step: int
    told: frozenset[int]
    full: int | None

    def of(self, ranks: tuple[int, ...]) -> int | None:
        """The last check that saw it equal with these ranks among those that told."""
        return self.step if self.told.issuperset(ranks) else self.full


@dataclass(frozen=True, slots=True)
class Drift:
    """A piece on which the ranks differ."""

    ranks: tuple[int, ...]
    """Those without the majority's value; all of them where there is no majority."""
    certain: bool
    """There is a majority."""
    since: int
    """The check that first saw it."""
    equal: int | None
    """The last check that saw the piece equal; None: never."""
    since_s: float


class Replicas:
    """The checks under way and the pieces that differ. Depends on the order of messages alone."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.restart(0)

    def restart(self, world: int) -> None:
        """Other processes: nothing is known of their parameters."""
        self._open: dict[_Key, dict[tuple[int, int], Check]] = {}
        self._equal: dict[_Key, dict[int, _Equal]] = {}
        self._drifts: dict[tuple[_Key, int], Drift] = {}
        self._newest: dict[tuple[_Key, int], int] = {}
        self._pieces: dict[_Key, int] = {}
        self._world = world

    def take(
        self, rank: int, replica: Replica, group: tuple[int, ...], present: Set[int], unix_s: float
    ) -> None:
        """`group`: ranks that hold this model, empty: all. `present`: ranks that have not ended or joined."""
        if not 0 < replica.pieces <= MAX_PIECES or not 0 < len(replica.values) <= replica.pieces:
            return
        key = _Key(replica.model, group)
        if self._pieces.setdefault(key, replica.pieces) != replica.pieces:
            self._forget(key, replica.pieces)
        checks = self._open.setdefault(key, {})
        place = (replica.step, replica.first % replica.pieces)
        check = checks.setdefault(place, Check(replica.pieces))
        if rank in check.heard:
            return
        check.add(rank, replica.values)
        expected = present & {*group} if group else present
        if check.complete(group, present):
            # Words of a rank come in order: what an older check still lacks will never come.
            for older in sorted(one for one in checks if one[0] <= replica.step):
                self._judge(key, checks.pop(older), older, expected, unix_s)
        elif len(checks) > OPEN_CHECKS:
            oldest = min(checks)
            self._judge(key, checks.pop(oldest), oldest, expected, unix_s)

    def alert(self) -> Alert | None:
        """Lasts until the ranks agree again on every piece, or restart."""
        if not self._drifts:
            return None
        (key, _), first = min(self._drifts.items(), key=lambda one: (one[1].since, one[0]))
        evidence: dict[str, Scalar] = {
            "model": key.model,
            "since_step": first.since,
            "equal_step": first.equal,
            "pieces": len(self._drifts),
            "ranks": len(first.ranks),
            "majority": first.certain,
        }
        rank = first.ranks[0] if first.certain else None
        text = drift_words(first, self._world)
        return Alert("replica_drift", "critical", rank, first.since, first.since_s, text, evidence)

    def _judge(
        self, key: _Key, check: Check, place: tuple[int, int], expected: Set[int], unix_s: float
    ) -> None:
        """Compare what the ranks said, piece by piece, where at least more than half have said it."""
        step, first = place
        before = len(self._drifts)
        equal = self._equal.setdefault(key, {})
        for i, found in enumerate(check.opinions()):
            piece = (first + i) % check.pieces
            if step < self._newest.get((key, piece), 0) or 2 * len(found.told) <= len(expected):
                continue
            self._newest[key, piece] = step
            known = self._drifts.get((key, piece))
            if found.odd:
                self._differs(key, piece, found, step, unix_s)
            elif found.told >= (expected if known is None else expected & {*known.ranks}):
                self._drifts.pop((key, piece), None)
            if not found.odd:
                full = step if found.told >= expected else equal[piece].full if piece in equal else None
                equal[piece] = _Equal(step, found.told, full)
        if before and not self._drifts:
            text = f"the replicas agree again at step {step:,}"
            self._log.add(unix_s, "replica_drift_end", text, step=step)

    def _differs(self, key: _Key, piece: int, found: Opinion, step: int, unix_s: float) -> None:
        known = self._drifts.get((key, piece))
        since, since_s = (step, unix_s) if known is None else (known.since, known.since_s)
        equal = self._equal[key].get(piece)
        drift = Drift(found.odd, found.certain, since, equal.of(found.odd) if equal else None, since_s)
        if not self._drifts:
            rank = found.odd[0] if found.certain and len(found.odd) == 1 else None
            text = drift_words(drift, self._world)
            self._log.add(unix_s, "replica_drift", text, severity="critical", rank=rank, step=step)
        self._drifts[key, piece] = drift

    def _forget(self, key: _Key, pieces: int) -> None:
        """The model is divided in another way now."""
        self._pieces[key] = pieces
        self._open.pop(key, None)
        self._equal.pop(key, None)
        self._newest = {place: step for place, step in self._newest.items() if place[0] != key}
        self._drifts = {place: drift for place, drift in self._drifts.items() if place[0] != key}


def drift_words(drift: Drift, world: int) -> str:
    """`replica of rank 2 differs since step 80 (equal at step 64)`."""
    who = ranks_phrase([*drift.ranks], world)
    one = len(drift.ranks) == 1
    begin = f"replica{'' if one else 's'} of {who} differ{'s' if one else ''}"
    if drift.equal is None:
        text = f"{begin} since the first check, at step {drift.since:,}: never broadcast?"
    else:
        text = f"{begin} since step {drift.since:,} (equal at step {drift.equal:,})"
    return text if drift.certain else f"{text}; which is right cannot be told"
