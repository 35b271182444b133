"""What the rules over own times and those over bucket arrivals have in common.

Both judge a matrix (ranks, n), oldest step first: by how many ms each rank takes longer, or arrives later,
than the others in each step. What they take to be sure differs, and is in the `Thresholds` of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.frames.statistics import certainty, median, quantile

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices, Mask


class Thresholds(NamedTuple):
    """What one kind of evidence takes. The reasons are beside the constants that it is made of."""

    level_steps: int
    """Newest steps whose median is the present excess."""
    errors: float
    """Standard errors by which an excess must be above 0, or above its bound (`certainty`)."""
    steady: float
    """The excess of ranks that are late in turn is steady if its `low` quantile is this share of its `high`
    one."""
    low: float
    high: float
    most: float
    """Largest share of the steps in which one of these ranks is the late one."""
    fewest: float
    """Least steps in which each of them is."""


TOGETHER_SHARE = 0.5
"""Ranks are stragglers together when the excess of each is this share of the largest one: if only the first
were fixed, half of it would remain."""

SUSPECT_SHARE, CHANCE = 0.75, 1e-3
"""A suspect comes last in this share of the newest steps, which happens to one of equally fast ranks with at
most this probability."""


GAP_STEPS = 24
"""A delay that was not there in so many steps, more than in which it was there, has ended: what was before
them is another one. Where most steps are left out, those that are kept may reach back over several."""

APART = 4
"""Late steps within this many steps count as one occurrence: a busy machine stays busy for some steps."""


def onsets(excess: Column, thresholds: Thresholds) -> Indices:
    """(k,) index of the step since which each excess is as large as now; n: it is not positive now.

    `excess`: (k, n), n > 0, of one rank each. The result maximizes the sum, from it to the end, of the excess
    minus half the present excess, which is clipped to it (CUSUM): single steps that do not fit change
    nothing, and GAP_STEPS of them end it."""
    steps = excess.shape[1]
    level = median(excess[:, -thresholds.level_steps :])[:, None]
    above = np.minimum(np.fmax(excess, 0.0), level) - level / 2
    sums = np.cumsum(above[:, ::-1], axis=1)
    has_ended = np.maximum.accumulate(sums, axis=1) - sums >= GAP_STEPS * level / 2
    sums[np.logical_or.accumulate(has_ended, axis=1)] = -np.inf
    first = steps - 1 - sums.argmax(axis=1)
    return np.asarray(np.where(level[:, 0] > 0, first, steps))


def latest_ranks(excess: Column) -> Indices:
    """(n,) the rank with the largest excess in each step; 0 where none is known. `excess`: (ranks, n)."""
    return np.asarray(np.where(np.isnan(excess), -np.inf, excess).argmax(axis=0))


def late_together(excess: Column, is_late: Mask, main: int, n_ranks: int) -> tuple[int, ...]:
    """A late rank, and behind it those that are late together with it, the latest first.

    `excess`, `is_late`: (k,) of some or all of so many ranks. More than half of the ranks are not late
    together: then it is `main` alone."""
    beside = is_late & (excess >= TOGETHER_SHARE * excess[main])
    beside[main] = False
    order = np.flatnonzero(beside)
    ranks = (main, *order[np.argsort(-excess[order], kind="stable")].tolist())
    return ranks if 2 * len(ranks) <= n_ranks else (main,)


def is_clearly_last(count: int, steps: int, n_ranks: int) -> bool:
    """Whether a rank that came last in `count` of so many steps is a suspect."""
    return count >= SUSPECT_SHARE * steps and formulas.by_chance(count, steps, n_ranks) <= CHANCE


def ranks_in_turn(
    last: Indices,
    excess: Column,
    n_ranks: int,
    thresholds: Thresholds,
    *,
    bound_ms: float = 0.0,
    ease: float = 1.0,
) -> tuple[int, ...]:
    """The ranks of which one is late in most steps, by a similar time, but not always the same; the most
    frequent first. Empty: there are none.

    `last`: (n,) the late rank of each step, -1: none; `excess`: (n,) by how much it is, which may be wrong by
    `bound_ms`. `ease`: so much of the usual steadiness is enough."""
    low, high = (float(quantile(excess, share)) for share in (thresholds.low, thresholds.high))
    if not low >= ease * thresholds.steady * high:
        return ()
    counts = np.bincount(last[last >= 0].astype(np.int64), minlength=n_ranks)
    # Half of the share of each if all ranks took turns.
    least = max(thresholds.fewest, len(last) / (2 * n_ranks))
    order = [rank for rank in np.argsort(-counts, kind="stable").tolist() if counts[rank] >= least]
    if len(order) < 2 or counts.max() > thresholds.most * len(last):
        return ()
    return tuple(order) if certainty(excess - bound_ms) >= thresholds.errors else ()


def occurrences(late: Mask) -> Indices:
    """Indices of the late steps (n,) that begin an occurrence: neither right after another late step nor
    within APART steps of the begin of the last occurrence."""
    begins: list[int] = []
    previous = counted = -APART
    for slot in np.flatnonzero(late).tolist():
        if slot - previous > 1 and slot - counted >= APART:
            begins.append(slot)
            counted = slot
        previous = slot
    return np.array(begins, np.int64)
