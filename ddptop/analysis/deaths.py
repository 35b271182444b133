"""Ranks whose processes ended as they should not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.endings import ended_badly, ended_ns, ended_step, reason
from ddptop.analysis.stall_frames import MAX_TESTIMONIES, Death
from ddptop.analysis.testimony import testimony

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer


def deaths(reducer: Reducer, now_ns: int) -> tuple[Death, ...]:
    """In order of time, the cause of the others first; at most MAX_TESTIMONIES."""
    found = []
    for i, rank in enumerate(ended_badly(reducer.members)[:MAX_TESTIMONIES]):
        member = reducer.members[rank]
        found.append(
            Death(
                rank=rank,
                since_s=reducer.unix_s(ended_ns(member)),
                step=ended_step(reducer, rank),
                exit_code=member.exit_code,
                signal=member.signal,
                reason=reason(member),
                testimony=testimony(reducer, rank, now_ns, all_threads=i == 0),
            )
        )
    return tuple(found)
