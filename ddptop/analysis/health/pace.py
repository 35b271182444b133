"""Steps of all ranks that take longer than before, from a step on: larger batches, a busy network.

Over blocks of BLOCK complete steps, m[b] the median of block b of the ranks' median wall times: steps are
slower where the NEWEST newest blocks, but one, are above the BEFORE blocks before them, but one, and their
median by SHARE and LEAST_MS above that of those; likewise faster. So single long steps, and scatter that was
there before, say nothing. While a rank is flagged nothing is said: the steps are longer for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ddptop.analysis.event_log import EventLog
    from ddptop.frames.columns import Column

BLOCK, NEWEST, BEFORE = 16, 8, 16
"""Steps of a block; blocks that must be slower, all but one, and those that they are compared with."""

SHARE, LEAST_MS = 1.2, 1.0


class Pace:
    """Compares the newest steps with those before them, as they are evaluated."""

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = []
        """Number and wall time of the steps of the present block."""
        self._blocks: list[tuple[int, float]] = []
        """First step and median of the newest blocks."""

    def take(self, log: EventLog, numbers: Column, wall: Column, unix_s: Column, flagged: bool) -> None:
        """The next complete steps: their numbers, median wall times and ends. `flagged`: a rank is."""
        for step, step_ms, at_s in zip(numbers.tolist(), wall.tolist(), unix_s.tolist(), strict=True):
            self._steps.append((step, step_ms))
            if len(self._steps) < BLOCK:
                continue
            median_ms = float(np.median([step_ms for _, step_ms in self._steps]))
            self._blocks = [*self._blocks[1 - NEWEST - BEFORE :], (int(self._steps[0][0]), median_ms)]
            self._steps = []
            if flagged:
                self._blocks = []
            elif len(self._blocks) == NEWEST + BEFORE:
                self._compare(log, at_s)

    def _compare(self, log: EventLog, unix_s: float) -> None:
        medians = np.array([median_ms for _, median_ms in self._blocks])
        before, now = np.sort(medians[:BEFORE]), np.sort(medians[BEFORE:])
        was_ms, is_ms = float(np.median(before)), float(np.median(now))
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
