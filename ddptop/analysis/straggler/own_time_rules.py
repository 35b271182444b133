"""The rules that flag a straggler from every step's own times: pure functions over arrays.

Own time is what a rank spends in a step outside waiting for others; its excess is how much longer that is
than the median of the other ranks of its process group (METRICS.md). Both are durations, so no clocks are
compared. `excess` is (ranks, n) and `wall`, the median step over ranks, (n,), both in ms, oldest step first,
NaN where unknown. Ranks are indices in the arrays.

Persistent: one rank, or several together, have an excess in most steps since it began. Intermittent: one rank
has the large excesses to itself. Rotating: in most steps one rank is late, but not always the same one. What
scatter without any of these costs is in `cost.py`: a figure, not a flag. METRICS.md has the constants' trade.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.straggler.shared_rules import (
    Thresholds,
    is_clearly_last,
    late_together,
    latest_ranks,
    occurrences,
    onsets,
    ranks_in_turn,
)
from ddptop.frames.statistics import (
    certainties_of_packed,
    element_at,
    median,
    pack_known,
    quantile,
    reduce_rows,
    standard_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask

EVERY = 8
"""The rules are evaluated after the steps whose number is one less than a multiple of this: 24 steps of a
delay are then complete within 32. This depends on step numbers alone, so that a replay from any position
evaluates at the same steps."""

FLAG_MS, FLAG_SHARE = 0.3, 0.03
"""Least median excess of a flagged rank, in ms and as a share of the median step. Less is not worth the work,
and equal processes on one machine differ by up to 2 % for minutes (seen on two cores)."""

WHOLE_SHARE = 0.05
"""FLAG_SHARE where no place alone is late and the cause is therefore mixed. Own time as a whole has the
scatter of all places: of two healthy ranks on two busy cores one was flagged in 3 of 99 windows, for 2 to 6 %
of the step, while a delay, which is in one place, is found there. In groups above PLACE_RANKS no place is
searched, and FLAG_SHARE applies."""

SLOW_CORE_SHARE, SLOW_CORE_STEPS, SLOW_CORE_S = 0.15, 192, 4.0
"""Below this share of the step such an excess must have lasted for so many steps, or so many seconds, unless
CAUSE_SHARE of it is own backward, which is no place of its own, less what was waited for a CPU. A core that
is busy with other work for a moment makes all places take 10 to 40 % longer. In 30 healthy minutes on two
cores beside bursts of other work (load 2 to 6) ranks were flagged for it 11 times, for 1 to 2 ms of 11 to 16,
for half a second to two seconds; with 128 steps 3 times, with 192 not once. 4 s: twice the longest."""

LOW, LOW_SHARE = 0.2, 0.5
"""The 20th percentile of the excess must be at least half of its median. Of a delay it is 0.9 of it, beside a
busy machine 0.6; of noise around 0 it is negative, of random delays (exponential) 0.3."""

ERRORS = 6.0
"""Standard errors by which the excess must be above 0 (`certainty`). In half an hour of steps of
10 ms the rules are evaluated 22,500 times: chance alone reaches 4.2 errors once, and load on a machine comes
and goes more slowly than neighbouring steps show."""

STEPS_NEEDED = ((0.4, 24, 24), (0.15, 56, 24), (0.07, 72, 40), (0.0, 100, 56))
"""(least excess as a share of the step, steps since it began that are needed, steps where it is alike): the
smaller a delay, the more like it are seconds of load on one core. A delay of twice the step is 0.67 of the
longer step, one of 3 ms in steps of 10 ms 0.23, one of 1 ms 0.09."""

ALIKE_SHARE = 0.75
"""An excess is alike when its 20th percentile is this share of its median in both halves of the steps: load
on a core does not take the same time in every step."""

NEWEST = 24
"""Newest steps in which a rank must already have been late to be considered: the least of STEPS_NEEDED."""

LAST_STEPS = 48
"""Newest steps in nearly all of which a suspect comes last: most bursts of load on a core are shorter."""

CANDIDATES = 16
"""Ranks considered, those of largest excess first: whether one of 4096 ranks is late is cheap to rule out."""

LEVEL_STEPS = 16
"""Newest steps whose median is the present excess."""

KEEP_SHARE, KEEP_STEPS = 0.3, 48
"""A flagged rank stays flagged while the median excess of the newest KEEP_STEPS is this share of the one
that it was flagged with, and half of what flagging takes: the flag of a small delay must not flicker."""

OVER_SHARE, OVER_STEPS, BURSTS = 0.5, 16, 4 / 3
"""It is cleared as soon as the excess is below this share in four of five of so many newest steps. Where it
waits for a CPU, both take BURSTS times as many steps, because such waits come in bursts."""

AGREES = 0.5
"""The rules are applied to the excess in each place as well: own backward scatters by several ms where ranks
share cores, other places by 0.1 ms. The total must then have this share of the excess in the place."""

CAUSE_SHARE = 0.8
"""A phase is the cause when it has at least this share of the excess; else the cause is mixed."""

PLACE_RANKS = 512
"""Places are searched in process groups of at most so many ranks: an evaluation stays below 5 ms."""


class Late(NamedTuple):
    """Ranks that are late, and since when."""

    ranks: tuple[int, ...]
    """The one with the largest excess first."""
    first: int
    """Index of the first step in which the first of them was late."""
    level_ms: float
    """Median excess of the first of them since then; of a pattern, over its late steps."""


def onset(over: Column) -> int:
    """`onsets` of one rank's excess (n,)."""
    return int(onsets(over[None], THRESHOLDS)[0])


