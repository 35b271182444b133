"""Stalls and deaths in words, for screen and plain text alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.phrases import MEANINGS
from ddptop.render.numbers import age

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.frames.stall import Death, Stall

_KINDS = {
    "stall": "no progress",
    "mismatch": "ranks wait in different collectives",
    "lost_rank": "rank lost",
    "failed_rank": "rank failed",
    "exit": "process ended",
    "process": "process stopped or running again",
    "nan": "loss is no number",
    "loss_spread": "losses far apart",
    "replica_drift": "replicas differ",
    "straggler": "straggler",
    "lost_records": "records lost",
    "recording": "recording incomplete",
    "refused_messages": "messages refused",
}
"""What a kind of alert or happening means."""

PAGE_KINDS = frozenset(("stall", "stalled", "mismatch", "lost_rank", "failed_rank", "exit"))
"""Kinds of which the stall page shows more."""


def kind_words(kind: str) -> str:
    """A kind of alert or happening for a person."""
    return _KINDS.get(kind, kind.replace("_", " "))


def in_trouble(frame: Frame) -> bool:
    """Whether the stall page has something to show."""
    return frame.stall is not None or bool(frame.deaths)


def step_now(frame: Frame) -> int | None:
    """The step that the group is at: the newest complete one; during a stall the one that is under way."""
    stuck = frame.stall.step if frame.stall is not None else None
    return frame.group.step if stuck is None else stuck


def stalled_for(stall: Stall, now_s: float) -> str:
    """`STALLED 17 s`."""
    return f"STALLED {age(now_s - stall.since_s)}"


def death_words(death: Death) -> str:
    """`rank 2 was killed by SIGKILL (out of memory?)`, `rank 2 failed: ValueError: no such file`."""
    who = f"rank {death.rank}"
    said = f": {death.reason}" if death.reason else ""
    if death.signal is not None:
        what, often = MEANINGS.get(death.signal, (f"was ended by {death.signal}", ""))
        return f"{who} {what}{said or often}"
    if death.reason:
        code = f" (exit code {death.exit_code})" if death.exit_code else ""
        return f"{who} failed{said}{code}"
    if death.exit_code is not None:
        return f"{who} ended with exit code {death.exit_code}"
    return f"{who} is gone: its process has ended"
