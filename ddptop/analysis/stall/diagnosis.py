"""Diagnoses a stall: which ranks are missing and which wait, from each rank's progress. Pure functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddptop.analysis.stall.collectives import Side, find_differing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.conditions import StallKind
    from ddptop.frames.stall import RankPosition
    from ddptop.protocol.evidence import Operation
    from ddptop.protocol.vocabulary import DeviceState

STUCK = ("compute", "error")
"""States of a GPU that has not reached the collective which its host has launched."""


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The progress of one rank: step, bucket, sequence numbers, GPU."""

    rank: int
    step: int
    bucket: int | None = None
    """All-reduces launched in the step."""
    answered: bool = False
    """It has answered since the stall began. The fields that only an answer contains are unknown before."""
    has_moved: bool = False
    """It has reached another step since it answered: its answer is of another moment than its step."""
    silent: bool = False
    """It does not report, or its process is stopped."""
    sequences: Mapping[str, int] = field(default_factory=dict)
    """Collectives launched, by process group."""
    operations: tuple[Operation, ...] = ()
    inside: bool | None = None
    """It waits in a collective; None: unknown."""
    in_step: bool = True
    """It is in a forward or a backward: it cannot have ended a step that it still counts as running."""
    device: DeviceState = ""
    """State of its GPU; empty: unknown."""
    device_at: tuple[int, int] | None = None
    """Step and all-reduce that its GPU is in."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why the run is stalled. `frames.stall.Stall` is the same with sentences and evidence."""

    kind: StallKind
    ranks: tuple[int, ...] = ()
    """The ranks that cause the stall: exited, missing, or in another collective than most; may be empty."""
    waiting: tuple[int, ...] = ()
    """Ranks that wait in the collective."""
    group: str = "0"
    sequence: int | None = None
    """Number of the collective that `ranks` have not launched, or that differs."""
    sides: tuple[Side, ...] = ()
    """For the kind `mismatch`: ranks by their collective, where these are known, the fewest first."""
    outside: bool = False
    """`ranks` are in their own code, and no rank waits in a collective."""
    entered: str = ""
    """For the kind `missing`: the function that the first of `ranks` is in instead: `save_checkpoint`."""
    on_device: bool = False
    """For the kind `transport`: every GPU is in the collective."""
    since_ns: int = 0
    """When the stalled step began."""
    step: int = 0
    """The stalled step: that of the waiting ranks, if any."""
    awaits_answers: bool = False
    """More ranks may answer."""
    unequal: bool = False
    """For the kind `asking`: some ranks are behind the others."""
    restart: int = 0
    """Number of the elastic restart after which `waiting` are in `init_process_group`; 0: this is no such
    stall."""

    start: str = ""
    """Where `waiting` wait on the way to the first step, `init_process_group` or `barrier`; empty: this is no
    such stall."""

    def key(self) -> tuple[StallKind, tuple[int, ...]]:
        """Two diagnoses with the same key are logged once."""
        return self.kind, self.ranks or self.waiting if self.restart else self.ranks


@dataclass(frozen=True, slots=True)
class KeptStall:
    """A stall as it was diagnosed when the first rank ended (`stall/at_exit.py`)."""

    diagnosis: Diagnosis
    sentence: str
    short_sentence: str
    positions: tuple[RankPosition, ...]
    ended_ns: int
    """When the first rank ended, or the run."""


def diagnose(progress: Sequence[RankProgress], *, awaits_answers: bool) -> Diagnosis:
    """Diagnose a stall: the ranks missing by step, sequence number or bucket, or else another kind of stall.

    `awaits_answers`: more ranks may answer, so that nothing is concluded from a missing answer.
    """
    differing = find_differing([(p.rank, p.operations) for p in progress])
    if differing is not None:
        usual = tuple(p.rank for p in progress if p.rank not in differing.ranks)
        group, number = differing.group, differing.sequence
        return Diagnosis("mismatch", differing.ranks, usual, group, number, differing.sides)
    if _all_gpus_in_one_collective(progress):  # the hosts may be ahead of their GPUs
        return _all_equal(progress, awaits_answers=awaits_answers)
    if _same_count_in_different_steps(progress):
        if any(p.has_moved for p in progress):  # a cut link was mended just now: the run may go on
            return Diagnosis("asking", (), tuple(p.rank for p in progress), awaits_answers=True)
        if _may_be_in_one_step(progress):
            return _all_equal(progress, awaits_answers=awaits_answers)
        few = _in_minority_step(progress)
        return Diagnosis("mismatch", few, tuple(p.rank for p in progress if p.rank not in few))
    behind = _behind(progress)
    if not behind:
        return Diagnosis("mismatch", (), tuple(p.rank for p in progress))
    if len(behind) == len(progress):
        return _all_equal(progress, awaits_answers=awaits_answers)
    most = 2 * len(behind) > len(progress) and len({p.step for p in progress}) == 1
    answers_due = awaits_answers and not all(p.answered or p.silent for p in progress)
    if answers_due and (most or any(p.inside for p in behind)):
        # A rank that waits in a collective may be in another one than the others. Where most are behind,
        # those ahead may have left one out. The answers show it.
        return Diagnosis("asking", (), tuple(p.rank for p in progress if not p.silent), unequal=True)
    missing = tuple(p.rank for p in sorted(behind, key=lambda p: (p.step, p.rank)))
    waiting = tuple(p.rank for p in progress if p.rank not in missing and p.inside is not False)
    group, sequence = _missing_collective(behind[0], progress)
    return Diagnosis("missing", missing, waiting, group, sequence)


