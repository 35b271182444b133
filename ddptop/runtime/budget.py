"""The recorder's own cost, measured in the process itself, and the sampling that keeps it in its budget."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from ddptop.protocol.messages import Flag
from ddptop.runtime.recorder import StepRecord

MAX_EVERY = 4096
"""Bucket detail is taken at least this often: at 300 steps/s still every 14 s."""

SETTLE_STEPS = 16
"""Steps in full detail before sampling begins: they hold the first layout and its rebuild."""

MEMORY = 0.8
"""Weight of what was known against a new batch: a change of load is followed within some ten batches."""

MAX_LOSS_EVERY = 8
"""Where the phases alone are over budget (steps of a few ms), the loss is read at least this often."""

LOSS_NS = 12_000
"""Reading the loss in a training loop of 3 ms steps, where its code is cold: measured 11 to 13 us."""

COST_STEPS = 256
"""The cost that is told is the mean over these: it holds several steps in which replicas are checked."""

WRAPPER_NS = 2_000
"""Calling into and out of our eight wrappers in one step, which no clock inside them can see: a Python
call costs 0.1 to 0.3 us in a training loop."""


class Budget:
    """Chooses N so that bucket detail every N-th step costs at most the budgeted share of step time.

    N = ceil(cost of detail / (budget x step - cost of everything else)), rounded up to a power of two, so
    that ranks with different N still share detailed steps.
    """

    def __init__(self, budget_pct: float, *, full_detail: bool = False) -> None:
        self.budget_pct = budget_pct
        self.every = 1
        """This rank's own wish; a power of two."""
        self.loss_every = 1
        """How often the loss is read; a power of two."""
        self.tight = False
        """Whether even without bucket detail the budget is exceeded."""
        self.cost_us = 0.0
        """Per step: training threads and publisher CPU."""
        self.cost_pct = 0.0
        """The same as a share of step time."""
        self.step_ns = 0.0
        """The median step; 0 while not known."""
        self._full = full_detail
        self._steps = 0
        self._costs: deque[int] = deque(maxlen=COST_STEPS)
        self._plain = _Mean()
        self._detail = _Mean()
        self._step = _Mean()
        self._publisher = _Mean()

    @classmethod
    def from_environment(cls) -> Budget:
        """DDPTOP_BUDGET (percent) and DDPTOP_DETAIL (`full` or `auto`), as the launcher has set them."""
        try:
            pct = float(os.environ.get("DDPTOP_BUDGET", ""))
        except ValueError:
            pct = 1.0
        return cls(pct, full_detail=os.environ.get("DDPTOP_DETAIL") == "full")

    def account(self, records: Sequence[StepRecord], publisher_ns: int) -> None:
        """Take in a batch of finished steps and the publisher's CPU time since the last batch, in ns."""
        if not records:
            return
        detailed = [r.cost + WRAPPER_NS for r in records if r.flags & Flag.DETAIL]
        plain = [r.cost + WRAPPER_NS for r in records if not r.flags & Flag.DETAIL]
        count = len(records)
        self._detail.add(detailed)
        self._plain.add(plain)
        # The median: an evaluation between two steps is no reason to take more of the others.
        self._step.add([sorted(record.end - record.begin for record in records)[count // 2]])
        self.step_ns = self._step.value
        self._publisher.add([publisher_ns / count])
        self._steps += count
        self._costs.extend(detailed + plain)
        mean_ns = sum(self._costs) / len(self._costs) + self._publisher.value
        self.cost_us = mean_ns / 1e3
        self.cost_pct = 100.0 * mean_ns / self._step.value if self._step.value else 0.0
        if not self._full and self._steps >= SETTLE_STEPS:
            self._choose()

    def _choose(self) -> None:
        plain = self._plain.value if self._plain.known else WRAPPER_NS
        extra = max(0.0, self._detail.value - plain)
        base = plain + self._publisher.value
        budget = self.budget_pct / 100.0 * self._step.value
        self.tight = base > budget
        if self.tight and self.loss_every < MAX_LOSS_EVERY:
            self.loss_every *= 2
        elif self.loss_every > 1 and base + LOSS_NS < budget / 2:
            self.loss_every //= 2
        room = budget - base
        need = extra / room if room > 0 else MAX_EVERY
        while self.every < need and self.every < MAX_EVERY:
            self.every *= 2
        # Back to more detail only with a margin of two, or N would swing from batch to batch.
        while self.every > 1 and need * 2 <= self.every / 2:
            self.every //= 2


class _Mean:
    """A moving mean that forgets."""

    __slots__ = ("known", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.known = False

    def add(self, values: Sequence[float]) -> None:
        """Take in the mean of a batch; an empty one changes nothing."""
        if not values:
            return
        mean = sum(values) / len(values)
        self.value = self.value * MEMORY + mean * (1.0 - MEMORY) if self.known else mean
        self.known = True
