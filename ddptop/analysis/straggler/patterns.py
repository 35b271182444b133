"""Lateness that is no single rank's in most steps: now and then, or in turns."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.detail_window import LONG
from ddptop.analysis.straggler.judge import ENOUGH, NAME_MS, NAME_PCT, STEADY, SURE, certainty
from ddptop.frames.columns import median

if TYPE_CHECKING:
    from ddptop.analysis.steps.detail_window import ScopeWindow
    from ddptop.frames.columns import Column, Indices, Mask

OUTSTANDING = 6.0
"""A step is clearly late when it loses so many times what an ordinary one loses: of exponential noise one
step in seventy does, of normal noise none."""

APART = 4
"""Occurrences within so many steps are one: a busy machine stays busy for some steps."""

ODDS, DOUBT = 3.0, 1e-5
"""A rank is behind the late steps when even one of three times the odds of its equals would come last so
often by chance less than once in 100,000 looks: noise is never quite alike on two ranks."""

FEWEST = 12
"""Occurrences to speak of a habit, however many ranks it could have been."""

RECENT = 64
"""It is over when there were not half as many occurrences as usual in so many steps."""

MANY = 96
"""Newest steps that lateness in turns is read from."""

MOST = 0.7
"""Share of the steps that one rank may be late in: of two that take turns by chance each is in half."""


class Found(NamedTuple):
    """A pattern over steps of a process group; ranks count within it."""

    ranks: tuple[int, ...]
    """The one to name first."""
    share: float
    """Of the steps, in which the first comes last, clearly."""
    recoverable_ms: float
    """Median over the steps in which one of them is last, clearly."""
    cost_ms: float
    cost_pct: float
    clear_ms: float
    """From here on a step counts as clearly late."""


def intermittent(window: ScopeWindow) -> Found | None:
    """One rank behind most of the clearly late steps, though late in the smaller part of all.

    Its cost is a mean over the steps, not a median, which would be 0: the mean step less what the steps
    lose in which it came last, clearly.
    """
    slots = window.long.recent(LONG)
    gain = window.long.of("recoverable", slots)
    if len(slots) < ENOUGH or np.isnan(gain).any() or (gain > NAME_MS).sum() < FEWEST:
        return None
    last, step, bound = (window.long.of(name, slots) for name in ("last", "step", "bound"))
    if np.isnan(bound).any():
        return None
    usual = min(float(median(gain)), 3 * float(formulas.quantile(gain, 0.25)))
    least = max(float(bound.max()), NAME_MS, OUTSTANDING * usual)
    clear = (gain > least) & (last >= 0)
    if clear.sum() < FEWEST:
        return None
    found = np.flatnonzero(clear)
    begins = found[_onsets(found, last[found])]
    counts = np.bincount(last[begins].astype(np.int64), minlength=len(window.members))
    rank, count = int(counts.argmax()), int(counts.max())
    mine = begins[last[begins] == rank]
    if count < FEWEST or _by_chance(count, len(begins), len(window.members)) > DOUBT:
        return None
    if not _lasting(mine, len(slots)):
        return None
    own = clear & (last == rank)
    mean = float(step.mean())
    cost = float(np.where(own, gain, 0.0).mean())
    if cost < NAME_MS or mean <= 0 or 100 * cost / mean < NAME_PCT:
        return None
    recoverable = float(median(gain[own]))
    return Found((rank,), float(own.mean()), recoverable, cost, 100 * cost / mean, least)


def _onsets(found: Indices, ranks: Column) -> Mask:
    """Which late steps begin an occurrence of their rank: not right after another, nor within APART steps of
    the occurrence before."""
    fresh: Mask = np.zeros(len(found), bool)
    seen: dict[float, int] = {}
    counted: dict[float, int] = {}
    for i, (at, rank) in enumerate(zip(found.tolist(), ranks.tolist(), strict=True)):
        if at - seen.get(rank, -APART) > 1 and at - counted.get(rank, -APART) >= APART:
            fresh[i], counted[rank] = True, at
        seen[rank] = at
    return fresh


def _by_chance(count: int, total: int, members: int) -> float:
    """How likely one rank of ODDS times its equals' odds is behind `count` or more of `total` late steps."""
    p = ODDS / (ODDS + members - 1)
    return sum(comb(total, k) * p**k * (1 - p) ** (total - k) for k in range(count, total + 1))


def _lasting(begins: Indices, steps: int) -> bool:
    """Neither one bad stretch nor a thing of the past."""
    half = (begins < steps // 2).mean()
    recent = (begins >= steps - RECENT).sum()
    return bool(0.25 <= half <= 0.75 and recent >= max(1, len(begins) * RECENT / steps / 2))


def rotating(window: ScopeWindow, held: int | None = None) -> Found | None:
    """Somebody is clearly late in most steps, by much the same, and it is not always the same rank.

    The first of the ranks is the one named so far while it takes part, else the most frequent.
    """
    slots = window.newest(MANY)
    last, gain, skew, step = (
        window.group.of(name, slots) for name in ("last", "recoverable", "skew", "step")
    )
    if len(slots) < MANY or np.isnan(gain).any():
        return None
    low, high = (float(formulas.quantile(gain, share)) for share in (0.25, 0.75))
    if low < max(NAME_MS, STEADY * high):
        return None
    bound = window.bound_ms(slots)
    usual = float(median(skew - gain))  # how far the others are apart, where there are others
    least = max(float(bound.max()), NAME_MS, usual if len(window.members) > 2 else 0.0)
    if not low > least or certainty(gain - least) < SURE:
        return None
    clear = (gain > least) & (last >= 0)
    counts = np.bincount(last[clear].astype(np.int64), minlength=len(window.members))
    if counts.max() > MOST * len(slots):
        return None
    part = max(1.0, len(slots) / (2 * len(counts)))  # half of what each would have, did all take turns
    order = [int(one) for one in np.argsort(-counts, kind="stable") if counts[one] >= part]
    if len(order) < 2:
        return None
    if held in order:
        order.sort(key=lambda one: one != held)
    as_it_ran = float(median(step))
    cost = as_it_ran - float(median(step - gain))
    if cost < NAME_MS or as_it_ran <= 0 or 100 * cost / as_it_ran < NAME_PCT:
        return None
    share = float(counts[order[0]] / len(slots))
    recoverable = float(median(gain[clear]))
    return Found(tuple(order), share, recoverable, cost, 100 * cost / as_it_ran, least)
