"""Conditions that hold now, one alert for each kind: many ranks in the same trouble share it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import describe_exit, ended_badly, ended_ns, has_words, own_call, reason
from ddptop.analysis.ranks import NS, SILENT_S
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.fatal_mismatch import fatal_mismatch
from ddptop.analysis.stall.testimony import ended_step, operation_words, testimony
from ddptop.frames.calls import place
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.stall.positions import Standstill
    from ddptop.analysis.state import RunState
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.messages import Scalar
    from ddptop.protocol.vocabulary import AlertKind, RankStatus

PASSED_LOSS_NS = 600 * NS
"""A loss that was no number for a moment is told so long: whoever looks now and then has seen it."""


def alerts(
    state: RunState,
    states: Sequence[RankStatus],
    straggler: Straggler | None,
    stood: Standstill | None,
    now_ns: int,
) -> tuple[Alert, ...]:
    """The worst first; of ranks that failed and ranks that are lost, those that were the cause."""
    gone = [_failed(state, states), _lost(state, states)]
    if _first_lost(state, states):
        gone.reverse()
    found = [
        *gone,
        _stalled(state, stood),
        _mismatch(state, stood),
        _bad_loss(state) or _bad_loss_before(state, now_ns),
        state.replicas.alert(),
        _late(state, straggler),
        state.loss_spread.alert(),
        _lost_records(state),
        _recording(state),
        _refused(state),
    ]
    return tuple(alert for alert in found if alert is not None)


def _having(states: Sequence[RankStatus], state: RankStatus) -> list[int]:
    return [rank for rank, own in enumerate(states) if own == state]


def _first_lost(state: RunState, states: Sequence[RankStatus]) -> bool:
    ended = [rank for rank in ended_badly(state.ranks) if states[rank] in ("lost", "failed")]
    return bool(ended) and states[ended[0]] == "lost"


def _failed(state: RunState, states: Sequence[RankStatus]) -> Alert | None:
    ranks = [rank for rank in ended_badly(state.ranks) if states[rank] == "failed"]
    if not ranks:
        return None
    first = state.ranks[ranks[0]]
    alike = [rank for rank in ranks if describe_exit(state.ranks[rank]) == describe_exit(first)]
    message = f"{ranks_phrase(alike, len(states))} {describe_exit(first, ended_step(state, ranks[0]))}"
    evidence: dict[str, Scalar] = {"ranks": len(ranks), "reason": reason(first)}
    return _of_death("failed_rank", state, ranks[0], message, evidence)


def _of_death(
    kind: AlertKind, state: RunState, rank: int, message: str, evidence: dict[str, Scalar]
) -> Alert:
    member = state.ranks[rank]
    call = own_call(member)
    evidence |= {"exit_code": member.exit_code, "signal": member.signal}
    evidence["call"] = place(call) if call is not None else None
    since_s = state.unix_s(ended_ns(member))
    return Alert(kind, "critical", rank, ended_step(state, rank), since_s, message, evidence)


def _lost(state: RunState, states: Sequence[RankStatus]) -> Alert | None:
    ranks = _having(states, "lost")
    if not ranks:
        return None
    gone = [rank for rank in ended_badly(state.ranks) if rank in ranks]
    if gone:
        first = state.ranks[gone[0]]
        evidence: dict[str, Scalar] = {"ranks": len(ranks), "last_step": first.step}
        message = f"{ranks_phrase(gone[:1], len(states))} {describe_exit(first, ended_step(state, gone[0]))}"
        if not has_words(first):
            many = "its process is gone" if len(gone) == 1 else "their processes are gone"
            message = f"{ranks_phrase(gone, len(states))} lost: {many}"
        return _of_death("lost_rank", state, gone[0], message, evidence)
    return _silent(state, ranks)


def _silent(state: RunState, ranks: list[int]) -> Alert:
    """No process was seen to end, but nothing is heard of it and its host."""
    first = min(ranks, key=lambda rank: state.ranks[rank].heard_ns)
    member = state.ranks[first]
    how = f"silent for more than {SILENT_S:.0f} s"
    if state.ended_ns is not None:
        how = f"the run ended without a word of {'it' if len(ranks) == 1 else 'them'}"
    message = f"{ranks_phrase(ranks, len(state.ranks))} lost: {how}"
    since_s = state.unix_s(member.heard_ns + int(SILENT_S * NS))
    evidence: dict[str, Scalar] = {"ranks": len(ranks), "last_step": member.step}
    return Alert("lost_rank", "critical", first, member.step, since_s, message, evidence)


def _stalled(state: RunState, stood: Standstill | None) -> Alert | None:
    if stood is None or stood.found.kind == "dead":
        return None
    found = stood.found
    rank = found.blamed[0] if found.blamed else None
    evidence: dict[str, Scalar] = {"verdict": found.kind, "blamed": len(found.blamed)}
    step = stood.step
    if rank is not None:
        member = state.ranks[rank]
        told = testimony(state, rank, stood.since_ns, since_ns=stood.since_ns, group=found.group)
        call = told.user_call
        step = member.step
        evidence |= {
            "phase": member.phase or None,
            "bucket": member.bucket,
            "sequence": told.sequence,
            "operation": told.operation or None,
            "call": place(call) if call is not None else None,
            "stopped": member.stopped,
        }
    since_s = state.unix_s(stood.since_ns)
    return Alert("stall", "critical", rank, step, since_s, sentences.short(state, stood), evidence)


def _mismatch(state: RunState, stood: Standstill | None) -> Alert | None:
    """Of a stall, or of a rank that gloo aborted because the others' tensors were of another size."""
    if stood is not None and stood.found.mismatch is not None:
        found = stood.found.mismatch
        evidence: dict[str, Scalar] = {"group": found.group, "sequence": found.sequence}
        for i, side in enumerate(found.sides):
            call = testimony(state, side.ranks[0], stood.since_ns, since_ns=stood.since_ns).user_call
            evidence[f"side{i}_rank"] = side.ranks[0]
            evidence[f"side{i}_ranks"] = len(side.ranks)
            evidence[f"side{i}_operation"] = operation_words(side.operation)
            evidence[f"side{i}_call"] = place(call) if call is not None else None
        since_s, text = state.unix_s(stood.since_ns), sentences.sentence(state, stood)
        return Alert("mismatch", "critical", found.sides[0].ranks[0], stood.step, since_s, text, evidence)
    return fatal_mismatch(state)


