"""Conditions that are present now, one alert per kind: ranks with the same condition share it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.analysis.health import bad_loss, links
from ddptop.analysis.health.exits import (
    describe_exit,
    ended_ns,
    exit_known,
    failure_of,
    follows,
    own_call,
    process_phrase,
    reason,
)
from ddptop.analysis.health.hosts import (
    UNREACHABLE_S,
    disks_alert,
    host_states,
    silence_phrase,
    silent_ranks,
)
from ddptop.analysis.health.outside_end import outside_end, outside_end_alert, unexplained_ends
from ddptop.analysis.ranks import SILENT_S
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.at_exit import followed_phrase
from ddptop.analysis.stall.collectives import find_fatal_sides, operation_phrase
from ddptop.analysis.stall.rank_position import ended_step, in_kernel, rank_position
from ddptop.frames.calls import compiler_call, compiling, place
from ddptop.frames.causes import late_part_phrase
from ddptop.frames.conditions import HOW_OFTEN, IN_TURN, STALLS, STATES, say
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import fixed, percent
from ddptop.frames.phrases import (
    blamed,
    missing_records_phrase,
    ranks_phrase,
    rare_phrase,
    repeated_phrase,
    which_hosts,
)
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import RECORDING_STOPPED
from ddptop.protocol.vocabulary import FAILED_STATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.stall.diagnosis import Diagnosis
    from ddptop.analysis.state import RunState
    from ddptop.frames.conditions import AlertKind
    from ddptop.frames.frame import Straggler
    from ddptop.frames.ledger import RareSlowness
    from ddptop.protocol.messages import Scalar
    from ddptop.protocol.vocabulary import RankStatus


def alerts(
    state: RunState,
    states: Sequence[RankStatus],
    straggler: Straggler | None,
    diagnosis: Diagnosis | None,
    now_ns: int,
) -> tuple[Alert, ...]:
    """The alerts that are active, the worst first. Of failed and lost ranks the causes come first.

    An end from outside stands for the ranks whose exits it explains.
    """
    outside = outside_end_alert(state)
    silent = silent_ranks(state, host_states(state, now_ns)) if state.hosts.known else {}
    silent_hosts = _alert_of_silent_hosts(state, states, silent, now_ns)
    exits: list[Alert | None] = [
        _alert_of_failed_ranks(state, states),
        _alert_of_lost_ranks(state, states, silent),
    ]
    if _first_lost(state, states):
        exits.reverse()
    # Ranks fail when they lose the connection to a silent host: then the host is the cause, and comes first.
    if silent_hosts is not None and all(follows(state.ranks[rank]) for rank in state.ended_badly()):
        exits.insert(0, replace(silent_hosts, evidence={**silent_hosts.evidence, "cause": True}))
    else:
        exits.append(silent_hosts)
    kept = state.stall_at_end()
    active = [
        outside,
        _alert_of_stall(state, diagnosis) if kept is not None else None,  # the exits follow from it
        *exits,
        _alert_of_stall(state, diagnosis) if kept is None else None,
        _alert_of_compiling_ranks(state) if diagnosis is None else None,
        _alert_of_mismatch(state, diagnosis),
        bad_loss.alert(state, now_ns),
        state.synchronisation.alert(),
        state.replicas.alert(),
        state.synchronisation.skipped.alert(),
        _alert_of_straggler(state, straggler),
        state.loss_spread.alert(),
        links.alert(state.hosts) if state.ended_ns is None else None,
        disks_alert(state, now_ns),
        state.preflight.alert(state.cards, state.presence.host_names) if state.ended_ns is None else None,
        _alert_of_lost_records(state),
        _alert_of_recording(state),
        _alert_of_refused_messages(state),
    ]
    return tuple(alert for alert in active if alert is not None)


def _first_lost(state: RunState, states: Sequence[RankStatus]) -> bool:
    ended = [rank for rank in state.ended_badly() if states[rank] in FAILED_STATES]
    return bool(ended) and states[ended[0]] == "lost"


def _alert_of_failed_ranks(state: RunState, states: Sequence[RankStatus]) -> Alert | None:
    ranks = [rank for rank in unexplained_ends(state) if states[rank] == "failed"]
    if not ranks:
        return None
    first = state.ranks[ranks[0]]
    alike = [rank for rank in ranks if describe_exit(state.ranks[rank]) == describe_exit(first)]
    ended = describe_exit(first, ended_step(state, ranks[0]))
    if len(alike) > 1 and ended.startswith("was "):
        ended = f"were{ended[3:]}"
    message = _gave_up_phrase(state, first) or say(
        "failed_rank", who=ranks_phrase(alike, len(states)), ended=ended
    )
    message = _repetition_phrase(state, first) + message
    if first.left_early:
        message += sentences.left_behind_phrase(state, ranks[0])
    evidence: dict[str, Scalar] = {"ranks": len(ranks), "reason": reason(first)}
    return _make_alert_of_death("failed_rank", state, ranks[0], message, evidence)


def _repetition_phrase(state: RunState, first: RankState) -> str:
    """`failed 4 times at train.py:26 (3 restarts): ` where attempts before failed alike."""
    failure = failure_of(first)
    return repeated_phrase(1 + state.end.failures.count(failure), failure.place, state.incarnation)


def _gave_up_phrase(state: RunState, rank_state: RankState) -> str:
    """`ranks 0 and 2 gave up waiting after 20 s: RuntimeError: Timed out (train.py:18 step)`; empty where
    the rank did not give up."""
    kept = state.stall_at_end()
    if kept is None or not rank_state.gave_up:
        return ""
    call = own_call(rank_state)
    where = f" ({place(call)})" if call is not None else ""
    waited, why = followed_phrase(state, kept), reason(rank_state) or process_phrase(rank_state)
    return say("failed_rank", "gave_up", waited=waited, reason=why, where=where)


def _make_alert_of_death(
    kind: AlertKind, state: RunState, rank: int, message: str, evidence: dict[str, Scalar]
) -> Alert:
    rank_state = state.ranks[rank]
    call = own_call(rank_state)
    evidence |= {"exit_code": rank_state.exit_code, "signal": rank_state.signal}
    evidence["call"] = place(call) if call is not None else None
    since_s = state.unix_s(ended_ns(rank_state))
    return Alert.declared(kind, rank, ended_step(state, rank), since_s, message, evidence)


def _alert_of_silent_hosts(
    state: RunState, states: Sequence[RankStatus], silent: Mapping[str, tuple[int, ...]], now_ns: int
) -> Alert | None:
    """The alert of hosts from which nothing arrives; of lost ones where there are any."""
    lost = {name: ranks for name, ranks in silent.items() if states[ranks[0]] == "lost"}
    shown = lost or {name: ranks for name, ranks in silent.items() if STATES[states[ranks[0]]].is_silent}
    if not shown:
        return None
    ranks = sorted(rank for ranks_of_host in shown.values() for rank in ranks_of_host)
    first = min(ranks, key=lambda rank: state.ranks[rank].step)
    heard_ns = max(state.ranks[rank].heard_ns for rank in ranks)
    since_s = state.unix_s(heard_ns) + (SILENT_S if lost else UNREACHABLE_S)
    step, bucket = state.ranks[first].step, state.ranks[first].bucket
    evidence: dict[str, Scalar] = {
        "hosts": " ".join(shown),
        "ranks": len(ranks),
        "last_step": step,
        "bucket": bucket,
    }
    message = silence_phrase(state, shown, now_ns, lost=bool(lost))
    kind: AlertKind = "lost_rank" if lost else "unreachable_host"
    return Alert.declared(kind, first, step, since_s, message, evidence)


def _alert_of_lost_ranks(
    state: RunState, states: Sequence[RankStatus], silent: Mapping[str, tuple[int, ...]]
) -> Alert | None:
    of_hosts = {rank for ranks in silent.values() for rank in ranks}
    ranks = [rank for rank, status in enumerate(states) if status == "lost" and rank not in of_hosts]
    gone = [rank for rank in unexplained_ends(state) if rank in ranks]
    if not ranks or (not gone and outside_end(state) is not None):
        return None
    if gone:
        first = state.ranks[gone[0]]
        evidence: dict[str, Scalar] = {"ranks": len(ranks), "last_step": first.step}
        ended = describe_exit(first, ended_step(state, gone[0]))
        message = say("failed_rank", who=ranks_phrase(gone[:1], len(states)), ended=ended)
        if not exit_known(first):
            whose = "its process is" if len(gone) == 1 else "their processes are"
            message = say("lost_rank", "gone", who=ranks_phrase(gone, len(states)), whose=whose)
        message = _gave_up_phrase(state, first) or _repetition_phrase(state, first) + message
        return _make_alert_of_death("lost_rank", state, gone[0], message, evidence)
    return _alert_of_silent_ranks(state, ranks)


def _alert_of_silent_ranks(state: RunState, ranks: list[int]) -> Alert:
    """The alert of ranks whose hosts do not report either; how their processes exited is unknown."""
    first = min(ranks, key=lambda rank: state.ranks[rank].heard_ns)
    rank_state = state.ranks[first]
    message = say(
        "lost_rank",
        "silent" if state.ended_ns is None else "ended",
        who=ranks_phrase(ranks, state.world),
        they="it" if len(ranks) == 1 else "they",
        silent_s=SILENT_S,
    )
    since_s = state.unix_s(rank_state.heard_ns + int(SILENT_S * NS))
    evidence: dict[str, Scalar] = {"ranks": len(ranks), "last_step": rank_state.step}
    return Alert.declared("lost_rank", first, rank_state.step, since_s, message, evidence)


def _alert_of_compiling_ranks(state: RunState) -> Alert | None:
    """The ranks that compile, as their stacks showed when they were asked why they make no progress, and that
    have not moved since."""
    if not state.excuses.compiling_ns or state.ended_ns is not None:
        return None
    ranks = [
        rank
        for rank, rank_state in enumerate(state.ranks)
        if rank_state.evidence is not None
        and rank_state.moved_ns < rank_state.evidence_ns
        and rank_state.running
        and compiling(rank_state.evidence.stacks)
    ]
    if not ranks:
        return None
    first = state.ranks[ranks[0]]
    call = compiler_call(first.evidence.stacks) if first.evidence is not None else None
    case = "others_wait" if len(ranks) < state.world else ""
    be = "is" if len(ranks) == 1 else "are"
    message = say("compiling", case, who=ranks_phrase(ranks, state.world), be=be, step=first.step)
    evidence: dict[str, Scalar] = {"ranks": len(ranks), "call": place(call) if call is not None else None}
    return Alert.declared("compiling", ranks[0], first.step, state.unix_s(first.moved_ns), message, evidence)


def _alert_of_stall(state: RunState, diagnosis: Diagnosis | None) -> Alert | None:
    if diagnosis is None or STALLS[diagnosis.kind].has_own_alert:
        return None
    rank, kept = diagnosis.ranks[0] if diagnosis.ranks else None, state.stall_at_end()
    evidence: dict[str, Scalar] = {"verdict": diagnosis.kind, "blamed": len(diagnosis.ranks)}
    step, since_ns = diagnosis.step, diagnosis.since_ns
    if rank is not None:
        rank_state = state.ranks[rank]
        position = next((p for p in kept.positions if p.rank == rank), None) if kept is not None else None
        position = position or rank_position(state, rank, since_ns, since_ns=since_ns, group=diagnosis.group)
        call = position.user_call
        step = rank_state.step
        evidence |= {
            "phase": rank_state.phase or None,
            "bucket": rank_state.bucket,
            "sequence": position.sequence,
            "operation": position.operation or None,
            "call": place(call) if call is not None else in_kernel(rank_state, since_ns),
            "stopped": rank_state.stopped,
        }
        if position.waits_for:
            evidence["waits_for"] = position.waits_for.partition(", which ")[0]
    message = sentences.short_sentence(state, diagnosis) if kept is None else kept.short_sentence
    return Alert.declared("stall", rank, step, state.unix_s(since_ns), message, evidence)


def _alert_of_mismatch(state: RunState, diagnosis: Diagnosis | None) -> Alert | None:
    """The mismatch of a stall, or one for which gloo aborted a rank: tensors of different sizes."""
    if diagnosis is None or not diagnosis.sides:
        return _alert_of_fatal_mismatch(state)
    since_ns = diagnosis.since_ns
    evidence: dict[str, Scalar] = {"group": diagnosis.group, "sequence": diagnosis.sequence}
    for i, side in enumerate(diagnosis.sides):
        call = rank_position(state, side.ranks[0], since_ns, since_ns=since_ns).user_call
        evidence[f"side{i}_rank"] = side.ranks[0]
        evidence[f"side{i}_ranks"] = len(side.ranks)
        evidence[f"side{i}_operation"] = operation_phrase(side.operation)
        evidence[f"side{i}_call"] = place(call) if call is not None else None
    rank, since_s = diagnosis.sides[0].ranks[0], state.unix_s(since_ns)
    kept = state.stall_at_end()
    message = sentences.sentence(state, diagnosis) if kept is None else kept.sentence
    return Alert.declared("mismatch", rank, diagnosis.step, since_s, message, evidence)


def _alert_of_fatal_mismatch(state: RunState) -> Alert | None:
    ended = unexplained_ends(state)
    if not ended:
        return None
    sides = find_fatal_sides(state.ranks, ended, [rank for rank in ended if follows(state.ranks[rank])])
    if not sides:
        return None
    evidence: dict[str, Scalar] = {}
    for i, side in enumerate(sides):
        evidence |= {f"side{i}_rank": side.rank, f"side{i}_operation": side.operation or None}
        evidence[f"side{i}_call"] = side.call or None
    evidence["cause"] = "gloo aborted: the tensors differ in size, or a call was left out"
    rank_state = state.ranks[sides[0].rank]
    message = say("mismatch", sides=", ".join(_side_phrase(*side) for side in sides))
    since_s = state.unix_s(ended_ns(state.ranks[ended[0]]))
    return Alert.declared("mismatch", sides[0].rank, rank_state.step, since_s, message, evidence)


def _side_phrase(rank: int, operation: str, call: str) -> str:
    """`rank 1 in all_reduce of [[1000]] Float (train.py:88 step)`, as far as known."""
    where = f" ({call})" if call else ""
    return say("mismatch", "side", rank=rank, operation=operation or "a collective", where=where)


def _alert_of_straggler(state: RunState, straggler: Straggler | None) -> Alert | None:
    if straggler is None:
        return None
    s = straggler
    if s.rare is not None:
        return _alert_of_rare_straggler(state, s, s.rare)
    ranks = blamed(s)
    ending = "" if len(ranks) > 1 else "s"
    part = late_part_phrase(s.cause, s.place)
    names = state.presence.host_names
    who = ranks_phrase(ranks, state.world) + which_hosts(names, ranks) if ranks else "one rank"
    message = say(
        "straggler",
        "in_group" if s.group else s.basis,
        who=who,
        take=f"take{ending}",
        arrive=f"arrive{ending}",
        group=s.group,
        late=fixed(s.lateness_ms),
        part=part and f" {part}",
        often=HOW_OFTEN.get(s.pattern or "", "") if ranks else IN_TURN,
        cost=percent(s.cost_pct),
    )
    evidence: dict[str, Scalar] = {
        "lateness_ms": round(s.lateness_ms, 3),
        "cost_pct": round(s.cost_pct, 2),
        "cause": s.cause,
    }
    if s.place is not None:
        evidence["place"] = s.place
    if s.group:
        evidence["group"] = s.group
    since_s = state.group_arrivals.late_since_s if s.group else state.figures.straggler_since_s
    return Alert.declared("straggler", s.rank if ranks else None, None, since_s, message, evidence)


def _alert_of_rare_straggler(state: RunState, straggler: Straggler, rare: RareSlowness) -> Alert:
    where = which_hosts(state.presence.host_names, (straggler.rank,))
    evidence: dict[str, Scalar] = {
        "lateness_ms": round(straggler.lateness_ms, 3),
        "cost_pct": round(straggler.cost_pct, 2),
        "cause": straggler.cause,
        "slow_steps": rare.n_slow,
        "last_step": rare.steps[-1],
    }
    if straggler.place is not None:
        evidence["place"] = straggler.place
    since_s = state.started_s + rare.since_s
    text = rare_phrase(straggler, rare, where)
    return Alert.declared("straggler", straggler.rank, rare.steps[-1], since_s, text, evidence)


def _alert_of_lost_records(state: RunState) -> Alert | None:
    of_ranks = state.table.lost_records
    lost = Counter({rank: int(of_ranks[rank]) for rank in of_ranks.nonzero()[0].tolist()})
    if not lost:
        return None
    total, (worst, most) = lost.total(), lost.most_common(1)[0]
    message = say("lost_records", missing=missing_records_phrase(total), most=most, rank=worst)
    since = state.unix_s(state.missing.lost_since_ns or 0)
    return Alert.declared("lost_records", worst, None, since, message, {"lost": total, "ranks": len(lost)})


def _alert_of_recording(state: RunState) -> Alert | None:
    if state.missing.recording_trouble is None:
        return None
    t_ns, message = state.missing.recording_trouble
    evidence: dict[str, Scalar] = {"stopped": message.startswith(RECORDING_STOPPED)}
    return Alert.declared("recording", None, None, state.unix_s(t_ns), message, evidence)


def _alert_of_refused_messages(state: RunState) -> Alert | None:
    """Messages that the collector refused: malformed, of another version, or after an internal error."""
    if state.missing.refused is None:
        return None
    since_ns, event = state.missing.refused
    counts = {name: event.fields.get(name) for name in ("refused", "failed")}
    words = [f"{count:,} {name}" for name, count in counts.items() if isinstance(count, int) and count]
    reason = event.fields.get("reason")
    why = f" ({reason})" if reason else ""
    message = say("refused_messages", counts=", ".join(words), why=why)
    since_s = state.unix_s(since_ns)
    return Alert.declared("refused_messages", None, None, since_s, message, {**counts, "reason": reason})
