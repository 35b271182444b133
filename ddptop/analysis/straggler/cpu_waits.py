"""Flags the rank that waits for a CPU longer than the others: a busy loop on its core, a CPU quota.

On a busy machine every rank waits now and then, one of them for seconds while others do not. That is scatter,
and no rank's fault: so `CpuWaits` takes far longer than the rules of `own_time_rules`. That a quota is used
up the kernel counts: `throttled` is as fast as they are.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.figures import CpuSuspect, StepFlag, place_excess
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.analysis.straggler import own_time_rules
from ddptop.frames.statistics import median, quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.frames.columns import Column, Indices
    from ddptop.protocol.vocabulary import Pattern

BLOCK_STEPS = 32
"""Steps of a block."""

LEAST_BLOCKS, LEAST_MS = 7, 20_000.0
"""Least blocks (224 steps) and least time in which the rank must have waited."""

SHARE = 0.2
"""Least part of these steps that the rank waits longer than the median of the others. In 35,000 steps of two
healthy ranks, 25 minutes at a load of 8 to 26 on two cores, it reached 0.22 over 20 s (0.26 over 10 s).
Beside a busy loop on the rank's core it is 0.4 to 0.5."""

EACH, EACH_SHARE = 0.1, 0.12
"""In all but one in ten blocks it must be at least this part: in those healthy steps it reached 0.05 (over
10 s 0.15), beside a busy loop 0.25 to 0.5."""


LEAST_SUSPECT_BLOCKS = 2
"""Blocks (64 steps) from which on a rank that waits is named as a suspect, which no healthy rank was in more
than one of them in a row."""


def needed_s(step_ms: float) -> float:
    """Time after which a rank that waits is flagged, in steps of this length."""
    return max(LEAST_MS, LEAST_BLOCKS * BLOCK_STEPS * step_ms) / 1e3


class CpuWaits:
    """How long each rank of a process group waited for a CPU in the newest blocks of steps."""

    def __init__(self, members: Indices) -> None:
        self._members = members
        self._blocks: deque[tuple[Column, float, int]] = deque()
        """For each block: (members,) ms waited longer than the median of the others, its length in ms and its
        steps."""
        self._suspect: tuple[int, float] | None = None
        """Its row, and for how long it has waited through all blocks, in ms."""
        self._begin_block()

    def _begin_block(self) -> None:
        self._block_over: Column = np.zeros(len(self._members))
        self._block_wall, self._block_steps = 0.0, 0

    @property
    def steps(self) -> int:
        """Steps in the present block."""
        return self._block_steps

    def take(self, over_ms: Column, steps_ms: float, steps: int) -> None:
        """Steps that are new since the last evaluation: (members,) ms waited longer than the median of the
        others, the time that the steps took, and how many they are."""
        self._block_over += over_ms
        self._block_wall += steps_ms
        self._block_steps += steps

    def suspect(self) -> CpuSuspect | None:
        """The rank that has waited long in all of the newest blocks, which are too few to flag it; None: none
        has, in LEAST_SUSPECT_BLOCKS of them."""
        if self._suspect is None:
            return None
        row, waited_ms = self._suspect
        return CpuSuspect(int(self._members[row]), (waited_ms + self._block_wall) / 1e3)

    def _find_suspect(self) -> tuple[int, float] | None:
        if len(self._blocks) < LEAST_SUSPECT_BLOCKS:
            return None
        over, wall = np.array([ms for ms, _, _ in self._blocks]), np.array([ms for _, ms, _ in self._blocks])
        row = int(over[-LEAST_SUSPECT_BLOCKS:].sum(axis=0).argmax())
        shares = formulas.share(over[:, row], wall)
        short = np.flatnonzero(shares < EACH_SHARE)
        first = int(short[-1]) + 1 if len(short) else 0
        if len(wall) - first < LEAST_SUSPECT_BLOCKS or over[first:, row].sum() < SHARE * wall[first:].sum():
            return None
        return row, float(wall[first:].sum())

    def flag(self, steps: StepWindow, slot: int) -> StepFlag | None:
        """The rank to flag at a step; evaluated whenever a block is complete."""
        if self._block_steps < BLOCK_STEPS:
            return None
        blocks = self._blocks
        blocks.append((self._block_over.astype(np.float32), self._block_wall, self._block_steps))
        self._begin_block()
        wall = np.array([ms for _, ms, _ in blocks])
        needed = max(LEAST_BLOCKS, int(np.searchsorted(np.cumsum(wall[::-1]), LEAST_MS)) + 1)
        enough = len(blocks) >= needed
        while len(blocks) > needed:
            blocks.popleft()
        self._suspect = self._find_suspect()
        if not enough:
            return None
        over, wall = np.array([ms for ms, _, _ in blocks]), wall[-needed:]
        total = over.sum(axis=0) / wall.sum()
        row = int(total.argmax())
        shares = formulas.share(over[:, row], wall)
        if total[row] < SHARE or float(quantile(shares, EACH)) < EACH_SHARE:
            return None
        newest = np.arange(max(0, slot + 1 - own_time_rules.KEEP_STEPS), slot + 1)
        level_ms = float(median(place_excess(steps, "cpu", newest, self._members)[row]))
        if level_ms < EACH_SHARE * float(median(steps.wall(newest))):  # it has ended
            return None
        since = slot + 1 - sum(steps for _, _, steps in blocks)
        rank = int(self._members[row])
        return StepFlag((rank,), "persistent", max(0, since), level_ms, self._members, "cpu")


