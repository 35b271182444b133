"""The rules that flag a straggler from bucket arrivals, each with its thresholds and their reasons.

Persistent: the others of its process group wait for the rank in most steps. By phase: one of its phases takes
longer, and its arrivals agree. Intermittent: it is clearly late now and then. Rotating: ranks are late
in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.windows import FEW_DETAILED, LONG, PARTS
from ddptop.analysis.straggler.shared_rules import Thresholds, late_together, occurrences, ranks_in_turn
from ddptop.frames.statistics import certainty, median, probability_of_at_least, quantile

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow
    from ddptop.frames.columns import Column, Indices, Mask

EVERY, EVERY_STEPS = 16, 32
"""The rules are evaluated every EVERY detailed steps, and every EVERY_STEPS steps of any kind where fewer
have detail: a rank is flagged as soon where detail is sampled, and the evaluations cost little."""

FLAG_PCT, FLAG_MS = 2.0, 0.3
"""Least cost of a flagged straggler, in percent of the step and in ms: less is not worth the work."""

KEEP_PCT = 1.0
"""A flagged rank stays flagged down to this cost, so that the flag does not flicker."""

FLAG_SHARE, KEEP_SHARE = 0.5, 0.4
"""Share of the evaluated steps in which it comes last, to be flagged and to stay flagged. Of two equal ranks
each comes last in half of the steps."""

FLAG_STEPS = 48
"""Detailed steps before a rank is flagged: two equal processes that start up on a busy machine can look
unequal for two dozen steps in a row (seen on two cores)."""

CLEAR_QUARTILE = 0.25
"""In three of four steps the rank must be later than the bound: a rank with mere noise is late in half."""

SPREAD_SHARE = 1 / 3
"""The lower quartile of the lateness must also be at least this share of its median, as that of a delay is
and that of noise around 0 is not. Random delays (exponential) reach 0.4."""

CERTAIN = 5.0
"""Standard errors by which the mean lateness must be above the bound (`certainty`): load that comes
and goes over dozens of steps is no straggler."""

NEWEST = 64
"""Newest steps in which a rank that has just become slow is flagged."""

FEWER = 32
"""Newest steps in which it is flagged where one of its phases varies less than its arrivals."""

STEADY_SHARE = 0.5
"""A difference is a delay, not noise, when its lower quartile is at least this share of its upper quartile.
Of exponential noise it is 0.21, of normal noise less."""

AGREES_SHARE = 0.5
"""Part of a phase's excess that must be found in the rank's arrivals."""


class Measurement(NamedTuple):
    """One rank, or several together, over the evaluated steps of a process group. Ranks are indices in it."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    share: float
    """Share of the steps in which one of them comes last."""
    lateness_ms: float
    """Median lateness of the first rank."""
    lateness_low_ms: float
    """Lower quartile of the first rank's lateness."""
    certainty: float
    """How many standard errors the first rank's mean lateness is above the bound (`certainty`)."""
    bound_ms: float
    """How far the first rank's lateness may be wrong."""
    recoverable_ms: float
    """Median of what a step would have saved, over the steps in which one of them comes last."""
    cost_ms: float
    """What the median step would have saved."""
    cost_pct: float
    """The cost in percent of the median step."""