def latest_of(numbers: list[int], first: Sequence[int], level: Sequence[float], ranks: int) -> Late:
    """The ranks that are late together, of candidates among so many ranks; by the candidates' numbers.

    `numbers`: of those that are late, at least one; `first`, `level`: by number, the step since which each is
    late, and its `lasting` excess."""
    if len(numbers) == 1:  # usually
        return Late((numbers[0],), first[numbers[0]], level[numbers[0]])
    excess = np.array([level[number] for number in numbers])
    main = int(excess.argmax())
    together = late_together(excess, np.ones(len(numbers), bool), main, ranks)
    return Late(tuple([numbers[place] for place in together]), first[numbers[main]], level[numbers[main]])


def candidates(newest: Column, often: Mask) -> Indices:
    """The ranks that are late `often`, (ranks,), at most CANDIDATES of them: those with the largest median in
    `newest`, (ranks, NEWEST)."""
    rows = np.flatnonzero(often)
    if len(rows) <= CANDIDATES:
        return rows
    return np.sort(rows[np.argsort(-median(newest[rows]), kind="stable")[:CANDIDATES]])


def least_excess(wall: Column) -> Column:
    """(k,) ms of excess that a late rank has in most steps of each of k windows, (k, steps)."""
    return np.asarray(LOW_SHARE * np.maximum(FLAG_MS, FLAG_SHARE * median(wall)))


MOST_NEWEST = (1 - LOW - 0.1) * NEWEST
"""How many of the NEWEST steps are most of them."""


def late_often(excess: Column, least: Column, windows: Indices) -> Mask:
    """(k, rows) whether an excess, (rows, n), is above `least`, (k,), in most steps of each of k windows.

    `windows`: (k, NEWEST) the places of their steps, which follow each other."""
    may: Mask = may_be_late_often(excess, least, windows)
    late: Mask = may.T.copy()
    rows, which = np.nonzero(may)
    over = excess[rows[:, None], windows[which]] > least[which, None]
    late[which, rows] = over.sum(axis=-1) >= MOST_NEWEST
    return late


def may_be_late_often(excess: Column, least: Column, windows: Indices) -> Mask:
    """(rows, k) as `late_often`, of the smallest `least` of all windows: this costs less."""
    n_above = np.zeros((len(excess), excess.shape[1] + 1), np.int64)
    np.cumsum(excess > np.fmin.reduce(least), axis=1, out=n_above[:, 1:])
    return np.asarray(n_above[:, windows[:, -1] + 1] - n_above[:, windows[:, 0]] >= MOST_NEWEST)


