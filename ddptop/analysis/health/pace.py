"""Steps of all ranks that take longer than before, from a step on: larger batches, a busy network.

Over blocks of complete steps, of BLOCK steps and BLOCK_S at least, m[b] the median of block b of the ranks'
median wall times, less the longest wait of a rank for a CPU in that step (outside communication): steps are
slower where the NEWEST newest blocks, but one, are above the BEFORE blocks before them, but one, and their
median by SHARE and LEAST_MS above that of those; likewise faster. So single long steps, a few long seconds,
and scatter that was there before, say nothing. Where other processes take the CPUs, the transport waits for
them too, about as long as the ranks do: so what they wait has to have changed by so much less than the rest.
While a rank is flagged, or it is not known from every step whether one is, nothing is said: the steps may be
longer for it.
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
        self._steps: list[tuple[float, float, float, float]] = []
        """Number, wall time less the wait for a CPU, that wait, and end of the steps of the present block."""
        self._blocks: list[tuple[int, float, float]] = []
        """First step and medians of the newest blocks."""

    def take(
        self,
        log: EventLog,
        numbers: Column,
        wall: Column,
        waited: Column | None,
        unix_s: Column,
        even: Mask,
    ) -> None:
        """The next n complete steps: their numbers, median wall times, what each rank has waited for a CPU
        (n, ranks; None: not known), ends, and whether no rank was flagged at each."""
        cpu = np.zeros(len(wall)) if waited is None else np.fmax.reduce(waited, axis=1, initial=0.0)
        columns = (numbers.tolist(), (wall - cpu).tolist(), cpu.tolist(), unix_s.tolist(), even.tolist())
        for *step, is_even in zip(*columns, strict=True):
            if not is_even:
                self._steps, self._blocks = [], []
                continue
            self._steps.append((step[0], step[1], step[2], step[3]))
            if len(self._steps) < BLOCK or step[3] - self._steps[0][3] < BLOCK_S:
                continue
            first, without_ms, cpu_ms, _ = zip(*self._steps, strict=True)
            medians = float(median(np.array(without_ms))), float(median(np.array(cpu_ms)))
            self._blocks = [*self._blocks[1 - NEWEST - BEFORE :], (int(first[0]), *medians)]
            self._steps = []
            if len(self._blocks) == NEWEST + BEFORE:
                self._compare(log, step[3])

    def _compare(self, log: EventLog, unix_s: float) -> None:
        medians, cpu = np.array([block[1:] for block in self._blocks]).T
        before, now = np.sort(medians[:BEFORE]), np.sort(medians[BEFORE:])
        was_ms, is_ms = float(median(before)), float(median(now))
        if abs(is_ms - was_ms) < LEAST_MS or max(is_ms, was_ms) < SHARE * min(is_ms, was_ms):
            return
        slower = is_ms > was_ms
        waits_ms = abs(float(median(cpu[BEFORE:]) - median(cpu[:BEFORE])))
        if abs(is_ms - was_ms) - waits_ms < max(LEAST_MS, (SHARE - 1) * min(is_ms, was_ms)):
            return
        apart = now[1] > before[-2] if slower else now[-2] < before[1]
        if not apart:
            return
        others = medians > before[-2] if slower else medians < before[1]
        first = self._blocks[BEFORE + int(np.argmax(others[BEFORE:]))][0]
        kind = "slower" if slower else "faster"
        text = f"all ranks are {kind} since step {first:,}: {is_ms:,.1f} ms a step, {was_ms:,.1f} ms before"
        log.add(unix_s, kind, text, severity="warning" if slower else "info", step=first)
        self._blocks = self._blocks[BEFORE:]