class _Late(NamedTuple):
    """(members,) each rank's lateness over the evaluated steps, in ms."""

    median: Column
    low: Column
    """Lower quartile."""
    bound: Column
    """How far it may be wrong."""

    def clear(self) -> Mask:
        """(members,) whether the lower quartile exceeds both the bound and SPREAD_SHARE of the median."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.low > np.maximum(self.bound, SPREAD_SHARE * self.median))


def _find_late(window: ScopeWindow, slots: Indices) -> _Late:
    values = np.sort(window.ranks.of("lateness", slots), axis=-1)  # sorts NaN to the end
    ranks, size = np.arange(len(values)), values.shape[-1]
    n_known = size - np.isnan(values).sum(axis=-1)
    low = values[ranks, np.minimum((CLEAR_QUARTILE * n_known).astype(np.int64), size - 1)]
    middle = (
        values[ranks, np.maximum(n_known - 1, 0) // 2] + values[ranks, np.minimum(n_known // 2, size - 1)]
    ) / 2
    return _Late(middle.astype(np.float64), low.astype(np.float64), window.bound_ms(slots))


def measure(window: ScopeWindow, slots: Indices, rank: int | None = None) -> Measurement | None:
    """Measure `rank` and the ranks that are late together with it; without `rank`, the latest rank.

    None: too few steps, or without `rank` no rank is clearly late.
    """
    slots = window.with_detail(slots)
    if len(slots) < FEW_DETAILED:
        return None
    same = slots.tobytes()
    if (same, rank) not in window.measured:  # flagging, confirming and showing a rank ask for the same
        measured = _measure(window, slots, rank)
        window.measured[same, rank] = measured
        if measured is not None:
            window.measured[same, measured.ranks[0]] = measured
    result: Measurement | None = window.measured[same, rank]
    return result


def _measure(window: ScopeWindow, slots: Indices, rank: int | None) -> Measurement | None:
    """`measure` of enough steps, all of which have bucket detail."""
    late = _find_late(window, slots)
    clear = late.clear()
    if rank is None:
        if not clear.any():
            return None
        rank = int(np.where(clear, late.median, -np.inf).argmax())
    elif np.isnan(late.median[rank]):
        return None
    ranks = late_together(late.median, clear, rank, len(window.members))
    is_last, gains = ms_saved_by_arrival(window, slots, ranks)
    step = window.group.of("step", slots)
    as_it_ran = float(median(step))
    cost = as_it_ran - float(median(step - gains))
    return Measurement(
        ranks=ranks,
        share=float(is_last.mean()),
        lateness_ms=float(late.median[rank]),
        lateness_low_ms=float(late.low[rank]),
        certainty=certainty(window.ranks.of("lateness", slots)[rank] - late.bound[rank]),
        bound_ms=float(late.bound[rank]),
        recoverable_ms=float(median(gains[is_last])) if is_last.any() else 0.0,
        cost_ms=cost,
        cost_pct=100 * cost / as_it_ran if as_it_ran > 0 else 0.0,
    )


def ms_saved_by_arrival(window: ScopeWindow, slots: Indices, ranks: tuple[int, ...]) -> tuple[Column, Column]:
    """(n,) whether one of `ranks` came last, and the ms that each step would have saved if they had arrived
    with the latest other rank.

    For one rank this is `recoverable` (METRICS.md). For several it is how much later they came at the
    deciding all-reduce, but at most what the step saves when the whole later half of the ranks arrives
    earlier, with lanes and transfers as they were: a delay that compute hides costs nothing.
    """
    if len(ranks) == 1:
        is_last = window.group.of("last", slots) == ranks[0]
        return is_last, np.where(is_last, window.group.of("recoverable", slots), 0.0)
    arrival = window.ranks.of("arrival", slots)
    other_arrivals = np.delete(arrival, ranks, axis=0)
    behind = np.fmax.reduce(arrival[list(ranks)], axis=0) - np.fmax.reduce(other_arrivals, axis=0)
    return behind > 0, np.clip(behind, 0.0, window.group.of("half", slots))


def persistent(window: ScopeWindow, slots: Indices, held: int | None) -> Measurement | None:
    """The ranks that the others wait for in most steps; None: there are none.

    `held`, the rank flagged so far, stays flagged while it meets the lower thresholds, unless another rank
    meets those for flagging in the newest steps.
    """
    slots, newest = window.with_detail(slots), window.newest(NEWEST)
    if held is not None:
        measured = measure(window, slots, held)
        if measured is not None and meets_keep_threshold(measured):
            measured_now = measure(window, newest)
            if measured_now is None or held in measured_now.ranks or not meets_flag_threshold(measured_now):
                return measured
            return measured_now
    if len(newest) < FLAG_STEPS:
        return None
    for steps in (slots, newest) if len(slots) > len(newest) else (newest,):
        measured = measure(window, steps) if window.most_lost_pct(steps) >= FLAG_PCT else None
        if measured is not None and meets_flag_threshold(measured):
            return measured
    return None


def by_phase(detail: DetailWindow, window: ScopeWindow) -> Measurement | None:
    """A rank that the others wait for and that has a phase which takes longer in three of four steps.

    On a busy machine arrivals vary by more than a delay of a few ms, because the operating system runs other
    processes in every phase. The phase with the delay varies less, so that spread and certainty are
    measured in it. Arrivals must agree: the rank comes last in most steps, by at least half of that delay.
    """
    newest = window.newest(NEWEST)
    sizes = [size for size in (NEWEST, FEWER) if window.most_lost_pct(newest[-size:]) >= FLAG_PCT]
    if len(newest) < FLAG_STEPS or not sizes:
        return None
    parts = np.stack([detail.ranks.of(name, newest)[window.members].T for name in PARTS])
    every = formulas.more_than_others(parts).swapaxes(1, 2)  # (parts, members, n)
    for size in sizes:
        slots, over = newest[-size:], every[..., -size:]
        often = 2 * (over > 0.9 * FLAG_MS).sum(axis=-1) >= len(slots)  # else the median is less than FLAG_MS
        over, rank = over[often], np.nonzero(often)[1]
        if not len(rank):
            continue
        bound, step = window.bound_ms(slots)[rank], float(median(window.group.of("step", slots)))
        low, middle, high = np.quantile(over, (CLEAR_QUARTILE, 0.5, 1 - CLEAR_QUARTILE), axis=-1)
        with np.errstate(invalid="ignore"):
            steady = (low > bound) & (low >= STEADY_SHARE * high)
            steady &= (middle >= FLAG_MS) & (100 * middle >= FLAG_PCT * step)
        for rank_index in np.flatnonzero(steady).tolist():
            if certainty(over[rank_index] - bound[rank_index]) < CERTAIN:
                continue
            measured = measure(window, slots, int(rank[rank_index]))
            if measured is not None and _arrivals_agree(measured, float(middle[rank_index])):
                return measured
    return None


def _arrivals_agree(measured: Measurement, over_ms: float) -> bool:
    """Whether the arrivals of a rank confirm that one of its phases takes `over_ms` longer."""
    late = measured.lateness_ms > max(measured.bound_ms, AGREES_SHARE * over_ms)
    worth = measured.share > FLAG_SHARE and measured.cost_pct >= FLAG_PCT
    return late and worth and meets_keep_threshold(measured)


def measure_while_late(window: ScopeWindow, slots: Indices, rank: int) -> tuple[Measurement, Indices] | None:
    """Measure a flagged rank over steps in which it is equally late; returns those steps too.

    A median over steps before and after it became slow would describe neither. None: it is not late any more.
    """
    measured = [
        (measurement, steps)
        for steps in (slots, window.newest(NEWEST), window.newest(FEWER))
        if (measurement := measure(window, steps, rank)) is not None and meets_keep_threshold(measurement)
    ]
    alike = [
        measured_steps
        for measured_steps in measured
        if measured_steps[0].lateness_low_ms >= STEADY_SHARE * measured_steps[0].lateness_ms
    ]
    return next(iter(alike or measured), None)


def meets_flag_threshold(measured: Measurement) -> bool:
    """Whether the lateness exceeds bound and spread in most steps and costs enough to flag the rank."""
    late = measured.lateness_low_ms > max(measured.bound_ms, SPREAD_SHARE * measured.lateness_ms)
    worth = measured.cost_pct >= FLAG_PCT and measured.cost_ms >= FLAG_MS
    return late and worth and measured.share > FLAG_SHARE and measured.certainty >= CERTAIN


def meets_keep_threshold(measured: Measurement) -> bool:
    """Whether a flagged rank stays flagged: lower thresholds, but no figure may contradict the verdict."""
    late = measured.lateness_ms > measured.bound_ms and measured.lateness_low_ms > -measured.lateness_ms
    return late and measured.share > KEEP_SHARE and measured.cost_pct >= KEEP_PCT


OUTSTANDING = 6.0
"""A step is clearly late when it loses this many times what an ordinary step loses: with exponential noise
one step in seventy does, with normal noise none."""

ODDS, DOUBT = 3.0, 1e-5
"""The late steps are those of one rank when chance does not explain its count. A rank with ODDS times the
odds of the others (noise is never quite alike on two ranks) would reach it with a probability below DOUBT."""

FEWEST = 12
"""Least occurrences that make a pattern, for any number of ranks."""

RECENT = 64
"""Newest steps. The pattern is over when they have less than half of the usual number of occurrences."""

MANY = 96
"""Newest steps in which a rotating straggler is searched."""

MOST = 0.7
"""Largest share of the steps in which one rank is late: of two ranks that take turns each is late in half."""

LEVEL_STEPS = 8
"""Newest detailed steps whose median is the present lateness."""

THRESHOLDS = Thresholds(
    level_steps=LEVEL_STEPS, errors=CERTAIN, steady=STEADY_SHARE, low=0.25, high=0.75, most=MOST, fewest=1.0
)


class LatePattern(NamedTuple):
    """An intermittent or rotating straggler over steps of a process group. Ranks are indices in it."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    share: float
    """Share of steps in which the first rank is clearly the last arriver."""
    recoverable_ms: float
    """Median over the steps in which one of them is clearly the last arriver."""
    cost_ms: float
    cost_pct: float
    clear_ms: float
    """A step that loses more than this is clearly late."""