def lasting(over: Column, wall: Column, first: Indices) -> Column:
    """(k,) median of each excess from its step `first` on, (k,), where it lasts through these steps and
    exceeds its error; NaN: it does not. `over`, `wall`: (k, n).

    Both halves of the steps must show it: a window that happens to begin in a busy second does not.
    """
    since = np.arange(over.shape[1]) >= first[:, None]
    known, counts = pack_known(np.where(since, over, np.nan))
    enough = counts >= STEPS_NEEDED[0][1]
    levels = np.full(len(over), np.nan)
    if not enough.any():
        return levels
    known, counts, since, wall = known[enough], counts[enough], since[enough], wall[enough]
    ordered = np.sort(known, axis=-1)
    level = (element_at(ordered, (counts - 1) // 2) + element_at(ordered, counts // 2)) / 2
    step = median(np.where(since, wall, np.nan))
    shares, scattered, alike = np.array(STEPS_NEEDED).T[..., None]
    row = (level >= shares * step).argmax(axis=0)
    is_alike = _low_is_above(known, counts, ALIKE_SHARE * level)
    needed = np.where(is_alike, alike[row, 0], scattered[row, 0])
    late = (level >= np.maximum(FLAG_MS, FLAG_SHARE * step)) & (counts >= needed)
    late[late] = _low_is_above(known[late], counts[late], LOW_SHARE * level[late])
    late[late] = certainties_of_packed(known[late], counts[late], ordered[late]) >= ERRORS
    levels[enough] = np.where(late, level, np.nan)
    return levels


def _low_is_above(known: Column, counts: Indices, least: Column) -> Mask:
    """(k,) whether the LOW quantile of a row and that of either half of it are at least `least`, (k,).

    `known`, `counts`: as returned by `pack_known`. To count the values below takes less than to sort."""
    half = counts // 2
    is_below = known < least[:, None]
    n_below = is_below.sum(axis=-1)
    begins_late = known.shape[1] - counts + half
    n_early = (is_below & (np.arange(known.shape[1]) < begins_late[:, None])).sum(axis=-1)
    parts = ((n_below, counts), (n_early, half), (n_below - n_early, counts - half))
    few = [below <= (LOW * size).astype(np.int64) for below, size in parts]
    return np.asarray(few[0] & few[1] & few[2])


class NewestExcess(NamedTuple):
    """What decides whether a flagged rank stays flagged, at each of some evaluations, in ms."""

    kept_ms: Sequence[float]
    """Median excess of the newest KEEP_STEPS."""
    step_ms: Sequence[float]
    """Median of these steps."""
    high_ms: Sequence[float]
    """The excess that is exceeded in one of five of the newest OVER_STEPS."""

    def is_late(self, evaluation: int, level_ms: float) -> bool:
        """Whether a rank that was flagged with a median excess of `level_ms` stays flagged."""
        worth_ms = max(FLAG_MS, FLAG_SHARE * self.step_ms[evaluation])
        if not self.kept_ms[evaluation] >= max(KEEP_SHARE * level_ms, 0.5 * worth_ms):
            return False
        return not self.high_ms[evaluation] < OVER_SHARE * level_ms


def newest_steps(*, bursts: bool) -> tuple[int, int]:
    """KEEP_STEPS and OVER_STEPS; `bursts`: of a rank that waits for a CPU."""
    factor = BURSTS if bursts else 1
    return int(factor * KEEP_STEPS), int(factor * OVER_STEPS)


def newest_excess(over: Column, wall: Column, *, bursts: bool = False) -> NewestExcess:
    """`over`, `wall`: (k, n) a rank's excess and the steps up to each evaluation; NaN: not judged."""
    keep, newest = newest_steps(bursts=bursts)
    figures = median(over[:, -keep:]), median(wall[:, -keep:]), quantile(over[:, -newest:], 1 - LOW)
    return NewestExcess(*(values.tolist() for values in figures))


def still_late(over: Column, wall: Column, level_ms: float, *, bursts: bool = False) -> bool:
    """Whether a rank flagged with a median excess of `level_ms` stays flagged. `over`: (n,) its excess."""
    return newest_excess(over[None], wall[None], bursts=bursts).is_late(0, level_ms)


def error_of_median(values: Column) -> float:
    """Standard error of the median of a time series, in its unit: 1.25 times that of the mean, as of a normal
    distribution (`standard_error`)."""
    return 1.25 * standard_error(values)[1]


LARGE_MS, LARGE_SHARE, LARGE_NOISE = 1.0, 0.5, 3.0
"""A large excess is more than this: in ms, as a share of the median step, and as a multiple of the 95th
percentile of another rank's excess."""

LARGE_PAUSE_SHARE = 0.1
"""LARGE_SHARE of pauses for garbage collection: they are stamped, and 0 in all other steps, so that nothing
is large by chance. A tenth of the step in one step in three is worth flagging."""

OUTSTANDING = 6.0
"""The median large excess must be this multiple of the 95th percentile of every other rank's: on two busy
cores one of two healthy ranks had most of the large ones for some 200 steps once in 3,000 steps, of up to 4.6
times (18,000 steps at a load of 10); a step in twenty late by 20 ms in steps of 13 ms has 8 to 15."""

HALF = 0.5
"""A rank's occurrences are its excesses of more than half of its median large one: a fault has them alike."""

FEWEST = 6
"""Least occurrences: with one step in twenty late they take 120 steps. By chance one of two ranks has six of
six once in 32 times, but noise has hardly six that are outstanding."""

ALIKE, MANY = 0.75, 12
"""Fewer than MANY occurrences must be alike: the lower quartile of their sizes is at least this share of the
upper one. Of exponential bursts, cut off at half of their median, it is 0.6, of a delay with noise 0.9.
Pauses for garbage collection are no chance, but on a busy machine they take 25 to 60 ms: they need not be."""

TIMES = 6
"""A rank has the large excesses to itself when it has this many times as many occurrences as any other."""

WORTH = 0.03
"""Least part of the time that its occurrences take."""

NOW_AND_THEN = 0.9
"""Largest share of late steps since the first: from about 0.8 on a delay is persistent, so that none lies
between the two rules. With 0.5 a rank that is late in every second step, as where two models train in turn,
was flagged and cleared again and again."""

FRESH, SOONEST, LONGEST = 56, 32, 1.4
"""Steps without an occurrence after which the pattern is over: LONGEST times the longest gap between its
occurrences, at least SOONEST and at most FRESH."""

LEAST_STEPS = 64
"""Least steps in which patterns are searched."""

RIVALS = 64
"""Ranks with which the one of most large excesses is compared: those that have most of them."""


def intermittent(
    excess: Column, wall: Column, *, held: bool = False, are_pauses: bool = False
) -> Late | None:
    """The rank that has the large excesses to itself, spread over the steps since the first of them.

    `are_pauses`: the excess is that of pauses for garbage collection.
    `held`: a rank is flagged for this already, and two thirds of what flagging takes are enough.
    """
    ease = 2 / 3 if held else 1.0
    fewest, times, outstanding_by = ease * FEWEST, ease * TIMES, ease * OUTSTANDING
    if len(wall) < LEAST_STEPS or len(excess) < 2:
        return None
    large_share = LARGE_PAUSE_SHARE if are_pauses else LARGE_SHARE
    least, worth = max(LARGE_MS, large_share * float(median(wall))), WORTH * float(np.nansum(wall))
    time_ms = np.where(excess > least, excess, 0.0).sum(axis=1)
    rank = int(time_ms.argmax())
    if time_ms[rank] < worth:
        return None
    time_ms[rank] = -1.0
    other_excess = excess[np.argsort(-time_ms, kind="stable")[: min(RIVALS, len(excess) - 1)]]
    noise = float(np.fmax.reduce(quantile(np.clip(other_excess, 0.0, None), 0.95)))
    large = excess[rank][excess[rank] > max(least, LARGE_NOISE * noise)]
    if len(large) < fewest or float(median(large)) < outstanding_by * noise:
        return None
    least = HALF * float(median(large))
    late = excess[rank] > least
    begins = occurrences(late)
    gaps = np.diff(begins)
    for again in begins[1:][gaps > FRESH].tolist():  # the pattern was over: before it was another one
        late[:again] = False
        begins = begins[begins >= again]
    if (
        len(begins) < fewest
        or len(wall) - begins[-1] > silence(begins)
        or not (held or _spread(begins, len(wall)))
    ):
        return None
    if excess[rank, late].sum() < worth or late[begins[0] :].mean() > NOW_AND_THEN:
        return None
    low, high = (float(quantile(excess[rank, late], share)) for share in (0.25, 0.75))
    if len(begins) < MANY and not (held or are_pauses) and low < ALIKE * high:
        return None
    over = other_excess > least
    rivals = over[over.sum(axis=1) * times > len(begins)]  # the others have too few late steps
    if any(len(occurrences(rival)) * times > len(begins) for rival in rivals):
        return None
    return Late((rank,), int(begins[0]), float(median(excess[rank, late])))


def silence(begins: Indices) -> float:
    """Steps without an occurrence after which a pattern with these occurrences is over."""
    return min(FRESH, max(SOONEST, LONGEST * float(np.diff(begins).max(initial=0))))


def _spread(begins: Indices, steps: int) -> bool:
    """Whether the occurrences lie in three of four quarters of the steps since the first."""
    quarter = (begins - begins[0]) * 4 // max(1, steps - int(begins[0]))
    return len(np.unique(quarter)) >= 3


ROTATING_STEPS = 80
"""Newest steps in which a rotating straggler is searched, unless more are needed (ROTATING_SURE)."""

ROTATING_SHARE = 0.1
"""Least excess of the late rank of a step, as a share of the median step: on a busy machine scheduling makes
one of two ranks late by up to 7 % in most steps (seen on two cores)."""

ROTATING_SURE = 0.25
"""Below this share all of the newest SLOW_CORE_STEPS, or SLOW_CORE_S, are searched: in each of two half hours
of healthy training on two cores, one quiet and one beside bursts of other work, 80 steps once looked like
ranks that are late in turn, by 11 and 16 %."""

STEADY_SHARE = 0.5
"""The 10th percentile of the steps' largest excesses must be this share of the 80th: of normal noise it is
0.1, of exponential noise 0.07, of a delay with noise of a third of it 0.5."""

MOST = 0.8
"""Largest share of the steps in which one rank is the late one."""

THRESHOLDS = Thresholds(
    level_steps=LEVEL_STEPS, errors=ERRORS, steady=STEADY_SHARE, low=0.1, high=0.8, most=MOST, fewest=2.0
)


def rotating(
    last: Indices,
    gain: Column,
    wall: Column,
    ranks: int,
    *,
    held: bool = False,
    steps: int = ROTATING_STEPS,
) -> Late | None:
    """The ranks of which one is late in most of the newest steps, by a similar time, but not always the same.

    `last`: (n,) the rank with the largest excess, `gain`: by how much that stands out (`outstanding`).
    `held`: flagged already, and two thirds of what flagging takes are enough. `steps`: so many at least.
    """
    first, all_steps = max(0, len(wall) - steps), (last, gain, wall)
    last, gain, wall = last[-steps:], gain[-steps:], wall[-steps:]
    if min(len(wall), len(last)) < steps or ranks < 2:
        return None
    ease = 2 / 3 if held else 1.0
    step, middle = float(median(wall)), float(quantile(gain, 0.5))
    if not middle >= ease * max(FLAG_MS, ROTATING_SHARE * step):
        return None
    order = ranks_in_turn(last, gain, ranks, THRESHOLDS, ease=ease)
    if not order:
        return None
    if middle < ROTATING_SURE * step and not held:
        lasting = int(np.searchsorted(np.nancumsum(all_steps[2][::-1]), 1000 * SLOW_CORE_S)) + 1
        if steps < min(SLOW_CORE_STEPS, lasting):
            return rotating(*all_steps, ranks, steps=min(SLOW_CORE_STEPS, lasting))
    return Late(order, first, middle)


def may_rotate(gain: Column, ends: Indices) -> Mask:
    """(k,) whether `rotating` may find anything in the steps up to the indices `ends`, (k,): the median gain
    of the newest ROTATING_STEPS is large enough. This costs less."""
    large = np.concatenate([[0], (gain >= 2 / 3 * FLAG_MS).cumsum()])
    n_known = np.concatenate([[0], np.isfinite(gain).cumsum()])
    begins = np.maximum(ends + 1 - ROTATING_STEPS, 0)
    return np.asarray(2 * (large[ends + 1] - large[begins]) >= n_known[ends + 1] - n_known[begins])


def outstanding(excess: Column) -> tuple[Indices, Column]:
    """(n,) the rank with the largest excess, and by how much that is above the second largest, or above 0."""
    other_excess = np.where(np.isnan(excess), -np.inf, excess).T.copy()
    last = np.arange(len(other_excess)), other_excess.argmax(axis=1)
    largest = other_excess[last] if len(excess) > 1 else np.full(len(other_excess), np.nan)
    other_excess[last] = -np.inf
    gain = largest - np.maximum(reduce_rows(np.maximum, other_excess), 0.0)
    return last[1], np.where(np.isfinite(gain), gain, np.nan)


def suspect(excess: Column, wall: Column) -> tuple[Late, int] | None:
    """The rank that is clearly late in the newest steps, in too few to flag it; and in how many of them it
    has the largest excess."""
    newest = excess[:, -STEPS_NEEDED[0][1] :]
    if len(excess) < 2 or newest.shape[1] < LEVEL_STEPS // 2:
        return None
    rank = int(np.nan_to_num(median(newest[:, -LEVEL_STEPS // 2 :]), nan=-np.inf).argmax())
    first = onset(newest[rank])
    over, step = newest[rank, first:], float(median(wall[-len(newest[rank]) :][first:]))
    if len(over) < LEVEL_STEPS // 2:
        return None
    level = float(median(over))
    last = int((latest_ranks(newest[:, first:]) == rank).sum())
    if not is_clearly_last(last, len(over), len(excess)):
        return None
    if level < max(FLAG_MS, FLAG_SHARE * step) or float(quantile(over, LOW)) < LOW_SHARE * level:
        return None
    return Late((rank,), len(wall) - len(over), level), last
