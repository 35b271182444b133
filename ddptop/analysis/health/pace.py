"""Steps of all ranks that take longer than before, from a step on: larger batches, a busy network.

A step's time is the median over ranks of its wall time, less the longest wait of a rank for a CPU outside
communication. Complete steps are put into blocks of at least BLOCK steps and BLOCK_S; a block's time is the
median over its steps. The NEWEST newest blocks are compared with the BEFORE blocks before them. Steps are
slower where all of these hold (and faster likewise):

- All newest blocks but one are above all earlier ones but one. So single long steps are no regression.
- The median of the newest is above that of the earlier ones by SHARE and by LEAST_MS.
- This is the largest change within all these blocks, and larger than either side scatters without its
  shortest and its longest block: a busy machine is no change. Or the blocks drift, slower bit by bit.

The change is at the step that best parts shorter steps from longer ones, near the first of the newest blocks.

Where other processes take the CPUs, the transport waits for them about as long as the ranks do. So the
medians must have changed by SHARE and LEAST_MS more than that wait has. Nothing is said while a rank is
flagged, or while it is not known from every step whether one is: the steps may be longer for it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps.pairing import begins_of_runs
from ddptop.frames.conditions import say
from ddptop.frames.numbers import fixed
from ddptop.frames.statistics import median, reduce_rows

if TYPE_CHECKING:
    from ddptop.analysis.event_log import EventLog
    from ddptop.frames.columns import Column, Mask

BLOCK, BLOCK_S, NEWEST, BEFORE = 16, 1.0, 8, 16
"""Least steps and seconds of a block; blocks that must be slower, all but one, and those that they are
compared with. So the log of 100 events has at most one of these in 16 s."""

SHARE, LEAST_MS = 1.2, 1.0

AROUND = 2
"""Blocks before the first of the newest ones, and from it on, in whose steps the change is: the median of a
block shows it or not, by whether half of its steps are longer."""

DRIFT = 0.95
"""Correlation with the time above which the blocks drift: with one change in them it is at most 0.87."""

ENDS = 4
"""Least blocks before a change and after it."""


class _Block(NamedTuple):
    """Consecutive steps: medians of them, in ms."""

    wall_ms: float
    waited_ms: float
    """The longest wait of a rank for a CPU."""
    rest_ms: float
    """The wall time less that wait."""


class Pace:
    """Compares the newest steps with those before them, as they are evaluated."""

    def __init__(self) -> None:
        self._steps: Column = np.empty((5, 0))
        """(5, n) steps of the present block: number, wall time, wait and rest as in `_Block`, and end."""
        self._blocks: list[_Block] = []
        """The newest ones."""
        self._parts: list[Column] = []
        """For each of the newest NEWEST + AROUND blocks: the numbers of its steps, and the rest of each in
        ms."""

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
        cpu = np.zeros(len(wall)) if waited is None else np.fmax(reduce_rows(np.fmax, waited), 0.0)
        steps = np.array([numbers, wall, cpu, np.maximum(wall - cpu, 0.0), unix_s])
        for begin, stop in pairwise([*begins_of_runs(even).tolist(), len(even)]):
            if even[begin]:
                self._take_even(log, steps[:, begin:stop])
            else:
                self._steps, self._blocks, self._parts = self._steps[:, :0], [], []

    def _take_even(self, log: EventLog, steps: Column) -> None:
        """The next steps, at each of which no rank was flagged."""
        steps = np.concatenate([self._steps, steps], axis=1)
        while steps.shape[1] >= BLOCK:
            is_long = steps[4, BLOCK - 1 :] - steps[4, 0] >= BLOCK_S
            if not is_long.any():
                break
            stop = BLOCK + int(is_long.argmax())
            block, steps = steps[:, :stop], steps[:, stop:]
            medians = median(np.ascontiguousarray(block[1:4])).tolist()
            self._blocks = [*self._blocks[1 - NEWEST - BEFORE :], _Block(*medians)]
            self._parts = [*self._parts[1 - NEWEST - AROUND :], block[[0, 3]]]
            if len(self._blocks) == NEWEST + BEFORE:
                self._compare(log, float(block[4, -1]))
        self._steps = steps.copy()

    def _compare(self, log: EventLog, unix_s: float) -> None:
        wall, waited, rest = np.array(self._blocks).T
        before, newest = np.sort(rest[:BEFORE]), np.sort(rest[BEFORE:])
        was_ms, is_ms = float(median(before)), float(median(newest))
        least, most = sorted((was_ms, is_ms))
        if most - least < LEAST_MS or most < SHARE * least:
            return
        waits_ms = abs(_change(waited))
        if most - least - waits_ms < max(LEAST_MS, (SHARE - 1) * least):
            return
        slower = is_ms > was_ms
        apart = newest[1] > before[-2] if slower else newest[-2] < before[1]
        drifts = _is_drift(rest)
        if not apart or not (drifts or _is_change(rest, most - least)):
            return
        first = _first(np.hstack(self._parts[: 2 * AROUND]), (was_ms + is_ms) / 2, slower=slower)
        kind, before_ms = "slower" if slower else "faster", float(median(wall[:BEFORE]))
        now_ms = before_ms + _change(wall)
        case = "drift" if drifts else ""
        text = say(kind, case, kind=kind, step=first, now=fixed(now_ms), before=fixed(before_ms))
        log.add(unix_s, kind, text, step=first)
        self._blocks = self._blocks[BEFORE:]


def _is_drift(rest: Column) -> bool:
    """Whether all of these blocks become slower, or faster, bit by bit."""
    return abs(float(np.corrcoef(rest, np.arange(len(rest)))[0, 1])) > DRIFT


def _is_change(rest: Column, by_ms: float) -> bool:
    """Whether the newest blocks differ from those before by more than either of both scatter, and no other
    change in them is larger. Blocks scatter as other processes come and go."""
    scatter_ms = max(np.sort(half)[-2] - np.sort(half)[1] for half in (rest[:BEFORE], rest[BEFORE:]))
    return bool(scatter_ms <= by_ms and abs(_largest_change(rest) - BEFORE) <= 1)


def _largest_change(rest: Column) -> int:
    """Index of the block before which and from which on these scatter least around their means, by ratio."""
    logs = np.log(np.maximum(rest, 1e-3))
    splits = range(ENDS, len(logs) - ENDS + 1)
    return min(
        splits, key=lambda split: split * logs[:split].var() + (len(logs) - split) * logs[split:].var()
    )


def _first(steps: Column, between_ms: float, *, slower: bool) -> int:
    """The number of the step with most shorter steps before it and most longer ones from it on, or likewise
    where they became faster. `steps`: (2, n) numbers and times."""
    after = np.where((steps[1] > between_ms) == slower, 1, -1)
    return int(steps[0, len(after) - 1 - int(np.cumsum(after[::-1]).argmax())])


def _change(blocks: Column) -> float:
    """By how much the median of the newest blocks differs from that of those before."""
    return float(median(blocks[BEFORE:]) - median(blocks[:BEFORE]))
