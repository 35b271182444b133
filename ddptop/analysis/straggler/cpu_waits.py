"""Flags the rank that waits for a CPU longer than the others, lastingly: a busy loop on its core, a quota.

On a busy machine every rank waits now and then, one of them for seconds while others do not. That is scatter,
and no rank's fault: so this takes far longer than the rules of `every_step`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.state import StepFlag, place_excess
from ddptop.analysis.steps import formulas
from ddptop.analysis.straggler import every_step
from ddptop.frames.columns import median

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.frames.columns import Column, Indices

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


class CpuWaits:
    """How long each rank of a process group waited for a CPU in the newest blocks of steps."""

    def __init__(self, members: Indices) -> None:
        self._members = members
        self._blocks: deque[tuple[Column, float, int]] = deque()
        """Of each block (members,) ms waited longer than the median of the others, its ms and its steps."""
        self._begin_block()

    def _begin_block(self) -> None:
        self._block_over: Column = np.zeros(len(self._members))
        self._block_wall, self._block_steps = 0.0, 0

    def take(self, steps: StepWindow, fresh: Indices) -> None:
        """Steps that are new since the last evaluation."""
        over = place_excess(steps, "cpu", fresh, self._members)
        if np.isnan(over).all():  # not known: nothing is kept
            return
        self._block_over += np.nan_to_num(over).sum(axis=1)
        self._block_wall += float(steps.wall(fresh).sum())
        self._block_steps += len(fresh)

    def flag(self, steps: StepWindow, slot: int) -> StepFlag | None:
        """The rank to flag at a step; evaluated whenever a block is complete."""
        if self._block_steps < BLOCK_STEPS:
            return None
        blocks = self._blocks
        blocks.append((self._block_over.astype(np.float32), self._block_wall, self._block_steps))
        self._begin_block()
        wall = np.array([ms for _, ms, _ in blocks])
        needed = max(LEAST_BLOCKS, int(np.searchsorted(np.cumsum(wall[::-1]), LEAST_MS)) + 1)
        if len(blocks) < needed:
            return None
        while len(blocks) > needed:
            blocks.popleft()
        over, wall = np.array([ms for ms, _, _ in blocks]), wall[-needed:]
        total = over.sum(axis=0) / wall.sum()
        row = int(total.argmax())
        if total[row] < SHARE or float(formulas.quantile(over[:, row] / wall, EACH)) < EACH_SHARE:
            return None
        newest = np.arange(max(0, slot + 1 - every_step.KEEP_STEPS), slot + 1)
        level_ms = float(median(place_excess(steps, "cpu", newest, self._members)[row]))
        if level_ms < EACH_SHARE * float(median(steps.wall(newest))):  # it has ended
            return None
        since = slot + 1 - sum(steps for _, _, steps in blocks)
        rank = int(self._members[row])
        return StepFlag((rank,), "persistent", max(0, since), level_ms, self._members, "cpu")
