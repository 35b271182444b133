"""Why the step does not move: the verdict on a stall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import ended_badly
from ddptop.analysis.ranks import NS, STALE_S
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.device import device_since
from ddptop.analysis.stall.positions import Found, Position, Standstill, find
from ddptop.analysis.stall.rule import COMPILE_GRACE_NS, patience_ns, stalled_since
from ddptop.analysis.stall.testimony import DEFAULT_GROUP, answer_since, sequence_of, testimony
from ddptop.frames.calls import in_collective
from ddptop.frames.stall import MAX_POSITIONS, Stall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.state import RunState
    from ddptop.protocol.vocabulary import RankStatus

ANSWER_NS = 5 * NS
"""How long the answers are waited for before their absence means something."""

NEWEST = 32
"""Collectives of one rank that are compared: those under way are among the newest."""

ALL_THREADS = 2
"""Ranks shown with all of their threads: one to blame and one that waits, as a rule."""


def standstill(state: RunState, states: Sequence[RankStatus], now_ns: int) -> Standstill | None:
    """What is known of the present stall; None where there is none. `states` are the ranks'."""
    since_ns = stalled_since(state, now_ns, grace_ns=COMPILE_GRACE_NS)
    if since_ns is None:
        return None
    members = state.ranks
    patient = now_ns < since_ns + patience_ns(state) + ANSWER_NS
    dead = ended_badly(members)
    dead += [rank for rank, state in enumerate(states) if state == "lost" and rank not in dead]
    there = [rank for rank, member in enumerate(members) if member.running and rank not in dead]
    finished = tuple(rank for rank, member in enumerate(members) if member.finished and rank not in dead)
    if dead or not there:
        found = Found("dead", tuple(dead), tuple(there))
    elif finished:
        found = Found("missing", finished, tuple(there))
    else:
        found = find([position(state, rank, since_ns, now_ns) for rank in there], patient=patient)
    steps = [members[rank].step for rank in found.waiting or found.blamed]
    return Standstill(since_ns, found, min(steps, default=0), patient)


def position(state: RunState, rank: int, since_ns: int, now_ns: int) -> Position:
    """Where a rank stands, from its heartbeats and its answer."""
    member = state.ranks[rank]
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
        silent=member.stopped or state.interruptions.silence_ns(member.heard_ns, now_ns) > STALE_S * NS,
        sequences={name: number for name, number in sequences.items() if number is not None},
        operations=told.operations[-NEWEST:] if told is not None else (),
        inside=inside,
        device="" if device is None else device.state,
        device_at=None if device is None or device.state != "collective" else (device.step, device.bucket),
    )


def stall(state: RunState, found: Standstill | None, now_ns: int) -> Stall | None:
    """The verdict on the present stall, as frames carry it; None where there is none."""
    if found is None:
        return None
    ranks = _shown(found, len(state.ranks))
    group, since_ns = found.found.group, found.since_ns
    told = tuple(
        testimony(state, rank, now_ns, since_ns=since_ns, group=group, all_threads=i < ALL_THREADS)
        for i, rank in enumerate(ranks)
    )
    return Stall(
        kind=found.found.kind,
        since_s=state.unix_s(found.since_ns),
        step=found.step,
        ranks=found.found.blamed,
        waiting=found.found.waiting,
        sentence=sentences.sentence(state, found),
        detail=(
            *sentences.detail(state, found, told, now_ns),
            *sentences.opinions(state, found.since_ns),
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
