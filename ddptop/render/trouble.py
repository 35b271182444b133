"""The words for a stall and for kinds of alerts, on the screen and in plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.render.numbers import age

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.frames.stall import Stall

_KINDS = {
    "stall": "no progress",
    "mismatch": "ranks wait in different collectives",
    "lost_rank": "rank lost",
    "failed_rank": "rank failed",
    "exit": "process ended",
    "process": "process stopped or running again",
    "nan": "loss is not a number",
    "loss_spread": "losses far apart",
    "replica_drift": "replicas differ",
    "straggler": "straggler",
    "network": "network slow or lossy",
    "lost_records": "records lost",
    "recording": "recording incomplete",
    "refused_messages": "messages refused",
    "unreachable_host": "host unreachable",
    "host_unreachable": "host unreachable",
    "host_lost": "host lost",
    "host_back": "host reports again",
    "host_thinned": "host leaves out bucket detail",
}
"""Kinds of alerts and logged events in words."""

PAGE_KINDS = frozenset(("stall", "stalled", "mismatch", "lost_rank", "failed_rank", "exit"))
"""Kinds of alerts and logged events that the stall page shows more about."""


HOST_KINDS = frozenset(
    ("unreachable_host", "host_unreachable", "host_lost", "host_back", "host_thinned", "network")
)
"""Kinds that the view of hosts shows more about."""


def kind_phrase(kind: str) -> str:
    """A kind of alert or logged event in words."""
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