def intermittent(window: ScopeWindow) -> LatePattern | None:
    """A rank that is the last arriver in most of the clearly late steps, which are the smaller part of all.

    Its cost is a mean over all steps of what the clearly late ones lose in which it came last; a median would
    be 0.
    """
    slots = window.long.recent(LONG)
    gain = window.long.of("recoverable", slots)
    if len(slots) < FLAG_STEPS or np.isnan(gain).any() or (gain > FLAG_MS).sum() < FEWEST:
        return None
    last, step, bound = (window.long.of(name, slots) for name in ("last", "step", "bound"))
    if np.isnan(bound).any():
        return None
    usual = min(float(median(gain)), 3 * float(quantile(gain, 0.25)))
    least = max(float(bound.max()), FLAG_MS, OUTSTANDING * usual)
    clear = (gain > least) & (last >= 0)
    if clear.sum() < FEWEST:
        return None
    begins = {
        rank: occurrences(clear & (last == rank)) for rank in np.unique(last[clear]).astype(int).tolist()
    }
    rank = max(begins, key=lambda rank: len(begins[rank]))
    count, total = len(begins[rank]), sum(map(len, begins.values()))
    if count < FEWEST or _by_chance(count, total, len(window.members)) > DOUBT:
        return None
    if not _is_lasting(begins[rank], len(slots)):
        return None
    is_own = clear & (last == rank)
    mean, cost = float(step.mean()), float(np.where(is_own, gain, 0.0).mean())
    if cost < FLAG_MS or mean <= 0 or 100 * cost / mean < FLAG_PCT:
        return None
    recoverable = float(median(gain[is_own]))
    return LatePattern((rank,), float(is_own.mean()), recoverable, cost, 100 * cost / mean, least)