READINGS, APART_S, FRESH_S = 2, 2.5, 1.5
"""Least readings of a rank's process in which its quota was used up, and the longest time between two of
them: there is one a second, and a checkpoint may take that. To the step that flags a rank it is FRESH_S, or
one could be flagged again when the quota is no more."""

WORTHWHILE, STILL = 0.06, 40
"""Least part of the time that its late steps wait longer, and the newest steps in which they do so still: a
quota of 30 % of a core takes 0.1 to 0.3, one wait of 25 ms among 40 healthy steps of 13 ms 0.05."""

OTHERS = 64
"""Most other ranks that it is compared with."""


def throttled(
    steps: StepWindow, slot: int, members: Indices, readings: Mapping[int, Iterable[float]], held: int | None
) -> StepFlag | None:
    """The rank whose CPU quota is used up and that waits for a CPU longer than the others.

    `readings`: of ranks, when their quota was seen to be used up, in seconds since the run started. Those
    after the end of the step do not count: they may have come before its evaluation or not. With more than
    half of the ranks throttled no rank is flagged: they share the quota. `held`: the rank flagged so far.
    """
    window = np.arange(max(0, slot + 1 - OWN_STEPS), slot + 1)
    ends = steps.group.of("end", window)
    used_up = {rank: _used_up(times, float(ends[-1]), held=rank == held) for rank, times in readings.items()}
    rows = [row for row, rank in enumerate(members.tolist()) if used_up.get(rank) is not None]
    if not rows or 2 * len(rows) > len(members):
        return None
    other_members = np.delete(members, rows)
    other_members = other_members[
        np.linspace(0, len(other_members) - 1, min(len(other_members), OTHERS)).astype(np.int64)
    ]
    late_rows = []
    for rank in members[rows[: own_time_rules.CANDIDATES]].tolist():
        over = place_excess(steps, "cpu", window, np.array([rank, *other_members]))[0]
        begin, end = np.searchsorted(ends, used_up[rank] or ()).tolist()
        late = waits_by_quota(over, steps.wall(window), begin, end, held=rank == held)
        if late is not None:
            pattern, first, level_ms = late
            late_rows.append(StepFlag((rank,), pattern, int(window[first]), level_ms, members, "cpu"))
    return max(late_rows, key=lambda flag: flag.level_ms, default=None)


def _used_up(readings: Iterable[float], now_s: float, *, held: bool) -> tuple[float, float] | None:
    """From when to when a quota was used up without an end, where that was seen often enough and still is."""
    times = [time_s for time_s in readings if time_s <= now_s]
    chain, later_s, longest_s = 0, now_s, APART_S if held else FRESH_S
    for time_s in reversed(times):
        if later_s - time_s > longest_s:
            break
        chain, later_s, longest_s = chain + 1, time_s, APART_S
    return (later_s - 1.0, times[-1]) if chain >= READINGS else None  # a reading is of the second before it


def waits_by_quota(
    over: Column, wall: Column, begin: int, end: int, *, held: bool = False
) -> tuple[Pattern, int, float] | None:
    """How a throttled rank waits for its CPU, since which step, and by how much longer in its late steps.

    `over`: (n,) ms that it waits longer than the others; `begin`, `end`: the steps for which readings show
    that its quota was used up; later ones need not be like them. A period of a quota is 100 ms: of short
    steps one in several is late, by the rest of the period, of long ones each.
    None: it costs less than WORTHWHILE of the time, since then or in the newest STILL steps, of which two are
    late; in these one, and half of the time, are enough where the rank is flagged already (`held`).
    """
    over = np.nan_to_num(over)
    step, level_ms = float(median(wall)), float(median(over[begin:end]))
    pattern: Pattern = "persistent"
    if level_ms < max(own_time_rules.FLAG_MS, EACH_SHARE * step):
        large = over > max(own_time_rules.LARGE_MS, own_time_rules.LARGE_SHARE * step)
        pattern, level_ms = "intermittent", float(median(over[begin:end][large[begin:end]]))
    late = begin + np.flatnonzero(over[begin:] > own_time_rules.HALF * level_ms)
    if end - begin < own_time_rules.NEWEST or len(late) < own_time_rules.FEWEST:
        return None
    newest = max(late[0], len(over) - STILL)
    for first, share in ((late[0], WORTHWHILE), (newest, WORTHWHILE / 2 if held else WORTHWHILE)):
        late_since = late[late >= first]
        if over[late_since].sum() < share * wall[first:].sum() or len(late_since) < 2 - held:
            return None
    return pattern, int(late[0]), level_ms
