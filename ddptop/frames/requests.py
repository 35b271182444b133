"""What one viewer wants in its frames beyond what all get: words on the credit link.

    timeline [STEP [RANK]]                        STEP -1 or left out: the newest one with bucket detail
    heat FIGURE ROWS COLUMNS [FIRST [COUNT]]      COUNT 0 or left out: all ranks from FIRST on

A want that makes no sense is no want: viewer and collector may be of different versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

HEAT_FIGURES = (
    *("step", "data", "forward", "backward", "optimizer", "other"),
    *("wait", "transfer", "collective", "exposed", "lateness", "loss"),
)
"""Figures that are kept for every rank and step."""

MOST_ROWS, MOST_COLUMNS = 128, 256
"""A larger terminal gets larger folds: at 8 bytes a cell a map takes a quarter of a frame at most."""


@dataclass(frozen=True, slots=True)
class WantsTimeline:
    """One step, rank by rank."""

    step: int | None = None
    """None: the newest one with bucket detail."""
    rank: int = 0
    """Among the lanes at any rate."""

    def __str__(self) -> str:
        return f"timeline {-1 if self.step is None else self.step} {self.rank}"


@dataclass(frozen=True, slots=True)
class WantsHeat:
    """Ranks x recent steps, folded to a size."""

    figure: str
    rows: int
    columns: int
    first: int = 0
    count: int = 0
    """Ranks; 0: all from `first` on."""

    def __str__(self) -> str:
        return f"heat {self.figure} {self.rows} {self.columns} {self.first} {self.count}"


Want: TypeAlias = "WantsTimeline | WantsHeat"


def parse(text: str) -> Want | None:
    """The want in these words; None where there is none."""
    words = text.split()
    try:
        if words[:1] == ["timeline"] and len(words) <= 3:
            step, rank = (*map(int, words[1:]), *(-1, 0)[len(words) - 1 :])
            return WantsTimeline(step if step >= 0 else None, rank) if rank >= 0 else None
        if words[:1] == ["heat"] and 4 <= len(words) <= 6 and words[1] in HEAT_FIGURES:
            rows, columns, first, count = (*map(int, words[2:]), *(0, 0)[len(words) - 4 :])
            fits = 0 < rows <= MOST_ROWS and 0 < columns <= MOST_COLUMNS and first >= 0 <= count
            return WantsHeat(words[1], rows, columns, first, count) if fits else None
    except ValueError:
        pass
    return None
