"""The stall that a run was in when its first rank ended: what follows from a stall does not replace it.

A rank that waits in a collective gives up after the timeout of its process group: gloo raises there, NCCL's
watchdog aborts the process. The launcher then ends the others. None of these exits is the cause while another
rank has not entered that collective. If the timeout is shorter than the time after which a run counts as
stalled, there is no stall yet: the missing rank is found from what the ranks report at their exits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import (
    ended_in_collective,
    ended_ns,
    follows,
    follows_a_peer,
    interrupted,
    process_phrase,
    reason,
    update_left_alone,
)
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.collectives import operation_of
from ddptop.analysis.stall.current import (
    COMPILE_GRACE_NS,
    STALL_STEPS,
    diagnose_running,
    median_step_ns,
    positions_of,
    rank_progress,
    rank_states,
    stalled_since,
)
from ddptop.analysis.stall.diagnosis import Diagnosis, KeptStall, RankProgress, diagnose
from ddptop.frames.conditions import STALLS
from ddptop.frames.numbers import age
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.stall import STOPPED_THEN, Stall
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.frames.stall import RankPosition

_TIMED_OUT = re.compile(r"timed out|timeout|monitoredBarrier", re.IGNORECASE)
"""Errors of a rank that has waited for as long as its process group allows."""

_WAITED = re.compile(r"(?:waiting |ran for |Timeout\(ms\)=|in )(\d{3,12})\s?(?:ms|milliseconds|[,)]|$)")
"""How long it has waited, as gloo and NCCL print it."""

LEAST_WAIT_NS = 3 * NS
"""An abort that names no timeout is due to one after this time: no shorter one is in use."""


def keep_stall(state: RunState, t_ns: int, finished: int | None = None) -> None:
    """Note the stall that the run is in, before its first rank, or the run, is noted to have ended.

    `finished`: the rank that ends, in good order as far as it says; one that waited in the stall did not.
    """
    if state.end.first_ns is not None:
        return
    diagnosis = None
    if stalled_since(state, t_ns, grace_ns=COMPILE_GRACE_NS) is not None:
        diagnosis = diagnose_running(state, rank_states(state, t_ns), t_ns)
    if finished is not None and (diagnosis is None or finished not in diagnosis.waiting):
        return
    state.end.first_ns = t_ns
    if diagnosis is not None and STALLS[diagnosis.kind].is_conclusive:
        state.end.kept_stall = _kept(state, diagnosis, t_ns)


def _kept(state: RunState, diagnosis: Diagnosis, t_ns: int) -> KeptStall:
    return KeptStall(
        diagnosis,
        sentences.sentence(state, diagnosis),
        sentences.short_sentence(state, diagnosis),
        positions_of(state, diagnosis, t_ns),
        t_ns,
    )


def stall_at_end(state: RunState) -> KeptStall | None:
    """The stall from which all exits of ranks follow. None: no rank has ended in a stall, or one for a
    reason of its own.

    Marks the ranks that gave up waiting (`RankState.gave_up`), and those for which the others did not stay
    (`left_alone`).
    """
    ended = [rank for rank in state.presence.ended if state.ranks[rank].ended_badly]
    over = state.run is not None and state.run.state not in ("live", "finished")
    if state.end.first_ns is None or not (ended or over):
        return None
    update_left_alone(state.ranks)
    kept = state.end.kept_stall or _told_by_exits(state, ended)
    for rank in ended:
        state.ranks[rank].gave_up = kept is not None and _gave_up(state, kept.diagnosis, rank)
    own_reason = any(not follows(state.ranks[rank]) for rank in ended)
    return None if own_reason else kept


def _gave_up(state: RunState, stall: Diagnosis, rank: int) -> bool:
    """Whether an exit in this stall is the end of a wait."""
    rank_state = state.ranks[rank]
    if rank_state.left_early or interrupted(rank_state):
        return False
    if ended_in_collective(rank_state):
        return True
    if _ended_itself(rank_state):
        return rank in stall.waiting and rank_state.step <= stall.step
    first = state.end.first_ns or 0
    return rank_state.signal == "SIGABRT" and (rank not in stall.ranks or ended_ns(rank_state) > first)


def _ended_itself(rank_state: RankState) -> bool:
    """Whether it exited with a code and without an exception: as a script does that has caught the error of
    its collective."""
    exit_reason = reason(rank_state)
    without_error = not exit_reason or exit_reason.startswith("exit code ")
    return rank_state.signal is None and bool(rank_state.exit_code) and without_error


def _told_by_exits(state: RunState, ended: list[int]) -> KeptStall | None:
    """The stall that ended before it was diagnosed; None: what the ranks report does not show one.

    It follows from the stacks and collectives of the ranks at their exits, and from the last messages of the
    others.
    """
    t_ns = state.end.first_ns or 0
    aborted = [rank for rank in ended if _aborted_elsewhere(state.ranks[rank])]
    waited = [rank for rank in ended if rank in aborted or ended_in_collective(state.ranks[rank])]
    other_states = (state.ranks[rank] for rank in ended if rank not in waited)
    if not waited or not all(follows(rank_state) for rank_state in other_states):
        return None
    unfinished = [
        rank for rank, member in enumerate(state.ranks) if member.hello is not None and not member.finished
    ]
    since_ns = max(min(state.ranks[rank].moved_ns for rank in unfinished), state.excuses.declared_ns)
    timed_out = any(_TIMED_OUT.search(reason(state.ranks[rank])) for rank in waited)
    least_ns = max(LEAST_WAIT_NS, STALL_STEPS * median_step_ns(state))
    gave_up = aborted or (
        state.presence.is_nccl and any(state.ranks[rank].signal == "SIGABRT" for rank in waited)
    )
    if not timed_out and not (gave_up and t_ns - since_ns >= least_ns):
        return None
    progress = [
        _progress_at_exit(state, rank, since_ns, t_ns)
        if rank in waited
        else _last_seen(state, rank, since_ns, t_ns)
        for rank in unfinished
    ]
    result = diagnose(progress, awaits_answers=False)
    is_known = bool(result.sides) or (result.kind == "missing" and not result.outside)
    if not is_known or (result.kind == "missing" and not set(waited).isdisjoint(result.ranks)):
        return None
    waiting = tuple(rank for rank in unfinished if rank in {*waited, *result.waiting} - {*result.ranks})
    step = min((state.ranks[rank].step for rank in waiting or result.ranks), default=0)
    return _kept(state, replace(result, waiting=waiting, since_ns=since_ns, step=step), t_ns)


def _aborted_elsewhere(rank_state: RankState) -> bool:
    """Whether it was aborted while its main thread was in no collective: by NCCL's watchdog while it waited
    for the GPU, or by a script that has caught the error of its collective."""
    return rank_state.signal == "SIGABRT" and not ended_in_collective(rank_state)


def _progress_at_exit(state: RunState, rank: int, since_ns: int, t_ns: int) -> RankProgress:
    """How far a rank that has ended in a collective had got."""
    seen, last = _last_seen(state, rank, since_ns, t_ns), state.ranks[rank].exit_evidence
    if last is None:
        return seen
    sequences = dict(seen.sequences)
    for group in last.groups:
        if group.sequence >= 0:
            sequences[group.name] = max(group.sequence, sequences.get(group.name, 0))
    pending = operation_of(last)
    done = tuple(operation for operation in last.operations if operation != pending)
    operations = (*done, pending._replace(done=False)) if pending is not None else done
    return replace(
        seen, answered=True, has_moved=False, inside=True, sequences=sequences, operations=operations
    )


def _last_seen(state: RunState, rank: int, since_ns: int, t_ns: int) -> RankProgress:
    return replace(rank_progress(state, rank, since_ns, t_ns), silent=state.ranks[rank].stopped)


def followed_phrase(state: RunState, kept: KeptStall) -> str:
    """`ranks 0 and 2 gave up waiting after 20 s`: what followed from a stall; empty: nothing of this kind."""
    ended = (rank for rank in state.presence.ended if state.ranks[rank].gave_up)
    ranks = [rank for rank in ended if rank not in kept.diagnosis.ranks or kept.diagnosis.kind != "missing"]
    if not any(_waited_in_vain(state, state.ranks[rank]) for rank in ranks):
        return ""  # they have only lost a peer
    waited_s = (kept.ended_ns - kept.diagnosis.since_ns) / NS
    printed = (_WAITED.search(reason(state.ranks[rank])) for rank in ranks)
    waited_s = next((int(match[1]) / 1e3 for match in printed if match is not None), waited_s)
    return f"{ranks_phrase(ranks, state.world)} gave up waiting after {age(round(waited_s))}"


def _waited_in_vain(state: RunState, rank_state: RankState) -> bool:
    """Whether a rank ended because its collective did not complete: not since it had lost a peer, and not by
    gloo, which aborts where the tensors differ."""
    if rank_state.signal == "SIGABRT":
        return state.presence.is_nccl or _aborted_elsewhere(rank_state)
    return _TIMED_OUT.search(reason(rank_state)) is not None or not follows_a_peer(rank_state)


def ended_stall(state: RunState, kept: KeptStall) -> Stall:
    """The stall that has ended with the run's ranks, for frames."""
    diagnosis = kept.diagnosis
    positions = tuple(_at_end(state.ranks[position.rank], position) for position in kept.positions)
    return Stall(
        kind=diagnosis.kind,
        since_s=state.unix_s(diagnosis.since_ns),
        step=diagnosis.step,
        ranks=diagnosis.ranks,
        waiting=diagnosis.waiting,
        sentence=kept.sentence,
        detail=(
            *sentences.detail(state, diagnosis, positions, ended=True),
            *sentences.analyser_lines(state, diagnosis.since_ns),
        ),
        positions=positions,
        ended_s=state.unix_s(kept.ended_ns),
        restart=diagnosis.restart,
        followed=followed_phrase(state, kept),
    )


def _at_end(rank_state: RankState, position: RankPosition) -> RankPosition:
    """A rank's position in a stall, with how its process has ended since."""
    if not rank_state.ended_badly and rank_state.bye is None:
        return position
    before = STOPPED_THEN if position.process == "stopped" else ""
    return replace(position, process=before + process_phrase(rank_state))
