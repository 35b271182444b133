"""What happens in the simulated run: mostly nothing, then a straggler, a NaN, a failure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ddptop.protocol.messages import Bucket, Flag, OwnTime, StepRow
from ddptop.sources.simulation.hosts import RANKS_PER_NODE

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Times: TypeAlias = NDArray[np.int64]

CYCLE_S = 120.0
"""After this long, in steps of an undisturbed run, the story begins again."""

STRAGGLER = (0.08, 0.25)
NAN = (0.52, 0.54)
CUT = 0.62
DEATH = 0.75
"""Parts of the cycle: the data of one rank come late, one rank's loss is NaN, one of at least four hosts is
silent for some seconds, a rank fails."""

EVEN_STEPS = 60
"""Steps after the slow part of the story: by then no rank is flagged any more."""

LATE = 0.35
"""How late the straggler is, as a part of the step."""

DATA, FORWARD, BACKWARD, OPTIMIZER = 0.05, 0.27, 0.52, 0.10
"""Parts of a step in which no rank waits; the rest is spent between them."""

BUCKET_BYTES = (8_392_704, 25_165_824, 25_165_824, 26_214_400)
TRANSFER = 0.02
"""Part of a step that the transfer of one bucket takes."""

JITTER = 0.004
"""Standard deviation of a rank's phases, as a part of the step."""


def usual_rate(ranks: int) -> float:
    """Steps a second: large groups train large models, and all of them are made up by this one process."""
    return 20.0 if ranks <= 64 else 5.0 if ranks <= 512 else 2.0


@dataclass(frozen=True)
class Story:
    """A run of `world` ranks at `rate` steps a second while undisturbed. The same every time."""

    world: int
    rate: float
    detail_every: int = 1

    @cached_property
    def step_us(self) -> int:
        """An undisturbed step."""
        return int(1e6 / self.rate)

    @cached_property
    def cycle_steps(self) -> int:
        """Steps of the story."""
        return max(40, int(CYCLE_S * self.rate))

    @property
    def steps_of_lesson(self) -> int:
        """Steps until the straggler has been flagged and is even again."""
        return int(STRAGGLER[1] * self.cycle_steps) + EVEN_STEPS

    @property
    def slow_rank(self) -> int:
        """The rank that is late temporarily."""
        return self.world // 3

    @property
    def nan_rank(self) -> int:
        """The rank whose loss is NaN temporarily."""
        return self.world // 2

    @property
    def failing_rank(self) -> int:
        """The rank that fails; a group of one never does."""
        return self.world - 1

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """The gradient buckets of every rank."""
        return tuple(
            Bucket(0, index, size, size, 12, "float32", "") for index, size in enumerate(BUCKET_BYTES)
        )

    @property
    def cut_host(self) -> int:
        """Number of the host that is silent for some time; -1: there are too few."""
        hosts = -(-self.world // RANKS_PER_NODE)
        return hosts // 2 if hosts >= 4 else -1

    def is_cut_in(self, step: int) -> bool:
        """Whether a host becomes silent after this step."""
        return self.cut_host >= 0 and step == int(CUT * self.cycle_steps)

    def is_last_of(self, step: int) -> bool:
        """Whether a rank fails after this step."""
        return self.world > 1 and step == int(DEATH * self.cycle_steps)

    def late_us(self, step: int) -> int:
        """How late the straggler comes in a step."""
        part = (step % self.cycle_steps) / self.cycle_steps
        late = self.world > 1 and STRAGGLER[0] <= part < STRAGGLER[1]
        return int(LATE * self.step_us) if late else 0

    def make_rows(self, step: int, begin_us: int) -> tuple[int, list[StepRow]]:
        """Length of a step in microseconds and the row of every rank; it begins `begin_us` after the base."""
        unit, late = self.step_us, self.late_us(step)
        # By the number of the step: the same run every time, whatever was asked for before.
        noise = np.abs(np.random.default_rng(step).normal(0.0, JITTER, (2, self.world)))
        data = ((DATA + noise[0]) * unit).astype(np.int64)
        data[self.slow_rank] += late
        forward_at = data + unit // 200
        forward = ((FORWARD + noise[1]) * unit).astype(np.int64)
        backward_at = forward_at + forward + unit // 200
        cells, backward_end = self._time_collectives(backward_at)
        backward = backward_end - backward_at
        optimizer_at = backward_end + unit // 100
        optimizer = int(OPTIMIZER * unit)
        wall = int(optimizer_at.max()) + optimizer + unit // 100
        exposed = backward_end - cells[:, -2]  # since the last bucket was ready
        detail = step % self.detail_every == 0
        flags = int(Flag.DETAIL) if detail else 0
        whole = cells.tolist() if detail else [()] * self.world
        columns = zip(
            data.tolist(), forward.tolist(), backward.tolist(), forward_at.tolist(), backward_at.tolist(),
            optimizer_at.tolist(), self._make_losses(step), whole, exposed.tolist(), strict=True,
        )  # fmt: skip
        between, waited = (unit // 200, unit // 200, unit // 100), (0, 0, 0, 0, 0)
        return wall, [
            StepRow(
                *(begin_us, wall, d, f, b, optimizer, fa, ba, oa, 1, flags, 30, loss, tuple(own_ms)),
                OwnTime(e, *between, *waited),
            )
            for d, f, b, fa, ba, oa, loss, own_ms, e in columns
        ]

    def _time_collectives(self, backward_at: Times) -> tuple[Times, Times]:
        """(ranks, 3 x buckets) cells, and (ranks,) ends of backward: one stream, all wait for the last."""
        count = len(BUCKET_BYTES)
        part = BACKWARD * self.step_us / count
        ready = backward_at[:, None] + (part * (1 + np.arange(count))).astype(np.int64)
        transfer = int(TRANSFER * self.step_us)
        cells: Times = np.empty((self.world, count, 3), np.int64)
        end = 0
        for bucket in range(count):
            # One stream: a bucket waits for the one before it, and for its last rank.
            end = max(end, int(ready[:, bucket].max())) + transfer
            cells[:, bucket] = np.stack(
                [np.full(self.world, bucket), ready[:, bucket], end - ready[:, bucket]], axis=1
            )
        return cells.reshape(self.world, -1), np.full(self.world, end + self.step_us // 200)

    def _make_losses(self, step: int) -> list[float]:
        mean = 0.35 + 2.2 * math.exp(-step / (0.4 * self.cycle_steps)) + 0.01 * math.sin(step / 7)
        losses = mean + 0.01 * np.sin(np.arange(self.world) * 1.7 + step)
        part = (step % self.cycle_steps) / self.cycle_steps
        if NAN[0] <= part < NAN[1]:
            losses[self.nan_rank] = math.nan
        values: list[float] = losses.tolist()
        return values
