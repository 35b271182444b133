"""Who waits and who is waited for, from where the ranks stand: pure functions over their positions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddptop.analysis.stall.device import STUCK
from ddptop.analysis.stall.mismatch import Mismatch, differing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.protocol.evidence import Operation


@dataclass(frozen=True, slots=True)
class Position:
    """Where one rank stands."""

    rank: int
    step: int
    bucket: int | None = None
    """All-reduces launched in the step."""
    answered: bool = False
    """It has told where it is since the step stands; what only an answer tells is unknown before."""
    silent: bool = False
    """Nothing is heard of it, or its process is held."""
    sequences: Mapping[str, int] = field(default_factory=dict)
    """Collectives launched, by process group."""
    operations: tuple[Operation, ...] = ()
    inside: bool | None = None
    """It waits in a collective; None: not known."""
    device: str = ""
    """State of its GPU, as in `DeviceWord`; empty: not known."""
    device_at: tuple[int, int] | None = None
    """Step and all-reduce that its GPU is in."""


@dataclass(frozen=True, slots=True)
class Found:
    """`kind` as in `Stall`; `alone` marks ranks that stand in their own code while nobody waits for them."""

    kind: str
    blamed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    group: str = "0"
    sequence: int | None = None
    """Number of the collective that the blamed have not launched, or that differs."""
    mismatch: Mismatch | None = None
    alone: bool = False
    on_device: bool = False
    """Of `transport`: every GPU is in the collective."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A stall as the screens, the alerts and the log tell of it."""

    since_ns: int
    found: Found
    step: int
    """The step that waits: the one of the ranks that are not to blame."""
    patient: bool = False
    """Answers may still come."""

    def key(self) -> tuple[str, tuple[int, ...]]:
        """What makes it another verdict."""
        return self.found.kind, self.found.blamed


def find(positions: Sequence[Position], *, patient: bool) -> Found:
    """Who is missing, by step, then by the groups' sequence numbers, then by bucket; else what it is instead.

    `patient`: answers may still come, so that nothing is concluded from their absence.
    """
    mismatch = differing([(p.rank, p.operations) for p in positions])
    if mismatch is not None:
        rest = tuple(p.rank for p in positions if p.rank not in mismatch.blamed)
        return Found("mismatch", mismatch.blamed, rest, mismatch.group, mismatch.sequence, mismatch)
    if _in_it_together(positions):  # however far the hosts have run ahead of their GPUs
        return _all_equal(positions, patient=patient)
    if _launched_alike(positions):
        few = _fewest_alike(positions)
        return Found("mismatch", few, tuple(p.rank for p in positions if p.rank not in few))
    behind = _behind(positions)
    if not behind:
        return Found("mismatch", (), tuple(p.rank for p in positions))
    if len(behind) == len(positions):
        return _all_equal(positions, patient=patient)
    if patient and any(p.inside for p in behind) and not all(p.answered or p.silent for p in positions):
        # One that waits in a collective itself may be in another one than the others are: they will tell.
        return Found("asking", (), tuple(p.rank for p in positions if not p.silent))
    blamed = tuple(p.rank for p in sorted(behind, key=lambda p: (p.step, p.rank)))
    waiting = tuple(p.rank for p in positions if p.rank not in blamed and p.inside is not False)
    group, sequence = _lacking(behind[0], positions)
    return Found("missing", blamed, waiting, group, sequence)


def _behind(positions: Sequence[Position]) -> list[Position]:
    """The ranks that are behind; all where all are equal, none where they wait for each other in a circle."""
    least = min(p.step for p in positions)
    slowest = [p for p in positions if p.step == least]
    waiting = _ahead(slowest)
    slowest = [p for p in slowest if p.rank not in waiting]
    if 1 < len(slowest) == len(positions) and all(p.bucket is not None for p in slowest):
        fewest = min(p.bucket or 0 for p in slowest)
        slowest = [p for p in slowest if p.bucket == fewest]
    if 1 < len(slowest) == len(positions) and any(p.inside for p in slowest):
        slowest = [p for p in slowest if p.inside is False] or slowest
    return slowest


def _in_it_together(positions: Sequence[Position]) -> bool:
    """Every GPU is in the same all-reduce: nobody is missing there."""
    at = {p.device_at for p in positions}
    return len(positions) > 1 and at != {None} and len(at) == 1


def _launched_alike(positions: Sequence[Position]) -> bool:
    """Ranks of different steps have launched as many collectives and wait: one of them left one out."""
    if len({p.step for p in positions}) == 1 or not all(p.inside and p.sequences for p in positions):
        return False
    return not _ahead(positions)


def _fewest_alike(positions: Sequence[Position]) -> tuple[int, ...]:
    """The ranks that are not in the step that most are in."""
    usual = Counter(p.step for p in positions).most_common(1)[0][0]
    return tuple(p.rank for p in positions if p.step != usual)


def _ahead(positions: Sequence[Position]) -> set[int]:
    """Ranks that have launched more in some group than another of its ranks: they wait for that one."""
    least: dict[str, int] = {}
    for p in positions:
        for group, number in p.sequences.items():
            least[group] = min(number, least.get(group, number))
    return {p.rank for p in positions if any(n > least[group] for group, n in p.sequences.items())}


def _lacking(missing: Position, positions: Sequence[Position]) -> tuple[str, int | None]:
    """The group in which others are ahead of the missing rank, and the collective that it lacks."""
    for group, number in missing.sequences.items():
        if any(p.sequences.get(group, number) > number for p in positions):
            return group, number + 1
    return "0", None


def _all_equal(positions: Sequence[Position], *, patient: bool) -> Found:
    """Nobody is behind: a silent rank is to blame, a GPU that has not reached what its host has launched, or
    the transport; or nobody is in a collective at all."""
    silent = tuple(p.rank for p in positions if p.silent)
    others = tuple(p.rank for p in positions if not p.silent)
    if patient and not all(p.answered or p.silent for p in positions):
        return Found("asking", (), others)
    if silent and others:
        return Found(
            "missing", silent, tuple(p.rank for p in positions if not p.silent and p.inside is not False)
        )
    if len(positions) > 1 and not any(p.answered for p in positions):
        return Found("asking", (), others)
    pending = [op for p in positions for op in p.operations if not op.done]
    first = min(pending, key=lambda op: op.sequence, default=None)
    group, sequence = ("0", None) if first is None else (first.group, first.sequence)
    stuck = tuple(p.rank for p in positions if p.device in STUCK)
    if stuck:
        rest = tuple(p.rank for p in positions if p.rank not in stuck)
        return Found("device", stuck, rest, group, sequence)
    if len(positions) == 1 or not any(p.inside for p in positions if p.answered):
        return Found("missing", tuple(p.rank for p in positions), alone=True)
    on_device = _in_it_together(positions)
    return Found("transport", (), tuple(p.rank for p in positions), group, sequence, on_device=on_device)
