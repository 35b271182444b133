"""Steps of all ranks that take longer than before, from a step on: larger batches, a busy network.

Over blocks of complete steps, of BLOCK steps and BLOCK_S at least, m[b] the median of block b of the ranks'
median wall times: steps are slower where the NEWEST newest blocks, but one, are above the BEFORE blocks
before them, but one, and their median by SHARE and LEAST_MS above that of those; likewise faster. So single
long steps, a few long seconds, and scatter that was there before, say nothing. While a rank is flagged, or it
is not known from every step whether one is, nothing is said: the steps may be longer for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import median

if TYPE_CHECKING:
    from ddptop.analysis.event_log import EventLog
    from ddptop.frames.columns import Column, Mask

BLOCK, BLOCK_S, NEWEST, BEFORE = 16, 1.0, 8, 16
"""Least steps and seconds of a block; blocks that must be slower, all but one, and those that they are
compared with. So the log of 100 events has at most one of these in 16 s."""

SHARE, LEAST_MS = 1.2, 1.0


class Pace:
    """Compares the newest steps with those before them, as they are evaluated."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float, float]] = []
        """Number, wall time and end of the steps of the present block."""
        self._blocks: list[tuple[int, float]] = []
        """First step and median of the newest blocks."""

    def take(self, log: EventLog, numbers: Column, wall: Column, unix_s: Column, even: Mask) -> None:
        """The next complete steps: their numbers, median wall times and ends, and whether no rank was flagged
        at each."""
        columns = (numbers.tolist(), wall.tolist(), unix_s.tolist(), even.tolist())
        for step, step_ms, at_s, is_even in zip(*columns, strict=True):
            if not is_even:
                self._steps, self._blocks = [], []
                continue
            self._steps.append((step, step_ms, at_s))
            if len(self._steps) < BLOCK or at_s - self._steps[0][2] < BLOCK_S:
                continue
            median_ms = float(median(np.array([one[1] for one in self._steps])))
            self._blocks = [*self._blocks[1 - NEWEST - BEFORE :], (int(self._steps[0][0]), median_ms)]
            self._steps = []
            if len(self._blocks) == NEWEST + BEFORE:
                self._compare(log, at_s)

    def _compare(self, log: EventLog, unix_s: float) -> None:
        medians = np.array([median_ms for _, median_ms in self._blocks])
        before, now = np.sort(medians[:BEFORE]), np.sort(medians[BEFORE:])
        was_ms, is_ms = float(median(before)), float(median(now))
        if abs(is_ms - was_ms) < LEAST_MS or max(is_ms, was_ms) < SHARE * min(is_ms, was_ms):
            return
        slower = is_ms > was_ms
        apart = now[1] > before[-2] if slower else now[-2] < before[1]
        if not apart:
            return
        others = medians > before[-2] if slower else medians < before[1]
        first = self._blocks[BEFORE + int(np.argmax(others[BEFORE:]))][0]
        kind = "slower" if slower else "faster"
        text = f"all ranks are {kind} since step {first:,}: {is_ms:,.1f} ms a step, {was_ms:,.1f} ms before"
        log.add(unix_s, kind, text, severity="warning" if slower else "info", step=first)
        self._blocks = self._blocks[BEFORE:]
