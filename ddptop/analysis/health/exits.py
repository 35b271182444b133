"""How a process ended, in words, and whether that can have been the cause of the others' end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddptop.frames.calls import place, user_call
from ddptop.frames.phrases import SENT_TO_ALL, ended_by_signal, exit_phrase
from ddptop.protocol.messages import WELL

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState
    from ddptop.frames.stall import Call

_FOLLOWS = re.compile(
    r"connection (reset|closed|refused|was closed)|read error|broken pipe|closed by peer"
    r"|remote (process|error)|ncclRemoteError|ncclSystemError|timed out|timeout|recvValue|socket"
    r"|KeyboardInterrupt|SignalException|SystemExit: (143|130)|process group .*(abort|terminat)",
    re.IGNORECASE,
)
"""What a rank says that ends because another one has ended: gloo's and NCCL's words for a lost peer."""


_BUILD_PATH = re.compile(r"\[[^\]\s]*/[^\]\s]*:\d+\] ")
"""`[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] `: where torch was built."""

LONGEST = 120
"""Characters of an exception's message: it may hold a whole tensor."""


def reason(member: RankState) -> str:
    """`ValueError: no such file`; empty where the rank could not say."""
    told = member.last_words.reason if member.last_words is not None else ""
    if not told and member.bye is not None and member.bye.reason not in WELL:
        told = member.bye.reason
    line = _BUILD_PATH.sub("", told.strip().split("\n", 1)[0])
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def own_call(member: RankState) -> Call | None:
    """Where in the user's code it ended."""
    return user_call(member.last_words.stacks) if member.last_words is not None else None


def process_words(member: RankState) -> str:
    """`killed by SIGKILL`, `exit code 1`, `gone`; what the process did, not why."""
    if member.signal is not None:
        return f"killed by {member.signal}" if member.signal == "SIGKILL" else f"ended by {member.signal}"
    if member.exit_code is not None and (member.exit_code or member.bye is None):
        return f"exit code {member.exit_code}"
    if member.bye is None:
        return "gone"
    return "finished" if member.finished else "ended"


def describe_exit(member: RankState, step: int | None = None) -> str:
    """The words after `rank 1`: `failed: ValueError: bad batch (train.py:88 load)`.

    `step`: where it ended, if that is known better than from its own last message.
    """
    call = own_call(member)
    where = f" ({place(call)})" if call is not None else ""
    at = f" at step {member.step if step is None else step:,}"
    return exit_phrase(member.signal, member.exit_code, reason(member), at=at, detail=where)


def has_words(member: RankState) -> bool:
    """More is known of its end than that its process is gone."""
    return member.signal is not None or member.exit_code is not None or bool(reason(member))


def follows(member: RankState) -> bool:
    """It ended as ranks do when another one is gone: no cause in itself."""
    if ended_by_signal(member.signal, reason(member)):
        return member.signal in SENT_TO_ALL
    return bool(_FOLLOWS.search(reason(member)))


def ended_ns(member: RankState) -> int:
    """When it is known to have ended, on the collector's clock."""
    times = (member.gone_ns, member.ended_ns, member.exit_ns)
    return min((t_ns for t_ns in times if t_ns is not None), default=0)


def ended_badly(members: list[RankState]) -> list[int]:
    """Ranks whose processes ended as they should not: causes first, then what followed from them, by time.

    A peer may notice a death before the collector does, so that time alone does not tell the cause.
    """
    ranks = [rank for rank, member in enumerate(members) if member.ended_badly]
    return sorted(ranks, key=lambda rank: (follows(members[rank]), ended_ns(members[rank]), rank))