def _behind(progress: Sequence[RankProgress]) -> list[RankProgress]:
    """The ranks that are behind; all if all are equal, none if they wait for each other in a circle."""
    least = min(p.step for p in progress)
    slowest = [p for p in progress if p.step == least]
    if max(p.step for p in progress) == least + 1:
        # Of ranks between two steps some may count the step that has ended already, others do with the next
        # forward. How many collectives they have launched tells more.
        all_waiting = _ahead(progress)
        if all_waiting and len(all_waiting) < len(progress):
            slowest = [p for p in progress if p.rank not in all_waiting]
    waiting = _ahead(slowest)
    slowest = [p for p in slowest if p.rank not in waiting]
    if 1 < len(slowest) == len(progress) and all(p.bucket is not None for p in slowest):
        fewest = min(p.bucket or 0 for p in slowest)
        slowest = [p for p in slowest if p.bucket == fewest]
    if 1 < len(slowest) == len(progress) and any(p.inside for p in slowest):
        slowest = [p for p in slowest if p.inside is False] or slowest
    return slowest


def _all_gpus_in_one_collective(progress: Sequence[RankProgress]) -> bool:
    """Whether every GPU is in the same all-reduce, so that no rank is missing."""
    places = {p.device_at for p in progress}
    return len(progress) > 1 and places != {None} and len(places) == 1


def _same_count_in_different_steps(progress: Sequence[RankProgress]) -> bool:
    """Whether ranks wait in different steps after equally many collectives, so that one was skipped."""
    if len({p.step for p in progress}) == 1 or not all(p.inside and p.sequences for p in progress):
        return False
    return not _ahead(progress)


def _may_be_in_one_step(progress: Sequence[RankProgress]) -> bool:
    """Whether ranks that are in two steps may all be between these two: a rank that leaves steps out counts
    a step when its optimizer has stepped, others do so with the next forward."""
    steps = {p.step for p in progress}
    return max(steps) == min(steps) + 1 and not any(p.in_step for p in progress)


def _in_minority_step(progress: Sequence[RankProgress]) -> tuple[int, ...]:
    """The ranks that are not in the step that most ranks are in."""
    usual = Counter(p.step for p in progress).most_common(1)[0][0]
    return tuple(p.rank for p in progress if p.step != usual)


def _ahead(progress: Sequence[RankProgress]) -> set[int]:
    """Ranks that have launched more collectives in a group than another of its ranks: they wait for it."""
    least: dict[str, int] = {}
    for p in progress:
        for group, number in p.sequences.items():
            least[group] = min(number, least.get(group, number))
    return {p.rank for p in progress if any(n > least[group] for group, n in p.sequences.items())}


def _missing_collective(missing: RankProgress, progress: Sequence[RankProgress]) -> tuple[str, int | None]:
    """The group in which others are ahead of the missing rank, and the number of the collective it misses."""
    for group, number in missing.sequences.items():
        if any(p.sequences.get(group, number) > number for p in progress):
            return group, number + 1
    return "0", None


def _all_equal(progress: Sequence[RankProgress], *, awaits_answers: bool) -> Diagnosis:
    """The diagnosis where no rank is behind: a silent rank, a GPU that has not reached the collective which
    its host has launched, the transport, or no rank in a collective."""
    silent = tuple(p.rank for p in progress if p.silent)
    answering = tuple(p.rank for p in progress if not p.silent)
    if awaits_answers and not all(p.answered or p.silent for p in progress):
        return Diagnosis("asking", (), answering)
    if silent and answering:
        return Diagnosis(
            "missing", silent, tuple(p.rank for p in progress if not p.silent and p.inside is not False)
        )
    if len(progress) > 1 and not any(p.answered for p in progress):
        return Diagnosis("asking", (), answering)
    pending = [op for p in progress for op in p.operations if not op.done]
    first = min(pending, key=lambda op: op.sequence, default=None)
    group, sequence = ("0", None) if first is None else (first.group, first.sequence)
    stuck = tuple(p.rank for p in progress if p.device in STUCK)
    if stuck:
        not_stuck = tuple(p.rank for p in progress if p.rank not in stuck)
        return Diagnosis("device", stuck, not_stuck, group, sequence)
    if len(progress) == 1 or not any(p.inside for p in progress if p.answered):
        return Diagnosis("missing", tuple(p.rank for p in progress), outside=True)
    on_device = _all_gpus_in_one_collective(progress)
    return Diagnosis("transport", (), tuple(p.rank for p in progress), group, sequence, on_device=on_device)
