"""How far the ranks have come on the way to their first step, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.numbers import counted, duration
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.start import MILESTONES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.start import StartStatus

MOST_GROUPS = 3
"""Groups of ranks that the verdict names."""


def start_phrase(start: StartStatus, unix_s: float) -> str:
    """`rank 1 has its process group; ranks 0 and 2 are in DistributedDataParallel() · no further for 12 s`,
    the ranks that are furthest behind first."""
    reached = reached_words([rank_start.milestone for rank_start in start.ranks])
    return f"{reached} · no further for {duration(max(0.0, unix_s - start.since_s))}"


def first_steps_phrase(start: StartStatus) -> str:
    """`start: 0 of 4 ranks with a first step`."""
    n_done = sum(rank_start.milestone == "step" for rank_start in start.ranks)
    return f"start: {n_done:,} of {counted(len(start.ranks), 'rank')} with a first step"


def reached_words(milestones: Sequence[str]) -> str:
    """`rank 1 has its process group; ranks 0, 2 and 3 are in DistributedDataParallel()`. `milestones`: of
    each rank the newest, by its name."""
    groups: dict[str, list[int]] = {}
    for rank, milestone in enumerate(milestones):
        groups.setdefault(milestone, []).append(rank)
    parts = []
    for name, (of_one, of_several) in MILESTONES.items():
        if name in groups:
            who = ranks_phrase(groups[name], len(milestones))
            parts.append(f"{who} {of_one if len(groups[name]) == 1 else of_several}")
    return "; ".join(parts[:MOST_GROUPS])
