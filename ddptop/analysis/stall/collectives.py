"""The collectives that ranks are in, and which are in different ones at the same sequence number.

That stalls the run, or kills a rank: gloo aborts where a peer sends more bytes than it expects. With
torch 2.13 a gloo thread fails with `op.preamble.length <= op.nbytes. 2000 vs 1000`, and SIGABRT ends the
process without a Python exception. The other rank then fails with `Connection reset by peer`, or torchrun
ends it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.calls import collective_called, in_collective, pending_operation, place, user_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.protocol.evidence import Evidence, Operation

DEFAULT_GROUP = "0"

UNEQUAL_BY_NATURE = ("gather", "scatter", "all_to_all", "alltoall", "send", "recv")
"""Collectives whose ranks may pass tensors of different sizes: only their names are compared."""


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that are in the same collective."""

    ranks: tuple[int, ...]
    operation: Operation


@dataclass(frozen=True, slots=True)
class DifferingCollectives:
    """Ranks of one process group in different collectives at one sequence number.

    `sides`: at least two, the smallest first.
    """

    group: str
    sequence: int
    sides: tuple[Side, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all sides but the largest."""
        return tuple(sorted(rank for side in self.sides[:-1] for rank in side.ranks))


def operation_phrase(op: Operation | None) -> str:
    """`all_reduce of [[1000]] Float`, `barrier, group 2`; empty for none. The default group is not named."""
    if op is None:
        return ""
    shape = " ".join(part for part in (op.sizes, op.dtype) if part not in ("", "[]"))  # of a barrier
    group = f", group {op.group}" if op.group != DEFAULT_GROUP else ""
    return (f"{operation_name(op)} of {shape}" if shape else operation_name(op)) + group


def operation_name(op: Operation) -> str:
    """`all_reduce`, without the backend that flight recorders put before it."""
    return op.name.rsplit(":", 1)[-1]


def find_differing(recorded: Iterable[tuple[int, Sequence[Operation]]]) -> DifferingCollectives | None:
    """The first sequence number at which ranks of a group are in different collectives, not completed on all.

    `recorded`: (rank, the entries of its flight recorder). Coalesced calls share a number and are skipped.
    """
    by_number: dict[tuple[str, int], list[tuple[int, Operation]]] = defaultdict(list)
    for rank, operations in recorded:
        for op in operations:
            by_number[op.group, op.sequence].append((rank, op))
    for (group, sequence), entries in sorted(by_number.items()):
        coalesced = len({rank for rank, _ in entries}) < len(entries)
        if coalesced or all(op.done for _, op in entries):
            continue
        sides = _sides(entries)
        if len(sides) > 1:
            return DifferingCollectives(group, sequence, sides)
    return None


def _sides(entries: Sequence[tuple[int, Operation]]) -> tuple[Side, ...]:
    sides: dict[tuple[str, ...], list[tuple[int, Operation]]] = defaultdict(list)
    for rank, op in entries:
        sides[_signature(op)].append((rank, op))
    # Of two sides of equal size the one without rank 0 comes first: the side of rank 0 is the reference.
    ordered = sorted(sides.values(), key=lambda side: (len(side), -min(rank for rank, _ in side)))
    return tuple(Side(tuple(sorted(rank for rank, _ in side)), side[0][1]) for side in ordered)


def _signature(op: Operation) -> tuple[str, ...]:
    name = op.name.rsplit(":", 1)[-1]
    return (name,) if any(word in name for word in UNEQUAL_BY_NATURE) else (name, op.sizes, op.dtype)


class FatalSide(NamedTuple):
    """The collective and the call that a rank was in that was killed, or differed; empty: unknown."""

    rank: int
    operation: str
    call: str


def find_fatal_sides(
    ranks: Sequence[RankState], ended: Sequence[int], followers: Sequence[int]
) -> list[FatalSide]:
    """Both sides of different collectives that killed a rank, or only that rank's; empty: it was not that.

    `ended`: ranks that failed or died, the cause first; `followers`: those that failed because of it.
    The rank that gloo aborted need not be the one that differs: where the others are in collectives of
    different sizes, the smaller side of these comes first.
    """
    aborted = next((rank for rank in ended if _aborted_in_collective(ranks[rank])), None)
    if aborted is None or not set(ended[: ended.index(aborted)]) <= set(followers):
        return []
    own_side = _fatal_side(aborted, ranks[aborted])
    if own_side is None:
        return []
    running = (rank for rank in range(len(ranks)) if rank not in ended)
    peers = (*(rank for rank in followers if rank != aborted), *running)
    other_sides = [side for rank in peers if (side := _fatal_side(rank, ranks[rank])) is not None]
    return _odd_and_usual(ranks, other_sides) or [own_side, *other_sides[:1]]


def _odd_and_usual(ranks: Sequence[RankState], sides: Sequence[FatalSide]) -> list[FatalSide]:
    """One rank of the smallest side and one of the largest among these ranks; empty: all are in the same
    collective.

    Compared are ranks in the collective of the same number in the same group, as stalls are.
    The rank that was aborted has a smaller tensor than what it received: it counts for the smallest one.
    """
    numbered: dict[tuple[str, int], list[tuple[Operation, FatalSide]]] = defaultdict(list)
    for side in sides:
        op = operation_of(ranks[side.rank].exit_evidence or ranks[side.rank].evidence)
        if op is not None and op.sizes:
            numbered[op.group, op.sequence].append((op, side))
    alike: dict[tuple[str, ...], list[FatalSide]] = defaultdict(list)
    n_bytes: dict[tuple[str, ...], int] = {}
    for op, side in max(numbered.values(), key=len, default=[]):
        alike[_signature(op)].append(side)
        n_bytes[_signature(op)] = _n_bytes(op)
    if len(alike) < 2:
        return []
    smallest = min(n_bytes, key=lambda signature: n_bytes[signature])
    order = sorted(alike, key=lambda signature: len(alike[signature]) + (signature == smallest))
    return [alike[order[0]][0], alike[order[-1]][0]]


def _n_bytes(op: Operation) -> int:
    """Bytes of a collective's tensors."""
    numbers = [
        [int(n) for n in re.findall(r"\d+", shape)] for shape in re.findall(r"\[([\d, ]*)\]", op.sizes)
    ]
    return sum(prod(shape) for shape in numbers) * _WIDTHS.get(op.dtype, 4)


_WIDTHS = {"Double": 8, "Long": 8, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}
"""Bytes of an element, by the names of flight recorders; 4 of the others."""


def _aborted_in_collective(rank_state: RankState) -> bool:
    last = rank_state.exit_evidence
    if last is None or rank_state.hello is None or "gloo" not in rank_state.hello.backend:
        return False
    aborted = rank_state.signal == "SIGABRT" or (rank_state.signal is None and "Abort" in last.reason)
    return aborted and in_collective(last.stacks)


def _fatal_side(rank: int, rank_state: RankState) -> FatalSide | None:
    evidence = rank_state.exit_evidence or rank_state.evidence
    if evidence is None or not (in_collective(evidence.stacks) or operation_of(evidence) is not None):
        return None
    call = user_call(evidence.stacks)
    return FatalSide(rank, called_operation(evidence), place(call) if call is not None else "")


def called_operation(evidence: Evidence) -> str:
    """The collective that a rank is in, or was in when it failed: `all_reduce of [[1000]] Float`, `backward`;
    empty: none seen."""
    operation = operation_phrase(operation_of(evidence))
    return (
        operation
        or collective_called(evidence.stacks)
        or ("backward" if in_collective(evidence.stacks) else "")
    )


def operation_of(evidence: Evidence | None, group: str | None = None) -> Operation | None:
    """The collective that a rank is in, or was in when it failed; `group` None: in any group."""
    if evidence is None:
        return None
    # gloo marks a collective that failed as done: for a rank that has ended use the newest one.
    failed = [op for op in evidence.operations if evidence.reason and group in (None, op.group)]
    return pending_operation(evidence, group) or next(reversed(failed), None)
