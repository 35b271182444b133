"""The rules that flag a straggler, each with its thresholds and their reasons.

Persistent: the others of its process group wait for the rank in most steps. By phase: one of its phases takes
longer, and its arrivals agree. Intermittent: it is late now and then, clearly. Rotating: ranks late in turn.
"""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.windows import FEW_DETAILED, LONG, PARTS
from ddptop.frames.columns import median

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow
    from ddptop.frames.columns import Column, Indices, Mask

EVERY, EVERY_STEPS = 16, 32
"""The rules are evaluated every so many detailed steps, and hardly more steps of any kind: where detail is
sampled, a rank is flagged as soon, and the evaluations cost little."""

FLAG_PCT, FLAG_MS = 2.0, 0.3
"""Least cost of a flagged straggler: below either, removing it gains nothing worth the work."""

KEEP_PCT = 1.0
"""A flagged rank stays flagged down to this cost, so that the flag does not flicker."""

FLAG_SHARE, KEEP_SHARE = 0.5, 0.4
"""Share of the evaluated steps in which it comes last: of two equal ranks each does in half of them."""

FLAG_STEPS = 48
"""Detailed steps before a rank is flagged: two equal processes that start up on a busy machine can look
unequal for two dozen steps in a row (seen on two cores)."""

CLEAR_QUARTILE = 0.25
"""In three steps of four it must be late beyond the bound: noise is late half of the time."""

SPREAD_SHARE = 1 / 3
"""That quartile must also be this share of the median: a delay that varies, not noise around nothing. Delays
that are themselves random (exponential) reach 0.4."""

CERTAIN = 5.0
"""The mean lateness must be so many standard errors above the bound (`formulas.certainty`): load that comes
and goes over dozens of steps is no straggler."""

NEWEST = 64
"""Newest steps in which a rank that has just become slow is flagged."""

FEWER = 32
"""The same, where one of its phases varies less than its arrivals."""

STEADY = 0.5
"""A difference is a delay, not noise, when its lower quartile is this share of its upper quartile: of
exponential noise it is 0.21, of normal noise less."""

AGREES_SHARE = 0.5
"""Part of what a phase takes longer that must be found in the rank's arrivals."""

TOGETHER_SHARE = 0.5
"""Ranks are stragglers together when each is late by this share of the latest one's lateness: without the
latest alone, half of the lateness would stay."""


