"""Figures in words, for sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.frame import Alert

SHORT_S = 100.0
"""Below, seconds; then minutes, below as many of these; then hours."""

NAMED_RANKS = 6


def amount(seconds: float) -> str:
    """An amount of time in the unit that a person counts in: `4.2 s`, `14 min`, `3.4 h`."""
    if seconds < SHORT_S:
        return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < SHORT_S else f"{minutes / 60:,.1f} h"


def listed(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1 3`, `9 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > NAMED_RANKS:
        return f"{len(ranks)} ranks"
    return "ranks " + " ".join(str(rank) for rank in ranks)


def by_kind(alerts: Sequence[Alert]) -> list[tuple[Alert, int]]:
    """The first alert of each kind, and how many there are of it; in order of time."""
    found: dict[str, tuple[Alert, int]] = {}
    for alert in alerts:
        first, count = found.get(alert.kind, (alert, 0))
        found[alert.kind] = first, count + 1
    return [*found.values()]


def and_more(count: int) -> str:
    """` (the first of 7)`; empty for one."""
    return f" (the first of {count:,})" if count > 1 else ""


def megabytes(size: float) -> str:
    """`25.0 MB`, in decimal units as bandwidths are."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:.0f} B"
