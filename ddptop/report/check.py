"""Whether a run is worse than another one, or than limits: the figures of `ddptop check`.

The figures of single steps are compared by the rule of `ddptop.frames.chance`. At its confidence, the step
time is called longer in at most 5 % of equal runs, also where neighbouring steps are very alike. The other
figures together have 5 % again (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from ddptop.frames.chance import CERTAIN, LEAST_STEPS, difference, interval
from ddptop.report.build import read_report_with_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.chance import Difference
    from ddptop.frames.columns import Column
    from ddptop.recording.reader import Recording
    from ddptop.report.content import Report

Outcome: TypeAlias = Literal["within", "regression", "unknown"]

WARM_UP = 20
"""First steps of a run that are not compared, at most a tenth: caches, compilation, new workers."""

STEP_CONFIDENCE = 0.97
"""Confidence of the interval of the step time, two-sided. With 0.95 up to 6.5 % of 200 pairs of equal runs
were called slower instead of 2.5 %, where neighbours correlate by 0.9 or more: their blocks are few and the
error of the median is taken for too small. Measured by `python -m tests.benchmarks.bench_check`."""


class CheckedFigure(NamedTuple):
    """A figure that is checked, larger is worse."""

    name: str
    unit: str
    words: str
    by_step: bool = False


FIGURES = (
    CheckedFigure("step_ms", "ms", "step time", True),
    CheckedFigure("exposed_comm_ms", "ms", "exposed communication", True),
    CheckedFigure("exposed_wait_ms", "ms", "waiting for other ranks", True),
    CheckedFigure("lost_pct", "%", "lost to waiting for other ranks"),
    CheckedFigure("straggler_pct", "%", "cost of stragglers"),
    CheckedFigure("stalls", "", "stalls"),
    CheckedFigure("stalled_s", "s", "time in stalls"),
    CheckedFigure("own_cost_pct", "%", "cost of ddptop itself"),
)
"""Figures of a check. Those of steps are medians over the steps. A limit has one of these names."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run. `values`: those over the whole run, None: unknown."""

    name: str
    world_size: int
    step: Column
    """Numbers of the steps read, in order."""
    series: Mapping[str, Column]
    """By name, the figures by step; NaN: unknown."""
    values: Mapping[str, float | None]
    lost_error_pct: float | None = None
    """How far `lost_pct` may be off: half of its interval; None: it has none."""


@dataclass(frozen=True, slots=True)
class Result:
    """One figure beside its reference, in the figure's unit."""

    figure: str
    unit: str
    words: str
    against: Literal["base", "limit"]
    outcome: Outcome
    new: float | None
    reference: float | None
    """Value of the base, or the limit."""
    more: float | None = None
    """New less reference, and the interval of that; None: unknown, or without an interval."""
    low: float | None = None
    high: float | None = None
    reason: str = ""
    """Why the outcome is unknown."""
    decides: bool = True
    """The check as a whole cannot tell if this figure cannot."""


def measure_recording(recording: Recording, name: str) -> Measured:
    """Read a recording. Raises what `ddptop.report.build.read_report` raises."""
    report, pieces = read_report_with_steps(recording)

    def join_pieces(field: str) -> Column:
        columns = [getattr(piece, field) for piece in pieces]
        return np.concatenate(columns).astype(np.float64) if columns else np.empty(0)

    wait = join_pieces("wait_ms")
    series = {
        "step_ms": join_pieces("step_ms"),
        "exposed_comm_ms": wait + join_pieces("transfer_ms"),
        "exposed_wait_ms": wait,
    }
    world_size = report.run.world_size
    return Measured(
        name, world_size, join_pieces("step"), series, figures_of_report(report), _lost_error_pct(report)
    )


def figures_of_report(report: Report) -> Mapping[str, float | None]:
    """The checked figures of a whole run, by name."""
    return {
        "lost_pct": None if report.ledger is None else report.ledger.run.lost_pct,
        "straggler_pct": report.cost.flagged_pct,
        "stalls": float(len(report.stalls)),
        "stalled_s": report.cost.stalled_s,
        "own_cost_pct": report.overhead.taken_pct,
    }


def _lost_error_pct(report: Report) -> float | None:
    cost = None if report.ledger is None else report.ledger.run
    if cost is None or cost.low_pct is None or cost.high_pct is None:
        return None
    return (cost.high_pct - cost.low_pct) / 2


