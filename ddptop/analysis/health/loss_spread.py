"""A rank whose loss stands apart from the other ranks': another data set, a broken shard, a wrong label.

Losses of healthy ranks differ by the noise of their batches. Over the last complete steps, with
l[r, t] the loss of rank r in step t:

    d[r, t] = l[r, t] - median over the ranks of l[., t]      (two ranks: the difference between them)
    apart r = median over t of d[r, t]
    noise r = 1.4826 x median over t of |d[r, t] - apart r|   (the normal distribution's sigma)

A rank stands apart when |apart| exceeds all of these:

- three times the larger of its own noise and the median of all ranks' noise
- five times the median of all ranks' |apart|: where each rank has its own level, none stands apart
- a tenth of the median |loss|

Medians are used because heavy tails hardly change them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import significant
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.statistics import median, reduce_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.event_log import EventLog
    from ddptop.frames.columns import Column, Indices

STEPS = 100
"""Newest complete steps that are compared."""

MIN_STEPS = 32
"""Least complete steps to compare losses."""

EVERY = 32
"""Complete steps between two evaluations."""

NOISES, LEVELS, SHARE = 3.0, 5.0, 0.1
"""The three thresholds: in sigmas of the difference, in the median distance, as a share of the loss."""

TOGETHER = 2**16
"""Losses that are compared at a time: an array of all of 4,096 ranks takes 3.3 MB, and there were four."""

HYSTERESIS = 0.6
"""A flagged rank stays flagged down to this share of the thresholds, so that the alert does not flicker."""


class Apart(NamedTuple):
    """A rank whose loss stands apart: its loss and the other ranks', medians over the steps."""

    rank: int
    own: float
    others: float
    steps: int


