"""What recording costs: steps in which the recorder stands aside (shadow blocks) compared with their
neighbours. What these pay as well (`OwnCost`) is added where it is shown.

Each block gives one paired difference, since neighbouring steps are alike: times of steps drift and are
correlated over seconds. Within a block and on each side of it the median is taken, which single slow steps do
not change. Blocks are some 500 steps apart, and so independent. Over them the estimate is that of Hodges and
Lehmann (1963), and its interval that of Wilcoxon's signed ranks. This assumes that a block and its neighbours
scatter alike, and no distribution of step times. A block in a busy second counts as one block.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.overhead import MeasuredCost
from ddptop.frames.statistics import median, reduce_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.frames.columns import Column, Indices, Mask

FEWEST = 6
"""Least blocks: with fewer there is no interval of 95 % without assumptions (all of six have the same sign by
chance in 3 % of cases)."""

MOST = 100
"""Newest blocks that are used: 51,000 steps."""

SETTLE = 2
"""First steps of a stretch that do not count: caches are filled anew, and the first step of a block begins
before the recorder stands aside. In the last step of a block the recorder is back."""

SIDE = 7
"""Steps on each side: as many as a block of ten has without its first two and its last."""

APART = 400
"""Steps from the end of a block to the next one that is used."""

AROUND = 32
"""Steps beside a block among which its neighbours are: those without bucket detail, not right after it."""

KEPT = 640
"""Newest steps that are kept: from one block to the next, and what lies around both."""

MOST_RECORDED = 64
"""Where steps are left out, at most so many are recorded one after the other: more show that none is left
out."""

Z = 1.96


ENOUGH_RECORDED = 64
"""Recorded steps by which it is known how many are left out. Which block of so many is recorded varies:
beside four of 16 steps there are 0.75 to 1.25 times as many as usual, which rounds to the right power of
two."""


class RecordedSteps:
    """How many of the newest steps are recorded: all but shadow blocks, or fewer, to keep the budget."""

    def __init__(self) -> None:
        self.every = 1
        """One in so many steps is recorded; a power of two."""
        self._stretches: deque[tuple[int, int]] = deque()
        """The newest stretches that are recorded, but for the last: number of the first step, and how many
        they are."""
        self._begin = -1
        """Number of the first step of the last one; -1: none has begun yet."""
        self._n_recorded = 0
        """Steps of it so far."""
        self._is_recorded = True

    def take(self, numbers: Column, recorded: Mask) -> None:
        """Add n steps: `recorded` (n,): whether all ranks recorded it."""
        before = np.concatenate([[self._is_recorded], recorded[:-1]])
        self._is_recorded = bool(recorded[-1])
        begins = np.flatnonzero(recorded & ~before)
        edges = [0, *begins.tolist(), len(numbers)]
        for first, stop in pairwise(edges):
            if first in begins:
                number = int(numbers[first])
                if self._begin >= 0 and self._n_recorded:
                    self._add_stretch(number)
                self._begin, self._n_recorded = number, 0
            self._n_recorded += int(recorded[first:stop].sum())
        if self._n_recorded > MOST_RECORDED:
            self.every = 1

    def _add_stretch(self, next_begin: int) -> None:
        if self._n_recorded > MOST_RECORDED:  # none was left out before
            self._stretches.clear()
            return
        stretches = self._stretches
        # Below 1 where steps begin at 0 again.
        least = _power_of_two_within((next_begin - self._begin) / self._n_recorded)
        # Less than twice as many steps as usual lie between two stretches: more of them are left out now.
        if least > self.every:
            stretches.clear()
            self.every = least
        stretches.append((self._begin, self._n_recorded))
        n_recorded = sum(n for _, n in stretches)
        while n_recorded - stretches[0][1] >= ENOUGH_RECORDED:
            n_recorded -= stretches.popleft()[1]
        if n_recorded >= ENOUGH_RECORDED:
            # Rounded to the nearest power of two.
            self.every = _power_of_two_within(math.sqrt(2) * (next_begin - stretches[0][0]) / n_recorded)


def _power_of_two_within(number: float) -> int:
    """The largest power of two that is no larger; 1 at least."""
    return 1 << math.floor(math.log2(max(1.0, number)))


class ShadowCost:
    """The blocks so far, from complete steps in order."""

    def __init__(self) -> None:
        self.measured: MeasuredCost | None = None
        """None: too few blocks so far."""
        self.blocks: deque[tuple[int, float]] = deque(maxlen=MOST)
        """For each block: the number of its last step, and what the recorder costs, as a share of the step
        without it."""
        self._steps: Column = np.empty((4, 0))
        """Number, wall time in ms, shadow (NaN: not of all ranks), bucket detail; of the newest steps."""
        self._done = -1.0
        """Number of the last step of the last block."""

    def take(
        self, numbers: Column, wall: Column, shadow: Mask, detailed: Mask, recorded_every: int = 1
    ) -> None:
        """Add n steps: `numbers`, `wall` (ms) and `detailed` (n,), `shadow` (n, ranks): who stood aside.
        `recorded_every`: of which so many one is recorded."""
        is_part = reduce_rows(np.logical_or, shadow) & ~reduce_rows(np.logical_and, shadow)
        aside = np.where(is_part, np.nan, shadow[:, 0])
        self._steps = np.concatenate([self._steps, np.stack([numbers, wall, aside, detailed])], axis=1)
        numbers, wall, aside, _ = self._steps
        edges = np.diff((aside == 1).astype(np.int8), prepend=0, append=0)
        is_any_added = False
        for begin, end in zip(np.flatnonzero(edges > 0), np.flatnonzero(edges < 0), strict=True):
            is_apart = self._done < 0 or numbers[begin] > self._done + APART
            if is_apart and end + AROUND <= len(wall):
                self._done = float(numbers[end - 1])
                is_any_added |= self._add(int(begin), int(end), recorded_every)
        if is_any_added:
            self._estimate()
        self._steps = self._steps[:, -KEPT:]

    def recall(self, blocks: Iterable[tuple[int, float]]) -> None:
        """Put these blocks, each with the number of its last step, before those that were found here."""
        first = self.blocks[0][0] if self.blocks else None
        earlier = [block for block in blocks if first is None or block[0] < first]
        if earlier:
            self.blocks = deque([*earlier, *self.blocks], maxlen=MOST)
            self._done = max(self._done, float(self.blocks[-1][0]))
            self._estimate()

    def _estimate(self) -> None:
        self.measured = estimate(np.array([share for _, share in self.blocks]))

    def _add(self, begin: int, end: int, recorded_every: int) -> bool:
        """Evaluate the block of these steps. False where steps are missing or took no time, or not all
        ranks stood aside."""
        numbers, wall, aside, detail = self._steps
        first = begin - AROUND
        if first < 0 or numbers[end + AROUND - 1] - numbers[first] != end + AROUND - 1 - first:
            return False
        if end - begin < SETTLE + 2 or np.isnan(aside[first : end + AROUND]).any():
            return False
        plain = ~((detail > 0) | (np.roll(detail, 1) > 0))
        steps_before, steps_behind = np.arange(first, begin), np.arange(end + SETTLE, end + AROUND)
        sampled = min(plain[steps_before].sum(), plain[steps_behind].sum()) >= SIDE
        if sampled:
            steps_before, steps_behind = steps_before[plain[steps_before]], steps_behind[plain[steps_behind]]
        beside = (median(wall[steps_before[-SIDE:]]) + median(wall[steps_behind[:SIDE]])) / 2
        without = median(wall[begin + SETTLE : end - 1])
        if not without > 0:
            return False
        extra = _detail_cost(wall, detail, np.arange(begin)[aside[:begin] == 0]) if sampled else 0.0
        share = float((beside - without + extra) / without) / recorded_every
        self.blocks.append((int(numbers[end - 1]), share))
        return True


def _detail_cost(wall: Column, detail: Column, steps: Indices) -> float:
    """Mean ms per step that bucket detail takes: what a detailed step and the one after it, in which the
    recorder is taken out, take longer than plain steps beside them."""
    detailed_steps = steps[(detail[steps] > 0) & (steps >= 2) & (steps + 3 < len(wall))]
    if not len(detailed_steps):
        return 0.0
    beside = (
        wall[detailed_steps - 2]
        + wall[detailed_steps - 1]
        + wall[detailed_steps + 2]
        + wall[detailed_steps + 3]
    )
    return (
        float(median(wall[detailed_steps] + wall[detailed_steps + 1] - beside / 2))
        * len(detailed_steps)
        / len(steps)
    )


def estimate(shares: Column) -> MeasuredCost | None:
    """Hodges-Lehmann estimate and Wilcoxon interval of 95 % of paired differences (n,), in percent."""
    n = len(shares)
    if n < FEWEST:
        return None
    i, j = np.triu_indices(n)
    means = np.sort((shares[i] + shares[j]) / 2) * 100
    count = len(means)
    below = max(1, int(count / 2 - Z * np.sqrt(n * (n + 1) * (2 * n + 1) / 24)))
    return MeasuredCost(
        pct=float(median(means)), low=float(means[below - 1]), high=float(means[count - below]), blocks=n
    )
