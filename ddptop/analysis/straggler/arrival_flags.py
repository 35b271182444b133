"""Applies the rules over bucket arrivals: flags at most one rank over all process groups.

It finds the rank's figures and its cause, too. Where own times are known, `own_time_flags.py` flags instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.figures import MOVES_WITHIN
from ddptop.analysis.steps.groups import Flagged
from ddptop.analysis.steps.own_times import PHASES
from ddptop.analysis.steps.windows import MOVES, PARTS
from ddptop.analysis.straggler import arrival_rules, own_time_rules
from ddptop.frames.frame import Straggler
from ddptop.frames.statistics import median

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow
    from ddptop.frames.causes import Cause
    from ddptop.frames.columns import Indices, Mask
    from ddptop.protocol.vocabulary import Pattern, StepPhase

OWN_TIME_SHARE = 0.5
"""A rank is flagged only if at least this share of its lateness shows in its own time."""


def excess_by_phase(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, late: Mask
) -> dict[StepPhase, float]:
    """For each phase the ms that the late ranks take longer than the median of the other ranks of their
    process group, as a median over the steps.

    `late`: (n, ranks) whether a rank counts as late in a step. Late ranks are compared with the others.
    """
    parts: dict[StepPhase, float] = {}
    for phase, name in zip(PHASES, PARTS, strict=True):
        values = detail.ranks.of(name, slots)[window.members].T
        median_of_others = median(np.where(late, np.nan, values))
        over = np.where(late, values - median_of_others[:, None], np.nan)
        parts[phase] = float(median(over.ravel()))
    return parts


def shows_in_own_time(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, rank: int, straggler: Straggler
) -> bool:
    """Whether the lateness of `rank` (index in the group) shows in its own time: its phases take longer, or
    its part of the collectives does (a slow link).

    Load on a machine that ranks share can make one of them late over a hundred steps although none of its
    phases takes longer (seen with four ranks on two busy cores).
    """
    least = OWN_TIME_SHARE * straggler.lateness_ms
    if sum(ms for ms in straggler.parts_ms.values() if ms > 0) >= least:
        return True
    transfer = detail.ranks.of("exposed", slots) - detail.ranks.of("exposed_wait", slots)
    values = transfer[window.members].T
    over = values[:, rank] - median(np.delete(values, rank, axis=1))
    return bool(median(over) >= least)


def find_cause(parts: dict[StepPhase, float]) -> Cause | None:
    """The phase with at least CAUSE_SHARE of the excess, else `mixed`; None: there is no excess."""
    over = {phase: ms for phase, ms in parts.items() if ms > 0}
    if not over:
        return None
    largest = max(over, key=lambda phase: over[phase])
    return largest if over[largest] >= own_time_rules.CAUSE_SHARE * sum(over.values()) else "mixed"


FADED = 0.25
"""A rank whose lateness has decreased to this share of that when it was flagged must meet the flag thresholds
again. Otherwise noise alone would keep it flagged."""


def flag_by_arrivals(detail: DetailWindow, slots: Indices) -> None:
    """Evaluate the rules over these detailed steps and flag the rank that costs most, or none.

    The rank flagged so far stays flagged while the rules still find it."""
    before = detail.flagged
    flags = [flag for window in detail.scopes.values() if (flag := _in(detail, window, slots)) is not None]
    kept = [flag for flag in flags if before is not None and flag[:2] == before[:2]]
    detail.flagged = kept[0] if kept else max(flags, key=lambda flag: flag.cost_ms, default=None)
    if detail.flagged is None or not is_confirmed(detail, detail.flagged, slots):
        detail.flagged = None
        return
    if detail.last_flagged is not None and detail.last_flagged[:2] != detail.flagged[:2]:
        detail.moves.append(detail.count)
    detail.last_flagged = detail.flagged


def _in(detail: DetailWindow, window: ScopeWindow, slots: Indices) -> Flagged | None:
    """The rank to flag in one process group; None: no rank."""
    if window.clock_free:
        return None
    held_flag = (
        detail.flagged if detail.flagged is not None and detail.flagged.scope == window.scope else None
    )
    rank = None if held_flag is None else held_flag.rank
    measured = arrival_rules.persistent(
        window, slots, rank if held_flag is None or held_flag.pattern == "persistent" else None
    )
    if measured is None:
        measured = arrival_rules.by_phase(detail, window)
    if measured is not None:
        faded = held_flag is not None and measured.lateness_ms < FADED * held_flag.lateness_ms
        first = (
            held_flag is None
            or held_flag.rank != measured.ranks[0]
            or arrival_rules.meets_flag_threshold(measured)
        )
        if first or not faded:
            lateness_ms = measured.lateness_ms if held_flag is None or first else held_flag.lateness_ms
            return Flagged(window.scope, measured.ranks[0], "persistent", measured.cost_ms, lateness_ms)
    patterns: tuple[tuple[Pattern, arrival_rules.LatePattern | None], ...] = (
        ("intermittent", arrival_rules.intermittent(window)),
        ("rotating", arrival_rules.rotating(window, rank)),
    )
    for pattern, late_pattern in patterns:
        if late_pattern is not None:
            return Flagged(
                window.scope,
                late_pattern.ranks[0],
                pattern,
                late_pattern.cost_ms,
                late_pattern.recoverable_ms,
            )
    return None


def is_confirmed(detail: DetailWindow, flag: Flagged, slots: Indices) -> bool:
    """Whether the lateness of a flagged rank shows in its own time as well."""
    window, newest = detail.scopes[flag.scope], detail.group.recent(arrival_rules.NEWEST)
    for steps in (newest, slots):
        figures = _measure_flagged(detail, flag, steps)
        if figures is not None and shows_in_own_time(detail, window, steps, flag.rank, figures):
            return True
    return False


def find_straggler(detail: DetailWindow, slots: Indices) -> Straggler | None:
    """The figures of the flagged rank over these steps, with the cause; None when they no longer meet the
    thresholds, or no rank is flagged."""
    return None if detail.flagged is None else _measure_flagged(detail, detail.flagged, slots)


def _measure_flagged(detail: DetailWindow, flag: Flagged, slots: Indices) -> Straggler | None:
    """`find_straggler` of a flagged rank."""
    window = detail.scopes.get(flag.scope)
    if window is None or not len(slots):
        return None
    if flag.pattern == "persistent":
        return _measure_persistent(detail, window, slots, flag)
    if flag.pattern == "intermittent":
        late_pattern = arrival_rules.intermittent(window)
    else:
        late_pattern = arrival_rules.rotating(window, flag.rank)
    return None if late_pattern is None else _measure_pattern(detail, window, slots, flag, late_pattern)


def _measure_persistent(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, flag: Flagged
) -> Straggler | None:
    result = arrival_rules.measure_while_late(window, slots, flag.rank)
    if result is None:
        return None
    measured, slots = result
    slots = window.with_detail(slots)
    # For one rank all steps count; for several, each counts in the steps in which it is late.
    late: Mask = np.zeros((len(slots), len(window.members)), bool)
    late[:, list(measured.ranks)] = True
    if len(measured.ranks) > 1:
        lateness = window.ranks.of("lateness", slots).T[:, list(measured.ranks)]
        late[:, list(measured.ranks)] = lateness > measured.bound_ms
    parts = excess_by_phase(detail, window, slots, late)
    rotates = len(detail.moves) == MOVES and detail.count - detail.moves[0] <= MOVES_WITHIN
    return Straggler(
        rank=flag.global_rank,
        pattern="rotating" if rotates else "persistent",
        lateness_ms=measured.lateness_ms,
        bound_ms=measured.bound_ms,
        recoverable_ms=measured.recoverable_ms,
        cost_pct=measured.cost_pct,
        last_pct=100 * measured.share,
        cause=find_cause(parts),
        parts_ms=parts,
        ranks=tuple(window.scope.ranks[rank] for rank in measured.ranks) if len(measured.ranks) > 1 else (),
    )


def _measure_pattern(
    detail: DetailWindow,
    window: ScopeWindow,
    slots: Indices,
    flag: Flagged,
    late_pattern: arrival_rules.LatePattern,
) -> Straggler:
    """An intermittent or rotating straggler: lateness and cause over the late steps only."""
    last = window.group.of("last", slots)
    clear = (window.group.of("recoverable", slots) > late_pattern.clear_ms) & np.isin(
        last, late_pattern.ranks
    )
    late = clear[:, None] & (last[:, None] == np.arange(len(window.members)))
    lateness = window.ranks.of("lateness", slots).T[late]
    parts = excess_by_phase(detail, window, slots, late) if late.any() else {}
    ranks = tuple(window.scope.ranks[rank] for rank in late_pattern.ranks)
    return Straggler(
        rank=flag.global_rank,
        pattern=flag.pattern,
        lateness_ms=float(median(lateness)) if len(lateness) else late_pattern.recoverable_ms,
        bound_ms=float(window.bound_ms(slots)[flag.rank]),
        recoverable_ms=late_pattern.recoverable_ms,
        cost_pct=late_pattern.cost_pct,
        last_pct=100 * late_pattern.share,
        cause=find_cause(parts),
        parts_ms=parts,
        ranks=ranks if len(ranks) > 1 else (),
    )
