"""Why the step does not move: the verdict on a stall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import ended_badly
from ddptop.analysis.ranks import NS, STALE_S
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.device import device_since
from ddptop.analysis.stall.positions import Found, Position, find
from ddptop.analysis.stall.rule import COMPILE_GRACE_NS, patience_ns, stalled_since
from ddptop.analysis.stall.testimony import DEFAULT_GROUP, answer_since, sequence_of, testimony
from ddptop.frames.calls import in_collective
from ddptop.frames.stall import MAX_POSITIONS, Stall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.reducer import Reducer

ANSWER_NS = 5 * NS
"""How long the answers are waited for before their absence means something."""

NEWEST = 32
"""Collectives of one rank that are compared: those under way are among the newest."""

ALL_THREADS = 2
"""Ranks shown with all of their threads: one to blame and one that waits, as a rule."""


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


def standstill(reducer: Reducer, states: Sequence[str], now_ns: int) -> Standstill | None:
    """What is known of the present stall; None where there is none. `states` are the ranks'.

    A frame asks twice, for the stall and for the alerts: the second time costs nothing.
    """
    if reducer.stood is None or reducer.stood[:2] != (reducer.taken, now_ns):
        reducer.stood = (reducer.taken, now_ns, _look(reducer, states, now_ns))
    return reducer.stood[2]


def _look(reducer: Reducer, states: Sequence[str], now_ns: int) -> Standstill | None:
    since_ns = stalled_since(reducer, now_ns, grace_ns=COMPILE_GRACE_NS)
    if since_ns is None:
        return None
    members = reducer.members
    patient = now_ns < since_ns + patience_ns(reducer) + ANSWER_NS
    dead = ended_badly(members)
    dead += [rank for rank, state in enumerate(states) if state == "lost" and rank not in dead]
    there = [rank for rank, member in enumerate(members) if member.running and rank not in dead]
    finished = tuple(rank for rank, member in enumerate(members) if member.finished and rank not in dead)
    if dead or not there:
        found = Found("dead", tuple(dead), tuple(there))
    elif finished:
        found = Found("missing", finished, tuple(there))
    else:
        found = find([position(reducer, rank, since_ns, now_ns) for rank in there], patient=patient)
    steps = [members[rank].step for rank in found.waiting or found.blamed]
    return Standstill(since_ns, found, min(steps, default=0), patient)


def position(reducer: Reducer, rank: int, since_ns: int, now_ns: int) -> Position:
    """Where a rank stands, from its heartbeats and its answer."""
    member = reducer.members[rank]
    told = answer_since(member, since_ns)
    names = {DEFAULT_GROUP} | ({group.name for group in told.groups} if told is not None else set())
    sequences = {name: sequence_of(member, name, told) for name in sorted(names)}
    device = device_since(member, since_ns)
    inside = None
    if told is not None:
        inside = any(not op.done for op in told.operations) or in_collective(told.stacks)
    return Position(
        rank=rank,
        step=member.step,
        bucket=member.bucket,
        answered=told is not None,
        silent=member.stopped or reducer.interruptions.silence_ns(member.heard_ns, now_ns) > STALE_S * NS,
        sequences={name: number for name, number in sequences.items() if number is not None},
        operations=told.operations[-NEWEST:] if told is not None else (),
        inside=inside,
        device="" if device is None else device.state,
        device_at=None if device is None or device.state != "collective" else (device.step, device.bucket),
    )


def stall(reducer: Reducer, states: Sequence[str], now_ns: int) -> Stall | None:
    """The verdict on the present stall, as frames carry it; None where there is none."""
    found = standstill(reducer, states, now_ns)
    if found is None:
        return None
    ranks = _shown(found, len(reducer.members))
    group, since_ns = found.found.group, found.since_ns
    told = tuple(
        testimony(reducer, rank, now_ns, since_ns=since_ns, group=group, all_threads=i < ALL_THREADS)
        for i, rank in enumerate(ranks)
    )
    return Stall(
        kind=found.found.kind,
        since_s=reducer.unix_s(found.since_ns),
        step=found.step,
        ranks=found.found.blamed,
        waiting=found.found.waiting,
        sentence=sentences.sentence(reducer, found),
        detail=(
            *sentences.detail(reducer, found, told, now_ns),
            *sentences.opinions(reducer, found.since_ns),
        ),
        positions=told,
    )


def _shown(found: Standstill, world: int) -> list[int]:
    """Those to blame, one that waits, then others."""
    blamed, waiting = found.found.blamed, found.found.waiting
    if found.found.mismatch is not None:
        blamed = tuple(side.ranks[0] for side in found.found.mismatch.sides) + blamed
    first = [*dict.fromkeys(blamed)][: MAX_POSITIONS - 1]
    order = [*first, *waiting[:1], *blamed, *waiting[1:], *range(min(world, MAX_POSITIONS))]
    return [*dict.fromkeys(order)][:MAX_POSITIONS]