def against_base(new: Measured, base: Measured, tolerance_pct: float) -> list[Result]:
    """Each figure beside that of the base.

    A regression is a median that is larger by more than chance, and by at least `tolerance_pct` of the base's
    step; a straggler or ddptop itself that costs at least so many percentage points more; any stall more.
    """
    pairs = {}
    until = min((float(run.step.max()) for run in (new, base) if len(run.step)), default=0.0)
    for figure in FIGURES:
        if figure.by_step:
            pairs[figure.name] = tuple(_comparable_steps(run, figure.name, until) for run in (base, new))
    n_compared = sum(all(np.isfinite(values).any() for values in pair) for pair in pairs.values())
    differences = {
        name: difference(base_values, new_values, confidence=_confidence_of(name, n_compared))
        for name, (base_values, new_values) in pairs.items()
    }
    of_step = differences["step_ms"]
    least_ms = 0.0 if of_step is None else tolerance_pct / 100 * of_step.first
    results = []
    for figure in FIGURES:
        if figure.by_step:
            steps = min(int(np.isfinite(values).sum()) for values in pairs[figure.name])
            results.append(_check_by_step(figure, differences[figure.name], least_ms, steps))
        if figure.by_step or figure.name == "stalled_s":  # one stall is never exactly as long as another
            continue
        base_value, new_value = base.values[figure.name], new.values[figure.name]
        least = tolerance_pct if figure.unit == "%" else 0.0
        if figure.name == "lost_pct":  # what ranks wait varies from run to run
            least += math.hypot(base.lost_error_pct or 0.0, new.lost_error_pct or 0.0)
        if figure.name == "own_cost_pct" and of_step is not None and base_value is not None:
            # The same microseconds are a larger share of a step that has become shorter.
            least += base_value * max(0.0, of_step.first / (of_step.first + of_step.more) - 1)
        results.append(_check_total(figure, "base", new_value, base_value, least))
    return results


def against_limits(new: Measured, limits: Mapping[str, float]) -> list[Result]:
    """Each limited figure beside its limit, which it may not exceed; figures by step by more than chance."""
    by_step = sum(figure.by_step and figure.name in limits for figure in FIGURES)
    results = []
    for figure in FIGURES:
        if figure.name not in limits:
            continue
        limit = limits[figure.name]
        if not figure.by_step:
            results.append(_check_total(figure, "limit", new.values[figure.name], limit, 0.0))
            continue
        estimate = interval(
            _comparable_steps(new, figure.name, np.inf), confidence=_confidence_of(figure.name, by_step)
        )
        if estimate is None:
            results.append(_unknown_result(figure, "limit", None, limit, "too few steps have it"))
            continue
        excess, low, high = (value - limit for value in estimate[1:])
        outcome: Outcome = "within" if excess <= 0 else "regression" if low > 0 else "unknown"
        why = "" if outcome != "unknown" else "it is over the limit, but by no more than chance"
        results.append(Result(*figure[:3], "limit", outcome, estimate.more, limit, excess, low, high, why))
    return results


def overall_outcome(results: Sequence[Result]) -> Outcome:
    """The outcome of the check as a whole."""
    if any(result.outcome == "regression" for result in results):
        return "regression"
    return (
        "unknown" if any(result.outcome == "unknown" and result.decides for result in results) else "within"
    )


def _confidence_of(name: str, count: int) -> float:
    """The confidence of a figure's interval, where `count` figures by step are compared."""
    return STEP_CONFIDENCE if name == "step_ms" else 1 - (1 - STEP_CONFIDENCE) / max(1, count - 1)


def _comparable_steps(run: Measured, name: str, until: float) -> Column:
    """The figures of the steps after the warm-up, up to the step `until`."""
    values = run.series[name][run.step <= until]
    return values[min(WARM_UP, len(values) // 10) :]


def steps_needed(found: Difference, least_ms: float, steps: int) -> int:
    """About how many steps of each run decide what `steps` do not, two digits of it, rounded up.

    An interval narrows with the square root of the steps. It decides where it excludes no difference at all,
    or one of CERTAIN times the tolerance `least_ms`, whichever takes fewer; `found.more` is taken as true.
    """
    enough = max(found.more if found.more >= least_ms else 0.0, CERTAIN * least_ms - found.more)
    count = steps * ((found.high - found.low) / 2 / enough) ** 2
    unit: float = 10.0 ** max(0, int(math.log10(count)) - 1)
    return int(math.ceil(count / unit) * unit)


def _check_by_step(figure: CheckedFigure, found: Difference | None, least_ms: float, steps: int) -> Result:
    if found is None:
        why = f"too few steps have it in both runs, {steps} after the warm-up; {LEAST_STEPS} are needed"
        return _unknown_result(figure, "base", None, None, why)
    outcome: Outcome = "within"
    why = ""
    if found.more > 0 and found.is_beyond(least_ms):
        outcome = "regression"
    elif found.high > CERTAIN * least_ms:
        outcome, why = "unknown", "the interval is too wide"
        if least_ms > 0:
            needed = steps_needed(found, least_ms, steps)
            why += f" with {steps:,} steps: compare some {needed:,} of each run, or on a quieter machine"
    new = found.first + found.more
    return Result(*figure[:3], "base", outcome, new, found.first, *found[1:], why, figure.name == "step_ms")


def _check_total(
    figure: CheckedFigure,
    against: Literal["base", "limit"],
    new: float | None,
    reference: float | None,
    least: float,
) -> Result:
    if new is None or reference is None:
        return _unknown_result(figure, against, new, reference, "it was not measured")
    increase = new - reference
    worse = increase > 0 and increase >= least
    return Result(*figure[:3], against, "regression" if worse else "within", new, reference, increase)


def _unknown_result(
    figure: CheckedFigure,
    against: Literal["base", "limit"],
    new: float | None,
    reference: float | None,
    why: str,
) -> Result:
    decides = against == "limit" or figure.name == "step_ms"
    return Result(*figure[:3], against, "unknown", new, reference, reason=why, decides=decides)
