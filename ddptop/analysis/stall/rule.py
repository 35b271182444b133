"""What a stall is: the step of some rank stands still for longer than anything expected explains.

How long a step has stood is read from the rank's own clock, which it sends with steps and heartbeats, and
from the time since its last message. When messages arrive says little: the collector may have been stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ranks import NS, SILENT_S
from ddptop.protocol.messages import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.vocabulary import RankStatus, RunOutcome

STALL_STEPS = 10
"""A step may take this many median steps before it counts as a stall, however long they are."""

FIRST_STEP = 4
"""Before any step has finished: compilation and first batches take their time."""

COMPILE_GRACE_NS = 10 * NS
"""A rank seen compiling is asked again before screens call it stalled, so that they do not flicker."""

IN_STEP = (Phase.FORWARD, Phase.BACKWARD)
"""Once some ranks have finished, only here do the others still wait for them."""


def stalled_since(state: RunState, now_ns: int, *, grace_ns: int = 0) -> int | None:
    """When the step last moved, on the collector's clock; None while there is no stall.

    `grace_ns`: how much longer than the usual a rank that was seen compiling may take.
    """
    if state.run is not None and state.run.state != "live":
        return None
    members = state.ranks
    if not members or any(member.hello is None for member in members):
        return None
    running = [member for member in members if member.running]
    if not running:
        return None
    since_ns = max(min(member.moved_ns for member in running), state.excused_ns)
    if now_ns - since_ns < state.stall_s * NS:  # the common case, at no cost
        return None
    limit_ns = patience_ns(state)
    standing = [member for member in running if _stood_ns(state, member, now_ns) >= limit_ns]
    if not standing or not _waited_for(members, running):
        return None
    compiles = state.compiling_ns > 0 and now_ns - state.compiling_ns < limit_ns + grace_ns
    return None if compiles else max(min(member.moved_ns for member in standing), state.excused_ns)


def _stood_ns(state: RunState, member: RankState, now_ns: int) -> int:
    """How long the step of a rank has stood, by its own clock and its silence since."""
    silent_ns = state.interruptions.silence_ns(member.heard_ns, now_ns)
    return min(member.stood_ns + silent_ns, now_ns - state.excused_ns)


def patience_ns(state: RunState) -> int:
    """How long a step may stand: max(stall_s, 10 median steps), four times that before the first one."""
    least_ns = state.stall_s * NS
    if state.complete_step is None and min(member.step for member in state.ranks) == 0:
        return int(FIRST_STEP * least_ns)
    state.settle()
    steps = state.figures.steps
    walls = steps.group.of("step", steps.slots())
    median_ms = float(np.median(walls)) if len(walls) else 0.0
    return int(max(least_ns, STALL_STEPS * median_ms * 1e6))


def rank_states(state: RunState, now_ns: int) -> list[RankStatus]:
    """waiting, live, stale, stalled, lost, finished or failed for each rank, by METRICS (Health)."""
    stalled = stalled_since(state, now_ns, grace_ns=COMPILE_GRACE_NS) is not None
    limit_ns = patience_ns(state) if stalled else 0
    heard = heard_hosts(state.ranks)
    outcome: RunOutcome = state.run.state if state.run is not None else "live"
    states: list[RankStatus] = []
    silence_ns = state.interruptions.silence_ns
    for member in state.ranks:
        host_gone = silence_ns(heard.get(member.host, 0), now_ns) >= SILENT_S * NS
        own = member.state(silence_ns(member.heard_ns, now_ns), outcome, host_gone=host_gone)
        still = stalled and _stood_ns(state, member, now_ns) >= limit_ns
        states.append("stalled" if own == "live" and still else own)
    return states


def heard_hosts(members: Sequence[RankState]) -> dict[str, int]:
    """When each host last gave a sign of life: a message of any of its ranks, or its agent's reading."""
    heard: dict[str, int] = {}
    for member in members:
        if member.hello is not None:
            sign_ns = max(member.heard_ns, member.seen_ns)
            heard[member.host] = max(sign_ns, heard.get(member.host, 0))
    return heard


def _waited_for(members: Sequence[RankState], running: Sequence[RankState]) -> bool:
    if len(running) == len(members) or not any(member.finished for member in members):
        return True
    return any(member.progress is not None and member.progress.phase in IN_STEP for member in running)
