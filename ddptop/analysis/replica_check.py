"""One check of a model's replicas: what the ranks said of the same pieces after the same step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

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
