"""Conditions that hold now, one alert for each kind: many ranks in the same trouble share it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ddptop.analysis.frames import Alert
from ddptop.analysis.happenings import ranks_phrase
from ddptop.analysis.members import NS, SILENT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Straggler
    from ddptop.analysis.reducer import Reducer


def alerts(
    reducer: Reducer, states: Sequence[str], straggler: Straggler | None, now_ns: int
) -> tuple[Alert, ...]:
    """The worst first."""
    found = [
        _failed(reducer, states),
        _lost(reducer, states),
        _stalled(reducer, states, now_ns),
        _bad_loss(reducer),
        _late(reducer, straggler),
        _lost_records(reducer),
        _recording(reducer),
    ]
    return tuple(alert for alert in found if alert is not None)


def _having(states: Sequence[str], state: str) -> list[int]:
    return [rank for rank, own in enumerate(states) if own == state]


def _failed(reducer: Reducer, states: Sequence[str]) -> Alert | None:
    ranks = _having(states, "failed")
    if not ranks:
        return None
    first = min(ranks, key=lambda rank: reducer.members[rank].ended_ns or 0)
    member = reducer.members[first]
    reason = member.bye.reason if member.bye else ""
    message = f"{ranks_phrase(ranks, len(states))} failed: {reason}"
    since = reducer.unix_s(member.ended_ns or 0)
    return Alert(
        "failed_rank", "critical", first, member.step, since, message, {"ranks": len(ranks), "reason": reason}
    )


def _lost(reducer: Reducer, states: Sequence[str]) -> Alert | None:
    ranks = _having(states, "lost")
    if not ranks:
        return None

    def since_ns(rank: int) -> int:
        member = reducer.members[rank]
        return member.gone_ns or member.heard_ns + int(SILENT_S * NS)

    first = min(ranks, key=since_ns)
    member = reducer.members[first]
    if member.gone_ns is not None:
        how = "its process is gone" if len(ranks) == 1 else "their processes are gone"
    elif reducer.ended_ns is not None:
        how = (
            "the run ended without a word of it"
            if len(ranks) == 1
            else "the run ended without a word of them"
        )
    else:
        how = f"silent for more than {SILENT_S:.0f} s"
    message = f"{ranks_phrase(ranks, len(states))} lost: {how}"
    evidence = {"ranks": len(ranks), "last_step": member.step}
    return Alert(
        "lost_rank", "critical", first, member.step, reducer.unix_s(since_ns(first)), message, evidence
    )


def _stalled(reducer: Reducer, states: Sequence[str], now_ns: int) -> Alert | None:
    """Plainly: the step has not moved. Who is missing is for the stall analysis to say."""
    ranks = _having(states, "stalled")
    if not ranks:
        return None
    behind = min(ranks, key=lambda rank: (reducer.members[rank].step, reducer.members[rank].moved_ns))
    member = reducer.members[behind]
    seconds = (now_ns - member.moved_ns) / NS
    message = f"{ranks_phrase(ranks, len(states))} in step {member.step:,} for {seconds:.0f} s"
    evidence = {
        "ranks": len(ranks),
        "phase": member.phase or None,
        "bucket": member.bucket,
        "sequence": member.sequence,
    }
    return Alert("stall", "critical", behind, member.step, reducer.unix_s(member.moved_ns), message, evidence)


def _bad_loss(reducer: Reducer) -> Alert | None:
    bad = [
        (m.bad_loss_ns, rank, m.bad_loss_step)
        for rank, m in enumerate(reducer.members)
        if m.bad_loss_step is not None
    ]
    if not bad:
        return None
    since_ns, rank, step = min(bad, key=lambda one: (one[2], one[0]))
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    message = f"loss of rank {rank}{others} is NaN or infinite since step {step:,}"
    return Alert("nan", "critical", rank, step, reducer.unix_s(since_ns), message, {"ranks": len(bad)})


def _late(reducer: Reducer, straggler: Straggler | None) -> Alert | None:
    if straggler is None:
        return None
    s = straggler
    message = f"rank {s.rank} arrives {s.lateness_ms:.1f} ms late, costs {s.cost_pct:.0f}% of every step"
    evidence = {"lateness_ms": round(s.lateness_ms, 3), "cost_pct": round(s.cost_pct, 2), "cause": s.cause}
    return Alert("straggler", "warning", s.rank, None, reducer.figures.straggler_since_s, message, evidence)


def _lost_records(reducer: Reducer) -> Alert | None:
    lost = Counter({rank: m.lost_records for rank, m in enumerate(reducer.members) if m.lost_records})
    if not lost:
        return None
    total, (worst, most) = lost.total(), lost.most_common(1)[0]
    message = f"{total:,} step record{'s' if total > 1 else ''} lost, {most:,} of them of rank {worst}"
    since = reducer.unix_s(reducer.lost_since_ns or 0)
    return Alert("lost_records", "warning", worst, None, since, message, {"lost": total, "ranks": len(lost)})


def _recording(reducer: Reducer) -> Alert | None:
    if reducer.recording_trouble is None:
        return None
    t_ns, message = reducer.recording_trouble
    return Alert("recording", "warning", None, None, reducer.unix_s(t_ns), message)