def stands_apart(losses: Column, medians: Column, flagged: frozenset[int] = frozenset()) -> list[Apart]:
    """Ranks whose losses stand apart, the farthest first.

    `losses`: (steps, ranks); `medians`: (steps,) `median_losses`; `flagged`: ranks that stood apart at
    the last evaluation. Steps with an unknown loss are left out.
    """
    is_known = ~np.isnan(medians)
    losses, medians = (losses, medians) if is_known.all() else (losses[is_known], medians[is_known])
    steps, world = losses.shape
    if steps < MIN_STEPS or world < 2:
        return []
    middle = _wide(losses[:, ::-1]) if world == 2 else medians[:, None]
    few = max(world if world == 2 else 1, TOGETHER // steps)
    parts = [slice(rank_begin, rank_begin + few) for rank_begin in range(0, world, few)]
    apart = np.concatenate([median((_wide(losses[:, part]) - middle).T) for part in parts])
    size = np.abs(losses)
    # Usually most losses are too large for any rank to be flagged: to count them takes less than a median.
    if 2 * np.count_nonzero(size > 1.01 / (HYSTERESIS * SHARE) * np.abs(apart).max()) > size.size:
        return []
    share = SHARE * _middle(size.ravel())
    if not (np.abs(apart) > HYSTERESIS * share).any():
        return []
    distances = (np.abs(_wide(losses[:, part]) - middle - apart[part]) for part in parts)
    noise = 1.4826 * np.concatenate([median(distance.T) for distance in distances])
    least = np.maximum(NOISES * np.maximum(noise, median(noise)), share)
    if world > 2:
        least = np.maximum(least, LEVELS * np.sort(np.abs(apart))[world // 2])
    least = least * np.array([HYSTERESIS if rank in flagged else 1.0 for rank in range(world)])
    result = [rank for rank in range(world) if abs(apart[rank]) > least[rank]]
    result.sort(key=lambda rank: -abs(apart[rank]))
    return [_apart(_wide(losses), rank) for rank in result]


def median_losses(losses: Column) -> Column:
    """(steps,) median of the losses of each step, (steps, ranks); NaN where one is not known."""
    return np.where(reduce_rows(np.logical_and, np.isfinite(losses)), median(losses), np.nan)


def _middle(values: Column) -> float:
    """Median of (n,) values without NaN, which are put in another order: of many no copy is made."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    values.partition((low, high))
    return float(_wide(values[low]) + _wide(values[high])) / 2


def _wide(losses: Column) -> Column:
    return np.asarray(losses, np.float64)


def _apart(losses: Column, rank: int) -> Apart:
    median_of_others = median(np.delete(losses, rank, axis=1))
    return Apart(rank, float(median(losses[:, rank])), float(median(median_of_others)), len(losses))


class LossSpread:
    """Compares the ranks' losses every 32 complete steps, independently of when frames are built."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.apart: list[Apart] = []
        self._since_s = 0.0
        self.restart(0)

    def restart(self, world: int) -> None:
        """Begin anew, with new processes."""
        self.losses: Column = np.empty((0, world))
        self._medians = np.full(STEPS, np.nan)
        self._count = 0
        self._newest = -1
        """Number of the newest step."""
        self.apart = []

    @property
    def since_s(self) -> float | None:
        """Since when a rank's loss stands apart (Unix seconds); None: none does."""
        return self._since_s if self.apart else None

    def recall(self, since_s: float) -> None:
        """The losses stood apart since then already, before the steps that were read here."""
        if self.apart:
            self._since_s = min(self._since_s, since_s)

    @property
    def phase(self) -> int:
        """Steps since the last evaluation."""
        return (self._newest + 1) % EVERY

    def take(self, numbers: Column, losses: Column, unix_s: Callable[[int], float]) -> None:
        """Add the next n complete steps, whose numbers are `numbers`.

        `losses`: (n, ranks), NaN where unknown; `unix_s`: when a step, by its place, became complete."""
        if not len(self.losses):
            self.losses = np.full((STEPS, losses.shape[1]), np.nan, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # losses may be 1e300
            medians, narrow = median_losses(losses), losses.astype(self.losses.dtype)
        if not ((narrow == losses) | np.isnan(losses)).all():
            self.losses = _wide(self.losses)  # of most scripts they are float32
        # By the steps' numbers: whoever begins to read in the middle evaluates after the same steps.
        previous = np.concatenate([[self._newest], numbers[:-1]])
        due = np.flatnonzero((numbers + 1) // EVERY > (previous + 1) // EVERY) + 1
        may = self._may_stand_apart(losses, medians, due)
        begin = 0
        for end, may_stand_apart in zip(due.tolist(), may, strict=True):
            if may_stand_apart or self.apart:
                self._add(losses[begin:end], medians[begin:end])
                begin = end
                self._evaluate(int(numbers[end - 1]), unix_s(end - 1))
        self._add(losses[begin:], medians[begin:])
        self._newest = int(numbers[-1])

    def _add(self, losses: Column, medians: Column) -> None:
        """Keep the last steps."""
        first = max(0, len(losses) - STEPS)
        rows = (self._count + np.arange(first, len(losses))) % STEPS
        self.losses[rows], self._medians[rows] = losses[first:], medians[first:]
        self._count += len(losses)

    def _may_stand_apart(self, losses: Column, medians: Column, due: Indices) -> list[bool]:
        """Whether `stands_apart` can find a rank after so many of n steps, `due`: that is ruled out for all
        evaluations together."""
        if len(due) < 2:
            return [True] * len(due)
        newest = (self._count + np.arange(-min(self._count, STEPS), 0)) % STEPS
        losses = np.concatenate([self.losses[newest], losses])
        medians = np.concatenate([self._medians[newest], medians])
        ends = due + len(newest)
        rows = np.maximum(ends[:, None] + np.arange(-STEPS, 0), 0)
        losses, medians = losses[rows], medians[rows]
        middle = losses[..., ::-1] if losses.shape[-1] == 2 else medians[..., None]
        apart = np.abs(median((losses - middle).swapaxes(1, 2))).max(axis=-1)
        sizes = np.abs(losses).reshape(len(due), -1)
        is_level = apart <= HYSTERESIS * (SHARE * sizes.min(axis=-1))  # usually: the median is no less
        unsure = np.flatnonzero(~is_level)
        is_level[unsure] = apart[unsure] <= HYSTERESIS * (SHARE * median(sizes[unsure]))
        is_whole = (ends >= STEPS) & ~np.isnan(medians).any(axis=-1)
        may: list[bool] = (~(is_level & is_whole)).tolist()
        return may

    def _evaluate(self, step: int, unix_s: float) -> None:
        before = frozenset(rank_loss.rank for rank_loss in self.apart)
        self.apart = stands_apart(self.losses[: self._count], self._medians[: self._count], before)
        apart_ranks = frozenset(rank_loss.rank for rank_loss in self.apart)
        if not before and apart_ranks:
            self._since_s = unix_s
            rank = self.apart[0].rank if len(apart_ranks) == 1 else None
            self._log.add(unix_s, "loss_spread", self._words(), rank=rank, step=step)
        elif before and not apart_ranks:
            self._log.add(unix_s, "loss_spread_end", say("loss_spread_end"), step=step)

    def alert(self) -> Alert | None:
        """The alert as of the last evaluation."""
        if not self.apart:
            return None
        first = self.apart[0]
        evidence = {
            "loss": round(first.own, 6),
            "others_loss": round(first.others, 6),
            "steps": first.steps,
            "ranks": len(self.apart),
        }
        return Alert.declared("loss_spread", first.rank, None, self._since_s, self._words(), evidence)

    def _words(self) -> str:
        first, world = self.apart[0], self.losses.shape[1]
        own_loss, others_loss = significant(first.own), significant(first.others)
        if world == 2:
            of_0, of_1 = (own_loss, others_loss) if first.rank == 0 else (others_loss, own_loss)
            return say("loss_spread", "two_ranks", first=of_0, second=of_1)
        who = ranks_phrase([rank_loss.rank for rank_loss in self.apart], world)
        return say("loss_spread", who=who, own=own_loss, others=others_loss)
