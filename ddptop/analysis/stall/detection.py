"""Detects a stall, in which the step of some rank takes longer than allowed, and the state of each rank.

The duration of a step is measured by the rank's own clock, which it sends with steps and heartbeats, and by
the time since its last message. Arrival times would be wrong where the collector was stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ranks import SILENT_S
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.vocabulary import RankStatus, RunOutcome

STALL_STEPS = 10
"""A step may take this many median steps before it counts as a stall."""

FIRST_STEP = 4
"""Factor of `stall_s` until the first step has finished: compilation and first batches take longer."""

COMPILE_GRACE_NS = 10 * NS
"""Added to the limit of a rank that compiles: it is asked again before it is shown as stalled."""

IN_STEP = (Phase.FORWARD, Phase.BACKWARD)
"""After some ranks have finished, the others wait for them only in these phases."""


def stalled_since(state: RunState, now_ns: int, *, grace_ns: int = 0) -> int | None:
    """When the stalled step began, on the collector's clock; None while there is no stall.

    `grace_ns`: how much longer than usual a rank that compiles may take.
    """
    if state.run is not None and state.run.state != "live":
        return None
    ranks = state.ranks
    running = [rank for rank in ranks if rank.hello and not rank.bye and rank.gone_ns is None]
    if not running:
        return None
    since_ns = max(min([rank.moved_ns for rank in running]), state.excused_ns)
    if now_ns - since_ns < state.stall_s * NS:  # the common case, at little cost
        return None
    if any(rank.hello is None for rank in ranks):
        return None
    limit_ns = stall_limit_ns(state)
    stalled = [rank for rank in running if _step_ns(state, rank, now_ns) >= limit_ns]
    if not stalled or not _waited_for(ranks, running):
        return None
    compiles = state.compiling_ns > 0 and now_ns - state.compiling_ns < limit_ns + grace_ns
    return None if compiles else max(min(rank.moved_ns for rank in stalled), state.excused_ns)


def _step_ns(state: RunState, rank: RankState, now_ns: int) -> int:
    """How long the present step of a rank has taken, by its own clock and the time since its last message."""
    silent_ns = state.interruptions.silence_ns(rank.heard_ns, now_ns)
    return min(rank.stood_ns + silent_ns, now_ns - state.excused_ns)


def stall_limit_ns(state: RunState) -> int:
    """How long a step may take: max(stall_s, 10 median steps), or 4 stall_s before any step has finished."""
    least_ns = state.stall_s * NS
    if state.complete_step is None and min(rank.step for rank in state.ranks) == 0:
        return int(FIRST_STEP * least_ns)
    state.settle()
    steps = state.figures.steps
    walls = steps.group.of("step", steps.slots())
    median_ms = float(np.median(walls)) if len(walls) else 0.0
    return int(max(least_ns, STALL_STEPS * median_ms * 1e6))


def rank_states(state: RunState, now_ns: int) -> list[RankStatus]:
    """The state of each rank, as defined in `analysis/METRICS.md` (Health)."""
    stalled = stalled_since(state, now_ns, grace_ns=COMPILE_GRACE_NS) is not None
    limit_ns = stall_limit_ns(state) if stalled else 0
    reported = _host_reports(state.ranks)
    outcome: RunOutcome = state.run.state if state.run is not None else "live"
    states: list[RankStatus] = []
    silence_ns = state.interruptions.silence_ns
    for rank in state.ranks:
        host_gone = silence_ns(reported.get(rank.host, 0), now_ns) >= SILENT_S * NS
        own = rank.state(silence_ns(rank.heard_ns, now_ns), outcome, host_gone=host_gone)
        still = stalled and _step_ns(state, rank, now_ns) >= limit_ns
        states.append("stalled" if own == "live" and still else own)
    return states


def _host_reports(ranks: Sequence[RankState]) -> dict[str, int]:
    """When each host last reported: a message of any of its ranks, or a sample of its agent."""
    reported: dict[str, int] = {}
    for rank in ranks:
        if rank.hello is not None:
            newest_ns = max(rank.heard_ns, rank.seen_ns)
            reported[rank.host] = max(newest_ns, reported.get(rank.host, 0))
    return reported


def _waited_for(ranks: Sequence[RankState], running: Sequence[RankState]) -> bool:
    if len(running) == len(ranks) or not any(rank.finished for rank in ranks):
        return True
    return any(rank.progress is not None and rank.progress.phase in IN_STEP for rank in running)
