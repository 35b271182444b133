"""The rank that is named now, over all process groups, and the figures it is named with.

In which phase a late rank's excess lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.windows import MOVES, PARTS, PHASES, Flagged
from ddptop.analysis.straggler import rules
from ddptop.frames.columns import median
from ddptop.frames.frame import Straggler

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow
    from ddptop.frames.columns import Indices, Mask
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.vocabulary import Cause, Pattern, StepPhase

BORNE_SHARE = 0.5
"""Part of a rank's lateness that must be found in its own time before it is named."""

CAUSE_SHARE = 0.8
"""A phase is the cause when it holds this much of the excess, else the cause is mixed."""


def excess(detail: DetailWindow, window: ScopeWindow, slots: Indices, late: Mask) -> dict[StepPhase, float]:
    """By phase, how much longer it takes the late rank than the median of the others of its process group:
    median over the steps, ms.

    `late`: (n, ranks) in which steps which ranks count as late. In a step with several of them each is set
    against those who are not.
    """
    parts: dict[StepPhase, float] = {}
    for phase, name in zip(PHASES, PARTS, strict=True):
        values = detail.ranks.of(name, slots)[window.members].T
        others = median(np.where(late, np.nan, values))
        over = np.where(late, values - others[:, None], np.nan)
        parts[phase] = float(median(over.ravel()))
    return parts


def bears_out(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, rank: int, straggler: Straggler
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
    over = values[:, rank] - median(np.delete(values, rank, axis=1))
    return bool(median(over) >= least)


def cause(parts: dict[StepPhase, float]) -> Cause | None:
    """The phase that holds 80 % of the excess, else `mixed`; None where there is no excess to explain."""
    over = {phase: ms for phase, ms in parts.items() if ms > 0}
    if not over:
        return None
    largest = max(over, key=lambda phase: over[phase])
    return largest if over[largest] >= CAUSE_SHARE * sum(over.values()) else "mixed"


FADED = 0.25
"""A rank whose lateness has come down to this share of what it was named with is not the same story any more:
to go on with its name it must be named anew. Otherwise noise, which is always about, would keep it."""

MOVES_WITHIN = 512
"""A flag that went from one rank to another MOVES times within so many detailed steps is one that rotates."""


def evaluate_flag(detail: DetailWindow, slots: Indices) -> None:
    """Look at the judged steps and decide anew."""
    before = detail.flagged
    found = [named for window in detail.scopes.values() if (named := _in(detail, window, slots)) is not None]
    kept = [named for named in found if before is not None and named[:2] == before[:2]]
    detail.flagged = kept[0] if kept else max(found, key=lambda named: named.cost_ms, default=None)
    if detail.flagged is None or not _borne_out(detail, slots):
        detail.flagged = None
        return
    if detail.last_flagged is not None and detail.last_flagged[:2] != detail.flagged[:2]:
        detail.moves.append(detail.count)
    detail.last_flagged = detail.flagged


def _in(detail: DetailWindow, window: ScopeWindow, slots: Indices) -> Flagged | None:
    """The rank to name in one process group."""
    if window.clock_free:
        return None
    held = detail.flagged if detail.flagged is not None and detail.flagged.scope == window.scope else None
    rank = None if held is None else held.rank
    seen = rules.persistent(window, slots, rank if held is None or held.pattern == "persistent" else None)
    if seen is None:
        seen = rules.by_a_phase(detail, window)
    if seen is not None:
        faded = held is not None and seen.lateness_ms < FADED * held.lateness_ms
        first = held is None or held.rank != seen.ranks[0] or rules.clearly(seen)
        if first or not faded:
            named_with = seen.lateness_ms if held is None or first else held.lateness_ms
            return Flagged(window.scope, seen.ranks[0], "persistent", seen.cost_ms, named_with)
    others: tuple[tuple[Pattern, rules.Found | None], ...] = (
        ("intermittent", rules.intermittent(window)),
        ("rotating", rules.rotating(window, rank)),
    )
    for pattern, found in others:
        if found is not None:
            return Flagged(window.scope, found.ranks[0], pattern, found.cost_ms, found.recoverable_ms)
    return None


def _borne_out(detail: DetailWindow, slots: Indices) -> bool:
    """Whether what is or stays named can be seen in the rank's own time as well."""
    named = detail.flagged
    assert named is not None
    window, newest = detail.scopes[named.scope], detail.group.recent(rules.NEWEST)
    for judged in (newest, slots):
        found = straggler(detail, judged)
        if found is not None and bears_out(detail, window, judged, named.rank, found):
            return True
    return False


def straggler(detail: DetailWindow, slots: Indices) -> Straggler | None:
    """The figures of the named rank over the judged steps, with the cause; None when they no longer bear
    the name out, or nobody is named."""
    named = detail.flagged
    window = None if named is None else detail.scopes.get(named.scope)
    if named is None or window is None or not len(slots):
        return None
    if named.pattern == "persistent":
        return _persistent(detail, window, slots, named)
    if named.pattern == "intermittent":
        found = rules.intermittent(window)
    else:
        found = rules.rotating(window, named.rank)
    return None if found is None else _of_pattern(detail, window, slots, named, found)


def _persistent(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, named: Flagged
) -> Straggler | None:
    judged = rules.over_the_same(window, slots, named.rank)
    if judged is None:
        return None
    seen, slots = judged
    slots = window.told(slots)
    # Of one rank all steps count, of several those in which each is late.
    late: Mask = np.zeros((len(slots), len(window.members)), bool)
    late[:, list(seen.ranks)] = True
    if len(seen.ranks) > 1:
        lateness = window.ranks.of("lateness", slots).T[:, list(seen.ranks)]
        late[:, list(seen.ranks)] = lateness > seen.bound_ms
    parts = excess(detail, window, slots, late)
    moving = len(detail.moves) == MOVES and detail.count - detail.moves[0] <= MOVES_WITHIN
    return Straggler(
        rank=named.global_rank,
        pattern="rotating" if moving else "persistent",
        lateness_ms=seen.lateness_ms,
        bound_ms=seen.bound_ms,
        recoverable_ms=seen.recoverable_ms,
        cost_pct=seen.cost_pct,
        last_pct=100 * seen.share,
        cause=cause(parts),
        parts_ms=parts,
        ranks=tuple(window.scope.ranks[rank] for rank in seen.ranks) if len(seen.ranks) > 1 else (),
    )


def _of_pattern(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, named: Flagged, found: rules.Found
) -> Straggler:
    """Lateness and cause over the late steps only."""
    last = window.group.of("last", slots)
    clear = (window.group.of("recoverable", slots) > found.clear_ms) & np.isin(last, found.ranks)
    late = clear[:, None] & (last[:, None] == np.arange(len(window.members)))
    lateness = window.ranks.of("lateness", slots).T[late]
    parts = excess(detail, window, slots, late) if late.any() else {}
    ranks = tuple(window.scope.ranks[rank] for rank in found.ranks)
    return Straggler(
        rank=named.global_rank,
        pattern=named.pattern,
        lateness_ms=float(median(lateness)) if len(lateness) else found.recoverable_ms,
        bound_ms=float(window.bound_ms(slots)[named.rank]),
        recoverable_ms=found.recoverable_ms,
        cost_pct=found.cost_pct,
        last_pct=100 * found.share,
        cause=cause(parts),
        parts_ms=parts,
        ranks=ranks if len(ranks) > 1 else (),
    )
