"""Which ranks the table shows, and in which order."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.phases import PARTS, SHORT
from ddptop.render.signs import GRAVE, UNWELL
from ddptop.tui import match
from ddptop.tui.scene import Scene

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Ranks

SORTS: dict[str, tuple[str, bool]] = {
    "step": ("step", False),
    "loss": ("loss", True),
    "ms/step": ("step_ms", True),
    "late": ("lateness_ms", True),
    "last%": ("last_pct", True),
    **{SHORT.get(part.name, part.name): (part.name, True) for part in PARTS},
    "mem": ("rss_bytes", True),
    "cpu%": ("cpu_pct", True),
    "lost": ("lost_records", True),
    "score": ("relative_score", False),
}
"""Sortable columns of numbers: field of `Ranks` or part of the step, and whether the largest comes first."""

COLUMNS = ("rank", "host", "dev", "state", *SORTS)
"""Everything that the table can be sorted by."""

_RANK_OF_STATE = {state: at for at, state in enumerate((*UNWELL, "waiting", "live", "finished"))}


def ordered(scene: Scene, rows: int) -> list[int]:
    """Ranks that pass the filter, sorted. Where not all fit, those in trouble come before all others."""
    frame, place = scene.frame, scene.place
    chosen = passing(frame.ranks, place.filter)
    if place.follow and place.rank not in chosen and place.rank < len(frame.ranks.state):
        chosen = sorted([*chosen, place.rank])
    if place.sort == "rank" and not place.inverted:
        return chosen if len(chosen) <= rows else _trouble_first(scene, chosen)
    return _sorted(scene, chosen)


def _sorted(scene: Scene, chosen: list[int]) -> list[int]:
    """By the chosen column. What is not known comes last, whichever way round the rest is."""
    ranks, place = scene.frame.ranks, scene.place
    if place.sort in SORTS:
        name, falling = SORTS[place.sort]
        parts = [part.name for part in PARTS]
        column: Column = scene.breakdown.column(name) if name in parts else getattr(ranks, name)
        keys = -column if falling != place.inverted else column
        return [chosen[at] for at in np.argsort(keys[chosen], kind="stable").tolist()]
    if place.sort == "state":
        chosen.sort(key=lambda rank: _RANK_OF_STATE.get(ranks.state[rank], 0), reverse=place.inverted)
    elif place.sort in ("host", "dev"):
        texts = ranks.host if place.sort == "host" else ranks.device
        chosen.sort(key=texts.__getitem__, reverse=place.inverted)
    elif place.inverted:
        chosen.reverse()
    return chosen


def _trouble_first(scene: Scene, chosen: list[int]) -> list[int]:
    states, culprits = scene.frame.ranks.state, {*scene.culprits, *scene.blamed}
    front = [rank for rank in chosen if states[rank] in UNWELL or rank in culprits]
    lifted = set(front)
    front.sort(key=lambda rank: (rank not in scene.blamed, states[rank] not in GRAVE, rank not in culprits))
    return front + [rank for rank in chosen if rank not in lifted]


def passing(ranks: Ranks, typed: str) -> list[int]:
    """Ranks that a filter lets pass: numbers and spans are ranks, words are host, device, state or phase."""
    if not match.words(typed):
        return list(range(len(ranks.state)))
    return match.chosen(typed, _texts(ranks.host, ranks.device, ranks.state, ranks.phase), number=int)


@lru_cache(maxsize=2)
def _texts(*columns: tuple[str, ...]) -> list[str]:
    """What is known of every rank in words; a frame is painted many times while a filter is typed."""
    return [" ".join(words).lower() for words in zip(*columns, strict=True)]
