"""What ddptop costs the ranks, as a frame has it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddptop.frames.numbers import RATIO, fixed, percent

RECORDED_TOGETHER = 16
"""Steps of a block, where some blocks are recorded and others are not: the recorder's `BLOCK`."""

WIDE_INTERVAL_PCT = 20.0
"""A wider interval, in percent of the step, says nothing about a cost of about 1 %."""

NARROW_INTERVAL_PCT = 2.0
"""The measured cost takes the place of the counted one once its interval is at most so wide: a wider one says
less than what is counted, which is near a budget of 1 %."""


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """What ddptop takes, in percent of the step without it: by how much a step is longer than in shadow
    blocks, and what steps in these pay as well."""

    pct: float
    low: float
    """Interval of 95 %."""
    high: float
    blocks: int

    def add_every_step(self, pct: float) -> MeasuredCost:
        """With what steps pay inside of shadow blocks and outside, of which these show nothing."""
        return replace(self, pct=self.pct + pct, low=self.low + pct, high=self.high + pct)

    @property
    def is_measurable(self) -> bool:
        """Whether the interval is narrow enough to tell the reader anything."""
        return self.high - self.low <= WIDE_INTERVAL_PCT

    @property
    def sentence(self) -> str:
        """`ddptop takes 1.8% of a step (95%: 1.2 to 2.4%; 24 shadow blocks)`; where the interval holds 0,
        that no cost is seen."""
        if not self.is_measurable:
            return f"what ddptop costs is not measurable yet ({self.blocks} shadow blocks)"
        digits = RATIO if abs(self.pct) < 1 else 1
        bounds = f"95%: {fixed(self.low, digits)} to {fixed(self.high, digits)}%; {self.blocks} shadow blocks"
        if self.low <= 0:
            return f"no cost of ddptop is seen: {fixed(self.pct, digits)}% ({bounds})"
        return f"ddptop takes {fixed(self.pct, digits)}% of a step ({bounds})"


@dataclass(frozen=True, slots=True)
class Overhead:
    """What ddptop itself costs the ranks, measured in them; the figures are those of the worst rank."""

    budget_pct: float | None
    measured_pct: float | None
    us_per_step: float | None
    detail_every: int | None
    """None: not known, or no step has bucket detail any more."""
    failures: int
    detail_reason: str | None = None
    """Why not every step has bucket detail; None: every step has it, or the reason is unknown."""
    measured: MeasuredCost | None = None
    """None: too few shadow blocks so far, or none (`--ddptop-shadow off`, an earlier version)."""
    collector_pct: float | None = None
    """CPU time of the collector, or of the agent that takes most, in percent of one core; None: not known."""

    recorded_every: int = 1
    """One in so many steps is recorded, to keep the budget; of the others only the length is known."""
    every_step_pct: float | None = None
    """What every step pays, also in a shadow block, in percent: part of `measured`. None: not known."""

    @property
    def phrase(self) -> str:
        """What is measured, with its interval, once it is known, and before that what is counted:
        `0.6% (0.3 to 1.2)`, `0.9%`."""
        measured = self._known_measured
        if measured is None:
            return percent(self.measured_pct)
        low, high = (fixed(bound, 1) for bound in (measured.low, measured.high))
        return f"{fixed(measured.pct, 1)}% ({low} to {high})"

    @property
    def is_measured(self) -> bool:
        """Whether what is measured is known well enough to take the place of what is counted."""
        return self._known_measured is not None

    @property
    def taken_pct(self) -> float | None:
        """What `phrase` says, without its interval."""
        measured = self._known_measured
        return self.measured_pct if measured is None else measured.pct

    @property
    def is_over_budget(self) -> bool:
        """Whether what `phrase` says, or all of its interval, is more than the budget."""
        return self.exceeds_budget()

    def exceeds_budget(self, factor: float = 1.0) -> bool:
        """As `is_over_budget`, for a budget so many times as large."""
        measured = self._known_measured
        taken_pct = self.measured_pct if measured is None else measured.low
        return taken_pct is not None and self.budget_pct is not None and taken_pct > factor * self.budget_pct

    @property
    def _known_measured(self) -> MeasuredCost | None:
        measured = self.measured
        is_known = measured is not None and measured.high - measured.low <= NARROW_INTERVAL_PCT
        return measured if is_known else None

    @property
    def detail_distance(self) -> int | None:
        """Steps from one with bucket detail to the next; None: not known, or none has it any more."""
        every = self.detail_every
        return None if every is None else max(every, min(every, RECORDED_TOGETHER) * self.recorded_every)

    @property
    def sampling_sentence(self) -> str:
        """`1 in 8 steps recorded`, and how much that takes if it is more than the budget; empty: all are."""
        if self.recorded_every <= 1:
            return ""
        text = f"1 in {self.recorded_every:,} steps recorded"
        us, pct, budget_pct = self.us_per_step, self.measured_pct, self.budget_pct
        if us is None or pct is None or budget_pct is None or pct <= budget_pct:
            return text
        return f"{text}; with {fixed(us, 0)} us a step that is over the budget"

    @property
    def detail_sentence(self) -> str | None:
        """The reason as a sentence: `bucket detail in 1 of 32 steps: more would exceed the 1% budget`."""
        if self.detail_reason is None:
            return None
        distance = self.detail_distance
        often = "no bucket detail" if distance is None else f"bucket detail in 1 of {distance:,} steps"
        return f"{often}: {self.detail_reason}"
