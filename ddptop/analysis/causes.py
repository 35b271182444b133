"""In which phase a late rank's excess lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import metrics
from ddptop.analysis.detail_window import PARTS
from ddptop.analysis.window import PHASES

if TYPE_CHECKING:
    from ddptop.analysis.detail_window import DetailWindow, ScopeWindow
    from ddptop.analysis.frames import Column, Straggler

BORNE_SHARE = 0.5
"""Part of a rank's lateness that must be found in its own time before it is named."""

CAUSE_SHARE = 0.8
"""A phase is the cause when it holds this much of the excess, else the cause is mixed."""


def excess(detail: DetailWindow, window: ScopeWindow, slots: Column, late: Column) -> dict[str, float]:
    """By phase, how much longer it takes the late rank than the median of the others of its process group:
    median over the steps, ms.

    `late`: (n, ranks) in which steps which ranks count as late. In a step with several of them each is set
    against those who are not.
    """
    parts = {}
    for phase, name in zip(PHASES, PARTS, strict=True):
        values = detail.ranks.of(name, slots)[window.members].T
        others = metrics.median(np.where(late, np.nan, values))
        over = np.where(late, values - others[:, None], np.nan)
        parts[phase] = float(metrics.median(over.ravel()))
    return parts


def bears_out(
    detail: DetailWindow, window: ScopeWindow, slots: Column, rank: int, straggler: Straggler
) -> bool:
    """Whether the lateness of a rank (its place in the group) shows in its own time: in what it took longer
    over its phases, or over its share of the collectives (a slow link).

    Load on a machine that ranks share makes one of them seem late over a hundred steps, without any phase
    of its own being longer (seen: four ranks on two busy cores).
    """
    least = BORNE_SHARE * straggler.lateness_ms
    if sum(ms for ms in straggler.parts_ms.values() if ms > 0) >= least:
        return True
    moving = detail.ranks.of("exposed", slots) - detail.ranks.of("exposed_wait", slots)
    values = moving[window.members].T
    over = values[:, rank] - metrics.median(np.delete(values, rank, axis=1))
    return bool(metrics.median(over) >= least)


def cause(parts: dict[str, float]) -> str | None:
    """The phase that holds 80 % of the excess, else `mixed`; None where there is no excess to explain."""
    over = {phase: ms for phase, ms in parts.items() if ms > 0}
    if not over:
        return None
    largest = max(over, key=lambda phase: over[phase])
    return largest if over[largest] >= CAUSE_SHARE * sum(over.values()) else "mixed"