class Measurement(NamedTuple):
    """One rank, or several together, over the evaluated steps of a process group. Ranks are indices in it."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    share: float
    """Of the steps, in which one of them comes last."""
    lateness_ms: float
    """Of the first; so are the next three."""
    lateness_low_ms: float
    certainty: float
    bound_ms: float
    recoverable_ms: float
    cost_ms: float
    cost_pct: float


class _Late(NamedTuple):
    """(members,) each rank's lateness over the evaluated steps."""

    median: Column
    low: Column
    bound: Column

    def clear(self) -> Column:
        """Whether it is late beyond bound and spread."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.low > np.maximum(self.bound, SPREAD_SHARE * self.median))


def _late(window: ScopeWindow, slots: Indices) -> _Late:
    values = np.sort(window.ranks.of("lateness", slots), axis=-1)  # sorts NaN to the end
    size = values.shape[-1]
    known = size - np.isnan(values).sum(axis=-1)
    at = np.arange(len(values))
    low = values[at, np.minimum((CLEAR_QUARTILE * known).astype(np.int64), size - 1)]
    middle = (values[at, np.maximum(known - 1, 0) // 2] + values[at, np.minimum(known // 2, size - 1)]) / 2
    return _Late(middle.astype(np.float64), low.astype(np.float64), window.bound_ms(slots))


def measure(window: ScopeWindow, slots: Indices, rank: int | None = None) -> Measurement | None:
    """Measure `rank` and those that are late beside it; without `rank`, the latest of the clearly late ones.

    None: too few steps, or no rank is clearly late.
    """
    slots = window.with_detail(slots)
    if len(slots) < FEW_DETAILED:
        return None
    late = _late(window, slots)
    clear = late.clear()
    if rank is None:
        if not clear.any():
            return None
        rank = int(np.where(clear, late.median, -np.inf).argmax())
    elif np.isnan(late.median[rank]):
        return None
    beside = clear & (late.median >= TOGETHER_SHARE * late.median[rank])
    beside[rank] = False
    order = np.flatnonzero(beside)
    ranks = (rank, *(int(one) for one in order[np.argsort(-late.median[order], kind="stable")]))
    if 2 * len(ranks) > len(window.members):
        ranks = (rank,)
    is_last, gains = gain(window, slots, ranks)
    step = window.group.of("step", slots)
    as_it_ran = float(median(step))
    cost = as_it_ran - float(median(step - gains))
    return Measurement(
        ranks=ranks,
        share=float(is_last.mean()),
        lateness_ms=float(late.median[rank]),
        lateness_low_ms=float(late.low[rank]),
        certainty=formulas.certainty(window.ranks.of("lateness", slots)[rank] - late.bound[rank]),
        bound_ms=float(late.bound[rank]),
        recoverable_ms=float(median(gains[is_last])) if is_last.any() else 0.0,
        cost_ms=cost,
        cost_pct=100 * cost / as_it_ran if as_it_ran > 0 else 0.0,
    )


def gain(window: ScopeWindow, slots: Indices, ranks: tuple[int, ...]) -> tuple[Column, Column]:
    """(n,) whether one of `ranks` came last, and what each step had been shorter by, had they come no later
    than the latest of the others.

    Of one rank this is METRICS' recoverable. Of several: how much later they came at the deciding
    all-reduce, but no more than the step gains when the whole later half arrives earlier, through lanes and
    transfers as they were: a delay that hides behind compute costs nothing.
    """
    if len(ranks) == 1:
        is_last = window.group.of("last", slots) == ranks[0]
        return is_last, np.where(is_last, window.group.of("recoverable", slots), 0.0)
    arrival = window.ranks.of("arrival", slots)
    others = np.delete(arrival, ranks, axis=0)
    behind = np.fmax.reduce(arrival[list(ranks)], axis=0) - np.fmax.reduce(others, axis=0)
    return behind > 0, np.clip(behind, 0.0, window.group.of("half", slots))


def persistent(window: ScopeWindow, slots: Indices, held: int | None) -> Measurement | None:
    """The ranks that the others wait for in most steps, given the rank flagged so far; None: there are none.

    A flagged rank stays flagged while the thresholds hold, unless it is another rank in the newest steps.
    """
    slots, newest = window.with_detail(slots), window.newest(NEWEST)
    if held is not None:
        measured = measure(window, slots, held)
        if measured is not None and meets_keep_threshold(measured):
            now = measure(window, newest)
            if now is None or held in now.ranks or not meets_flag_threshold(now):
                return measured
            return now
    if len(newest) < FLAG_STEPS:
        return None
    for steps in (slots, newest) if len(slots) > len(newest) else (newest,):
        measured = measure(window, steps)
        if measured is not None and meets_flag_threshold(measured):
            return measured
    return None


def by_phase(detail: DetailWindow, window: ScopeWindow) -> Measurement | None:
    """A rank that the others wait for, and one of whose phases takes longer in three steps of four.

    On a busy machine arrivals vary by more than a delay of a few ms, because the operating system runs other
    processes in every phase. The phase that holds the delay varies less, so that spread and certainty are
    measured there. Arrivals must agree: the rank comes last in most steps, by at least half of that.
    """
    if len(window.newest(NEWEST)) < FLAG_STEPS:
        return None
    for size in (NEWEST, FEWER):
        slots = window.newest(size)
        bound = window.bound_ms(slots)
        step = float(median(window.group.of("step", slots)))
        for name in PARTS:
            over = formulas.lateness(detail.ranks.of(name, slots)[window.members].T).T
            low, middle, high = np.quantile(over, (CLEAR_QUARTILE, 0.5, 1 - CLEAR_QUARTILE), axis=-1)
            with np.errstate(invalid="ignore"):
                steady = (low > bound) & (low >= STEADY * high)
                steady &= (middle >= FLAG_MS) & (100 * middle >= FLAG_PCT * step)
            for rank in np.flatnonzero(steady).tolist():
                if formulas.certainty(over[rank] - bound[rank]) < CERTAIN:
                    continue
                measured = measure(window, slots, rank)
                if measured is not None and _arrivals_agree(measured, float(middle[rank])):
                    return measured
    return None


def _arrivals_agree(measured: Measurement, over_ms: float) -> bool:
    """Whether the arrivals of a rank confirm that one of its phases takes `over_ms` longer."""
    late = measured.lateness_ms > max(measured.bound_ms, AGREES_SHARE * over_ms)
    return (
        late
        and measured.share > FLAG_SHARE
        and measured.cost_pct >= FLAG_PCT
        and meets_keep_threshold(measured)
    )


def measure_while_late(window: ScopeWindow, slots: Indices, rank: int) -> tuple[Measurement, Indices] | None:
    """A flagged rank over steps in which it is equally late, and those steps: a median over steps before and
    after it became slow would describe neither. None: it is not late any more."""
    measured = [
        (found, steps)
        for steps in (slots, window.newest(NEWEST), window.newest(FEWER))
        if (found := measure(window, steps, rank)) is not None and meets_keep_threshold(found)
    ]
    alike = [one for one in measured if one[0].lateness_low_ms >= STEADY * one[0].lateness_ms]
    return next(iter(alike or measured), None)


def meets_flag_threshold(measured: Measurement) -> bool:
    """It is late beyond bound and spread, in most steps, and costs enough."""
    late = measured.lateness_low_ms > max(measured.bound_ms, SPREAD_SHARE * measured.lateness_ms)
    worth = measured.cost_pct >= FLAG_PCT and measured.cost_ms >= FLAG_MS
    return late and worth and measured.share > FLAG_SHARE and measured.certainty >= CERTAIN


def meets_keep_threshold(measured: Measurement) -> bool:
    """What it takes to stay flagged: less, but no figure may contradict the sentence on the screen."""
    late = measured.lateness_ms > measured.bound_ms and measured.lateness_low_ms > -measured.lateness_ms
    return late and measured.share > KEEP_SHARE and measured.cost_pct >= KEEP_PCT


OUTSTANDING = 6.0
"""A step is clearly late when it loses so many times what an ordinary one loses: of exponential noise one
step in seventy does, of normal noise none."""

APART = 4
"""Occurrences within so many steps are one: a busy machine stays busy for some steps."""

ODDS, DOUBT = 3.0, 1e-5
"""A rank is behind the late steps when even one of three times the odds of its equals would come last so
often by chance less than once in 100,000 evaluations: noise is never quite alike on two ranks."""

FEWEST = 12
"""Occurrences that make a pattern, however many ranks it could have been."""

RECENT = 64
"""It is over when there were not half as many occurrences as usual in so many steps."""

MANY = 96
"""Newest steps that lateness in turns is read from."""

MOST = 0.7
"""Share of the steps that one rank may be late in: of two that take turns by chance each is in half."""


class LatePattern(NamedTuple):
    """Lateness now and then, or in turns, over steps of a process group. Ranks are indices in it."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    share: float
    """Of the steps, in which the first comes last, clearly."""
    recoverable_ms: float
    """Median over the steps in which one of them is last, clearly."""
    cost_ms: float
    cost_pct: float
    clear_ms: float
    """From here on a step counts as clearly late."""