def _by_chance(count: int, total: int, members: int) -> float:
    """Probability that a rank with ODDS times the odds of the others comes last in `count` or more of `total`
    late steps."""
    return probability_of_at_least(count, total, ODDS / (ODDS + members - 1))


def _is_lasting(begins: Indices, steps: int) -> bool:
    """Whether it occurred in both halves of the steps and still occurs."""
    half = (begins < steps // 2).mean()
    recent = (begins >= steps - RECENT).sum()
    return bool(0.25 <= half <= 0.75 and recent >= max(1, len(begins) * RECENT / steps / 2))


def rotating(window: ScopeWindow, held: int | None = None) -> LatePattern | None:
    """Ranks of which one is clearly late in most steps, by a similar time, but not always the same one.

    The first of them is the rank flagged so far (`held`) if it is one of them, else the most frequent.
    """
    slots = window.with_detail(window.group.recent(window.group.count))[-MANY:]
    last, gain, skew, step = (
        window.group.of(name, slots) for name in ("last", "recoverable", "skew", "step")
    )
    if len(slots) < MANY or np.isnan(gain).any():
        return None
    bound = window.bound_ms(slots)
    usual = float(median(skew - gain))  # skew of the other ranks, where there are several
    largest = np.maximum(bound.max(), np.fmax.reduce(window.long.of("bound", window.long.recent(MANY))))
    least = max(float(largest), FLAG_MS, usual if len(window.members) > 2 else 0.0)
    if not float(quantile(gain, THRESHOLDS.low)) > least:
        return None
    clear = (gain > least) & (last >= 0)
    late_rank = np.where(clear, last, -1).astype(np.int64)
    order = ranks_in_turn(late_rank, gain, len(window.members), THRESHOLDS, bound_ms=least)
    if not order:
        return None
    if held in order:
        order = tuple(sorted(order, key=lambda rank: rank != held))
    as_it_ran = float(median(step))
    cost = as_it_ran - float(median(step - gain))
    if cost < FLAG_MS or as_it_ran <= 0 or 100 * cost / as_it_ran < FLAG_PCT:
        return None
    share = float((late_rank == order[0]).mean())
    recoverable = float(median(gain[clear]))
    return LatePattern(order, share, recoverable, cost, 100 * cost / as_it_ran, least)
