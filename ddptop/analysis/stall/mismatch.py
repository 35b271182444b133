"""Ranks that call different collectives, or the same one on different tensors, at the same place in line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.protocol.evidence import Operation

UNEQUAL_BY_NATURE = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv")
"""Collectives whose ranks may give tensors of different sizes: only the name is compared."""


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that agree with each other."""

    ranks: tuple[int, ...]
    operation: Operation


@dataclass(frozen=True, slots=True)
class Mismatch:
    """`sides`: at least two, the smallest first."""

    group: str
    sequence: int
    sides: tuple[Side, ...]

    @property
    def blamed(self) -> tuple[int, ...]:
        """All but the largest side."""
        return tuple(sorted(rank for side in self.sides[:-1] for rank in side.ranks))


def differing(told: Iterable[tuple[int, Sequence[Operation]]]) -> Mismatch | None:
    """The first collective of a group that its ranks see differently and that has not completed for all.

    `told`: (rank, what its flight recorder holds). Coalesced calls share a number and are not compared.
    """
    seen: dict[tuple[str, int], list[tuple[int, Operation]]] = defaultdict(list)
    for rank, operations in told:
        for op in operations:
            seen[op.group, op.sequence].append((rank, op))
    for (group, sequence), entries in sorted(seen.items()):
        coalesced = len({rank for rank, _ in entries}) < len(entries)
        if coalesced or all(op.done for _, op in entries):
            continue
        sides = _sides(entries)
        if len(sides) > 1:
            return Mismatch(group, sequence, sides)
    return None


def _sides(entries: Sequence[tuple[int, Operation]]) -> tuple[Side, ...]:
    sides: dict[tuple[str, ...], list[tuple[int, Operation]]] = defaultdict(list)
    for rank, op in entries:
        sides[_signature(op)].append((rank, op))
    # Of two equal sides the one without rank 0 comes first: that one is the reference.
    ordered = sorted(sides.values(), key=lambda side: (len(side), -min(rank for rank, _ in side)))
    return tuple(Side(tuple(sorted(rank for rank, _ in side)), side[0][1]) for side in ordered)


def _signature(op: Operation) -> tuple[str, ...]:
    name = op.name.rsplit(":", 1)[-1]
    return (name,) if any(word in name for word in UNEQUAL_BY_NATURE) else (name, op.sizes, op.dtype)