def intermittent(window: ScopeWindow) -> LatePattern | None:
    """One rank behind most of the clearly late steps, though late in the smaller part of all.

    Its cost is a mean over the steps, not a median, which would be 0: the mean step less what the steps
    lose in which it came last, clearly.
    """
    slots = window.long.recent(LONG)
    gain = window.long.of("recoverable", slots)
    if len(slots) < FLAG_STEPS or np.isnan(gain).any() or (gain > FLAG_MS).sum() < FEWEST:
        return None
    last, step, bound = (window.long.of(name, slots) for name in ("last", "step", "bound"))
    if np.isnan(bound).any():
        return None
    usual = min(float(median(gain)), 3 * float(formulas.quantile(gain, 0.25)))
    least = max(float(bound.max()), FLAG_MS, OUTSTANDING * usual)
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
    if cost < FLAG_MS or mean <= 0 or 100 * cost / mean < FLAG_PCT:
        return None
    recoverable = float(median(gain[own]))
    return LatePattern((rank,), float(own.mean()), recoverable, cost, 100 * cost / mean, least)


def _onsets(found: Indices, ranks: Column) -> Mask:
    """Which late steps begin an occurrence of their rank: not right after another, nor within APART steps of
    the occurrence before."""
    fresh: Mask = np.zeros(len(found), bool)
    previous: dict[float, int] = {}
    counted: dict[float, int] = {}
    for i, (at, rank) in enumerate(zip(found.tolist(), ranks.tolist(), strict=True)):
        if at - previous.get(rank, -APART) > 1 and at - counted.get(rank, -APART) >= APART:
            fresh[i], counted[rank] = True, at
        previous[rank] = at
    return fresh


def _by_chance(count: int, total: int, members: int) -> float:
    """How likely one rank of ODDS times its equals' odds is behind `count` or more of `total` late steps."""
    p = ODDS / (ODDS + members - 1)
    return sum(comb(total, k) * p**k * (1 - p) ** (total - k) for k in range(count, total + 1))


def _lasting(begins: Indices, steps: int) -> bool:
    """Whether it occurred in both halves of the steps, and does still."""
    half = (begins < steps // 2).mean()
    recent = (begins >= steps - RECENT).sum()
    return bool(0.25 <= half <= 0.75 and recent >= max(1, len(begins) * RECENT / steps / 2))


def rotating(window: ScopeWindow, held: int | None = None) -> LatePattern | None:
    """Some rank is clearly late in most steps, by much the same, and it is not always the same rank.

    The first of the ranks is the one flagged so far while it takes part, else the most frequent.
    """
    slots = window.newest(MANY)
    last, gain, skew, step = (
        window.group.of(name, slots) for name in ("last", "recoverable", "skew", "step")
    )
    if len(slots) < MANY or np.isnan(gain).any():
        return None
    low, high = (float(formulas.quantile(gain, share)) for share in (0.25, 0.75))
    if low < max(FLAG_MS, STEADY * high):
        return None
    bound = window.bound_ms(slots)
    usual = float(median(skew - gain))  # how far the others are apart, where there are others
    least = max(float(bound.max()), FLAG_MS, usual if len(window.members) > 2 else 0.0)
    if not low > least or formulas.certainty(gain - least) < CERTAIN:
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
    if cost < FLAG_MS or as_it_ran <= 0 or 100 * cost / as_it_ran < FLAG_PCT:
        return None
    share = float(counts[order[0]] / len(slots))
    recoverable = float(median(gain[clear]))
    return LatePattern(tuple(order), share, recoverable, cost, 100 * cost / as_it_ran, least)