def _bad_loss(state: RunState) -> Alert | None:
    bad = [
        (m.bad_loss_ns, rank, m.bad_loss_step)
        for rank, m in enumerate(state.ranks)
        if m.bad_loss_step is not None
    ]
    if not bad:
        return None
    since_ns, rank, step = min(bad, key=lambda one: (one[2], one[0], one[1]))
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    message = f"loss of rank {rank}{others} is NaN or infinite since step {step:,}"
    return Alert("nan", "critical", rank, step, state.unix_s(since_ns), message, {"ranks": len(bad)})


def _bad_loss_before(state: RunState, now_ns: int) -> Alert | None:
    """One that came and went: nobody may have looked just then, and the weights may keep it."""
    passed = [
        (m.bad_loss_before, rank)
        for rank, m in enumerate(state.ranks)
        if m.bad_loss_before is not None and now_ns - m.bad_loss_before.finite_ns < PASSED_LOSS_NS
    ]
    if not passed:
        return None
    first, rank = min(passed, key=lambda one: (one[0].step, one[1]))
    again = max(one.finite_step for one, _ in passed)
    others = f" and {len(passed) - 1} more" if len(passed) > 1 else ""
    steps = (
        f"from step {first.step:,} to {again - 1:,}" if again - 1 > first.step else f"at step {first.step:,}"
    )
    message = f"loss of rank {rank}{others} was NaN or infinite {steps}"
    evidence: dict[str, Scalar] = {"ranks": len(passed), "finite_step": again}
    return Alert("nan", "warning", rank, first.step, state.unix_s(first.since_ns), message, evidence)


def _late(state: RunState, straggler: Straggler | None) -> Alert | None:
    if straggler is None:
        return None
    s = straggler
    who = ranks_phrase([*(s.ranks or (s.rank,))], len(state.ranks))
    often = {"intermittent": " now and then", "rotating": " at present"}.get(s.pattern or "", "")
    verb = "arrive" if len(s.ranks) > 1 else "arrives"
    message = f"{who} {verb} {s.lateness_ms:.1f} ms late{often}, costs {s.cost_pct:.0f}% of the step time"
    evidence = {"lateness_ms": round(s.lateness_ms, 3), "cost_pct": round(s.cost_pct, 2), "cause": s.cause}
    return Alert("straggler", "warning", s.rank, None, state.figures.straggler_since_s, message, evidence)


def _lost_records(state: RunState) -> Alert | None:
    lost = Counter({rank: m.lost_records for rank, m in enumerate(state.ranks) if m.lost_records})
    if not lost:
        return None
    total, (worst, most) = lost.total(), lost.most_common(1)[0]
    message = f"{total:,} step record{'s' if total > 1 else ''} lost, {most:,} of them of rank {worst}"
    since = state.unix_s(state.lost_since_ns or 0)
    return Alert("lost_records", "warning", worst, None, since, message, {"lost": total, "ranks": len(lost)})


def _recording(state: RunState) -> Alert | None:
    if state.recording_trouble is None:
        return None
    t_ns, message = state.recording_trouble
    return Alert("recording", "warning", None, None, state.unix_s(t_ns), message)


def _refused(state: RunState) -> Alert | None:
    """Messages that the collector did not take: hostile, of another version, or an error of ours."""
    if state.refused_messages is None:
        return None
    since_ns, event = state.refused_messages
    counts = {name: event.fields.get(name) for name in ("refused", "failed")}
    words = [f"{count:,} {name}" for name, count in counts.items() if isinstance(count, int) and count]
    reason = event.fields.get("reason")
    message = f"messages to the collector: {', '.join(words)}" + (f" ({reason})" if reason else "")
    since_s = state.unix_s(since_ns)
    return Alert("refused_messages", "warning", None, None, since_s, message, {**counts, "reason": reason})
