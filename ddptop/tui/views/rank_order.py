"""Which ranks the table shows, and in which order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.signs import GRAVE, UNWELL
from ddptop.tui.scene import Scene

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column, Ranks

SORTS: dict[str, tuple[str, bool]] = {
    "step": ("step", False),
    "loss": ("loss", True),
    "ms/step": ("step_ms", True),
    "late": ("lateness_ms", True),
    "last%": ("last_pct", True),
    "data": ("data_ms", True),
    "fwd": ("forward_ms", True),
    "bwd": ("backward_ms", True),
    "opt": ("optimizer_ms", True),
    "other": ("other_ms", True),
    "wait": ("wait_ms", True),
    "move": ("transfer_ms", True),
    "mem": ("rss_bytes", True),
    "cpu%": ("cpu_pct", True),
    "lost": ("lost_records", True),
}
"""Sortable columns of numbers: field of `Ranks`, and whether the largest comes first."""

_RANK_OF_STATE = {state: at for at, state in enumerate((*UNWELL, "waiting", "live", "finished"))}

_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def ordered(scene: Scene, rows: int) -> list[int]:
    """Ranks that pass the filter, sorted. Where not all fit, those in trouble come before all others."""
    frame, place = scene.frame, scene.place
    chosen = _filtered(frame.ranks, place.filter)
    if place.sort in SORTS:
        name, falling = SORTS[place.sort]
        column: Column = getattr(frame.ranks, name)
        keys = -column if falling else column
        return [chosen[at] for at in np.argsort(keys[chosen], kind="stable").tolist()]
    if place.sort == "state":
        return sorted(chosen, key=lambda rank: _RANK_OF_STATE.get(frame.ranks.state[rank], 0))
    if place.sort in ("host", "dev"):
        texts = frame.ranks.host if place.sort == "host" else frame.ranks.device
        return sorted(chosen, key=lambda rank: texts[rank])
    return chosen if len(chosen) <= rows else _trouble_first(scene, chosen)


def _trouble_first(scene: Scene, chosen: list[int]) -> list[int]:
    states, culprits = scene.frame.ranks.state, {*scene.culprits, *scene.blamed}
    front = [rank for rank in chosen if states[rank] in UNWELL or rank in culprits]
    lifted = set(front)
    front.sort(key=lambda rank: (rank not in scene.blamed, states[rank] not in GRAVE, rank not in culprits))
    return front + [rank for rank in chosen if rank not in lifted]


def _filtered(ranks: Ranks, text: str) -> list[int]:
    chosen = list(range(len(ranks.state)))
    for word in text.lower().split():
        span = _SPAN.fullmatch(word)
        if span is not None:
            first, last = int(span[1]), int(span[2] or span[1])
            chosen = [rank for rank in chosen if first <= rank <= last]
        else:
            chosen = [
                rank
                for rank in chosen
                if word in ranks.host[rank].lower()
                or word in ranks.device[rank].lower()
                or word in ranks.state[rank]
                or word in ranks.phase[rank]
            ]
    return chosen
