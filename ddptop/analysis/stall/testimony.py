"""What is known of one rank at a stall or at its end, and the ranks that died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.health.exits import ended_badly, ended_ns, own_call, process_words, reason
from ddptop.analysis.ranks import NS, STALE_S
from ddptop.frames import calls
from ddptop.frames.stall import MAX_POSITIONS, Death, RankPosition

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.evidence import Evidence, Operation

DEFAULT_GROUP = "0"


def answer_since(member: RankState, since_ns: int) -> Evidence | None:
    """Its answer, if that is from after `since_ns`: an older one tells of another standstill."""
    return member.evidence if member.evidence is not None and member.evidence_ns > since_ns else None


def sequence_of(member: RankState, group: str, told: Evidence | None) -> int | None:
    """Collectives that it has launched in a group, as far as heard."""
    seen = [state.sequence for state in (told.groups if told else ()) if state.name == group]
    if group == DEFAULT_GROUP and member.sequence is not None:
        seen.append(member.sequence)
    return max((number for number in seen if number >= 0), default=None)


def pending(told: Evidence | None, group: str | None = None) -> Operation | None:
    """The earliest collective that it has launched and that has not completed."""
    waiting = [op for op in (told.operations if told else ()) if not op.done and group in (None, op.group)]
    return min(waiting, key=lambda op: op.sequence, default=None)


def operation_words(op: Operation | None) -> str:
    """`all_reduce of [[1000]] Float`; empty for none."""
    if op is None:
        return ""
    shape = " ".join(part for part in (op.sizes, op.dtype) if part)
    return f"{operation_name(op)} of {shape}" if shape else operation_name(op)


def operation_name(op: Operation) -> str:
    """`all_reduce`, without the backend that flight recorders put before it."""
    return op.name.rsplit(":", 1)[-1]


def testimony(
    state: RunState,
    rank: int,
    now_ns: int,
    *,
    since_ns: int = 0,
    group: str = DEFAULT_GROUP,
    all_threads: bool = True,
) -> RankPosition:
    """`group`: the process group in question; `all_threads`: not the main thread's stack alone."""
    member = state.ranks[rank]
    told = answer_since(member, since_ns)
    ended = member.ended_badly or member.bye is not None
    if ended and member.last_words is not None:
        told = member.last_words
    t_ns = member.evidence_ns if told is member.evidence else None
    if ended:
        process = process_words(member)
        t_ns = ended_ns(member)
    elif member.stopped:
        process = "stopped"
    else:
        silent_ns = state.interruptions.silence_ns(member.heard_ns, now_ns)
        process = "silent" if silent_ns > STALE_S * NS else "alive"
    return RankPosition(
        rank=rank,
        host=member.host,
        pid=member.hello.pid if member.hello else None,
        process=process,
        step=member.step,
        bucket=member.bucket,
        sequence=sequence_of(member, group, told),
        group=group,
        operation=operation_words(pending(told, group) or pending(told)),
        user_call=own_call(member) if ended else calls.user_call(told.stacks) if told else None,
        traces=calls.traces(told.stacks, all_threads=all_threads) if told else (),
        at_s=state.unix_s(t_ns) if told is not None and t_ns is not None else None,
    )


def deaths(state: RunState, now_ns: int) -> tuple[Death, ...]:
    """In order of time, the cause of the others first; at most MAX_POSITIONS."""
    found = []
    for i, rank in enumerate(ended_badly(state.ranks)[:MAX_POSITIONS]):
        member = state.ranks[rank]
        found.append(
            Death(
                rank=rank,
                since_s=state.unix_s(ended_ns(member)),
                step=ended_step(state, rank),
                exit_code=member.exit_code,
                signal=member.signal,
                reason=reason(member),
                position=testimony(state, rank, now_ns, all_threads=i == 0),
            )
        )
    return tuple(found)


def ended_step(state: RunState, rank: int) -> int:
    """The step in which a rank ended: its last word on that may be half a second old.

    Where all ranks share one process group, no other can be more than a step ahead of it.
    """
    members = state.ranks
    step = members[rank].step
    if state.groups.only(len(members)) is None:
        return step
    return max(step, max(member.step for member in members) - 1)
