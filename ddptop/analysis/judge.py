"""Who the others wait for, whether that is worth a name, and in which phase it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis import metrics
from ddptop.analysis.frames import Straggler
from ddptop.analysis.window import DETAILED_BACK, FEW_DETAILED, PARTS, PHASES

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.analysis.window import DetailWindow

EVERY = 8
"""Detailed steps between two looks: a rank is named within 100 steps, and the looks cost next to nothing."""

SAME_HOST_BOUND_MS = 0.1
"""How far two ready stamps of one host may be wrong: one clock, read on entry to the hook, so only what
delays the reading itself: tens of us on a busy machine. Completion stamps, up to 18 ms late, play no part."""

NAME_PCT, NAME_MS = 2.0, 0.3
"""Below either, a person has nothing to gain from the name."""

KEEP_PCT = 1.0
"""A rank once named keeps the name down to here, so that it does not flicker."""

NAME_SHARE, KEEP_SHARE = 0.5, 0.4
"""Share of the judged steps in which it comes last: of two equal ranks each does in half of them."""

ENOUGH = 32
"""Judged steps to name a rank from: two equal processes that start up on a busy machine can look unequal
for two dozen steps in a row (seen on two cores)."""

CLEAR_QUARTILE = 0.25
"""In three steps of four it must be late beyond the bound: noise is late half of the time."""

SPREAD_SHARE = 1 / 3
"""And that quartile must be this share of the median: a delay that varies, not noise around nothing. Delays
that are themselves random (exponential) reach 0.4."""

CAUSE_SHARE = 0.8
"""A phase is the cause when it holds this much of the excess, else the cause is mixed."""


class Look(NamedTuple):
    """One rank over the judged steps."""

    rank: int
    share: float
    lateness_ms: float
    lateness_low_ms: float
    recoverable_ms: float
    cost_ms: float
    cost_pct: float


def look(window: DetailWindow, slots: Column, rank: int | None = None) -> Look | None:
    """Measure `rank`, or else whoever comes last most often. None: too few steps, or nobody can be told."""
    last = window.group.of("last", slots)
    if len(last) < FEW_DETAILED or not (last >= 0).any():
        return None
    if rank is None:
        rank = int(np.bincount(last[last >= 0].astype(np.int64)).argmax())
    late = window.ranks.of("lateness", slots)[rank]
    late = np.sort(late[~np.isnan(late)])
    if not len(late):
        return None
    step = window.group.of("step", slots)
    is_last = last == rank
    gain = np.where(is_last, window.group.of("recoverable", slots), 0.0)
    as_it_ran = float(metrics.median(step))
    cost = as_it_ran - float(metrics.median(step - gain))
    return Look(
        rank=rank,
        share=float(is_last.mean()),
        lateness_ms=float(metrics.median(late)),
        lateness_low_ms=float(late[int(CLEAR_QUARTILE * len(late))]),
        recoverable_ms=float(metrics.median(gain[is_last])) if is_last.any() else 0.0,
        cost_ms=cost,
        cost_pct=100 * cost / as_it_ran if as_it_ran > 0 else 0.0,
    )


def named(window: DetailWindow, slots: Column, held: int | None) -> int | None:
    """The rank to name now, given the one named so far."""
    if held is not None:
        seen = look(window, slots, held)
        if seen is not None and _still(seen):
            return held
    if len(slots) < ENOUGH:
        slots = window.group.recent(DETAILED_BACK)
    seen = look(window, slots) if len(slots) >= ENOUGH else None
    return seen.rank if seen is not None and _clearly(seen) else None


def _clearly(seen: Look) -> bool:
    """It holds the others up, beyond bound, spread and what is worth a word."""
    late = seen.lateness_low_ms > max(SAME_HOST_BOUND_MS, SPREAD_SHARE * seen.lateness_ms)
    return late and seen.share > NAME_SHARE and seen.cost_pct >= NAME_PCT and seen.cost_ms >= NAME_MS


def _still(seen: Look) -> bool:
    """What it takes to keep the name: less, but never a figure that would make the sentence untrue."""
    late = seen.lateness_ms > SAME_HOST_BOUND_MS and seen.lateness_low_ms > -seen.lateness_ms
    return late and seen.share > KEEP_SHARE and seen.cost_pct >= KEEP_PCT


def straggler(window: DetailWindow, slots: Column, rank: int) -> Straggler | None:
    """The figures of a named rank, with the cause; None when they no longer bear the name out."""
    seen = look(window, slots, rank)
    if seen is None or not _still(seen):
        return None
    parts = excess(window, slots, rank)
    return Straggler(
        rank=rank,
        pattern=None,
        lateness_ms=seen.lateness_ms,
        bound_ms=SAME_HOST_BOUND_MS,
        recoverable_ms=seen.recoverable_ms,
        cost_pct=seen.cost_pct,
        last_pct=100 * seen.share,
        cause=cause(parts),
        parts_ms=parts,
    )


def excess(window: DetailWindow, slots: Column, rank: int) -> dict[str, float]:
    """By phase, how much longer it takes `rank` than the median of the others: median over the steps, ms."""
    parts = {}
    for phase, name in zip(PHASES, PARTS, strict=True):
        columns = window.ranks.of(name, slots)
        over = columns[rank] - metrics.median(np.delete(columns, rank, axis=0).T)
        parts[phase] = float(metrics.median(over))
    return parts


def cause(parts: dict[str, float]) -> str | None:
    """The phase that holds 80 % of the excess, else `mixed`; None where there is no excess to explain."""
    over = {phase: ms for phase, ms in parts.items() if ms > 0}
    if not over:
        return None
    largest = max(over, key=lambda phase: over[phase])
    return largest if over[largest] >= CAUSE_SHARE * sum(over.values()) else "mixed"
