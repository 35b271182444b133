"""A collective mismatch that killed a rank: gloo aborts where a peer sends more bytes than were expected.

Seen with torch 2.13: `op.preamble.length <= op.nbytes. 2000 vs 1000` from a gloo thread, SIGABRT without a
Python exception; the other rank then fails with `Connection reset by peer`, or torchrun ends it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddptop.analysis.health.exits import ended_badly, ended_ns, follows
from ddptop.analysis.stall.testimony import operation_words, pending
from ddptop.frames.calls import collective_called, in_collective, place, user_call
from ddptop.frames.frame import Alert

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.evidence import Evidence
    from ddptop.protocol.messages import Scalar


class _Side(NamedTuple):
    rank: int
    operation: str
    call: str

    def words(self) -> str:
        at = f" ({self.call})" if self.call else ""
        return f"rank {self.rank} in {self.operation or 'a collective'}{at}"


def fatal_mismatch(state: RunState) -> Alert | None:
    """The alert with both sides, as far as they spoke; None where no rank was aborted in a collective."""
    ranks = ended_badly(state.ranks)
    if not ranks or not _aborted_in_collective(state.ranks[ranks[0]]):
        return None
    member = state.ranks[ranks[0]]
    own = _side(ranks[0], member)
    other = next((side for side in _peers(state, ranks) if side is not None), None)
    if own is None:
        return None
    sides = [own] if other is None else [own, other]
    evidence: dict[str, Scalar] = {}
    for i, side in enumerate(sides):
        evidence |= {f"side{i}_rank": side.rank, f"side{i}_operation": side.operation or None}
        evidence[f"side{i}_call"] = side.call or None
    evidence["cause"] = "gloo aborted: the tensors differ in size, or a call was left out"
    text = "mismatch: " + ", ".join(side.words() for side in sides)
    return Alert(
        "mismatch", "critical", own.rank, member.step, state.unix_s(ended_ns(member)), text, evidence
    )


def _aborted_in_collective(member: RankState) -> bool:
    words = member.last_words
    if words is None or member.hello is None or "gloo" not in member.hello.backend:
        return False
    aborted = member.signal == "SIGABRT" or (member.signal is None and "Abort" in words.reason)
    return aborted and in_collective(words.stacks)


def _peers(state: RunState, ended: list[int]) -> list[_Side | None]:
    """What the others were in: those that failed on losing their peer, then those that answered."""
    failed = [rank for rank in ended[1:] if follows(state.ranks[rank])]
    rest = [rank for rank in range(len(state.ranks)) if rank not in ended]
    return [_side(rank, state.ranks[rank]) for rank in (*failed, *rest)]


def _side(rank: int, member: RankState) -> _Side | None:
    words = member.last_words or member.evidence
    if words is None:
        return None
    call = user_call(words.stacks)
    return _Side(rank, _operation(words), place(call) if call is not None else "")


def _operation(words: Evidence) -> str:
    # gloo marks a collective that failed as done: of a rank that has ended the newest one is meant.
    newest = words.operations[-1] if words.operations and words.reason else None
    told = operation_words(pending(words) or newest)
    return told or collective_called(words.stacks) or ("backward" if in_collective(words.stacks) else "")
