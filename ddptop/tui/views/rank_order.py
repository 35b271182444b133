"""Which ranks the table shows, and in which order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.signs import UNWELL
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
    if place.sort in ("host", "dev", "state"):
        texts = frame.ranks.device if place.sort == "dev" else getattr(frame.ranks, place.sort)
        return sorted(chosen, key=lambda rank: texts[rank])
    if len(chosen) <= rows:
        return chosen
    return sorted(chosen, key=lambda rank: _trouble(scene, rank))


def _trouble(scene: Scene, rank: int) -> int:
    state = scene.frame.ranks.state[rank]
    if state in UNWELL[:3]:
        return 0
    if rank == scene.culprit:
        return 1
    return 2 if state in UNWELL else 3


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
