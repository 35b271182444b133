"""Whether two runs' step times differ by more than chance: medians of time series whose neighbours are alike
(`ddptop/frames/statistics.py` has their errors)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.statistics import estimate_median, student_quantile

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.statistics import MedianEstimate

LEAST_STEPS = 16
"""Two blocks of 8 steps, the least length: fewer say nothing of how steps vary."""

CONFIDENCE = 0.95

SAME = 0.01
"""A difference below this share is not worth a colour or a sentence."""


CERTAIN = 5.0
"""Times what is worth a sentence: where a difference of so much is not excluded, nothing can be told."""


class Difference(NamedTuple):
    """Median of the second series less that of the first, with its interval, in the unit of the series."""

    first: float
    more: float
    low: float
    high: float

    def is_beyond(self, least: float) -> bool:
        """Whether it is more than chance, in either direction, and at least `least`."""
        return not self.low <= 0 <= self.high and abs(self.more) >= least

    @property
    def beyond_chance(self) -> bool:
        """Whether it is more than chance and at least a hundredth of the first median."""
        return self.is_beyond(SAME * abs(self.first))

    @property
    def may_differ(self) -> bool:
        """Whether a difference is possible that would matter, in either direction."""
        return max(-self.low, self.high) > CERTAIN * SAME * abs(self.first)


def difference(first: Column, second: Column, *, confidence: float = CONFIDENCE) -> Difference | None:
    """How two time series (steps of two runs, in order, NaN: unknown) differ; None: too few steps.

    `confidence`: of the interval, two-sided.
    """
    series = [np.ascontiguousarray(run_ms[np.isfinite(run_ms)], np.float64) for run_ms in (first, second)]
    if min(map(len, series)) < LEAST_STEPS:
        return None
    (middle, error, _, free), (middle_two, error_two, _, free_two) = (
        _estimate_chance(values.tobytes()) for values in series
    )
    error_of_both = math.hypot(error, error_two)
    difference_ms = middle_two - middle
    if not error_of_both:
        return Difference(middle, difference_ms, difference_ms, difference_ms)
    # Welch and Satterthwaite: degrees of freedom of a difference.
    degrees = error_of_both**4 / (error**4 / free + error_two**4 / free_two)
    apart = student_quantile(0.5 + confidence / 2, degrees) * error_of_both
    return Difference(middle, difference_ms, difference_ms - apart, difference_ms + apart)


def interval(values: Column, *, confidence: float = CONFIDENCE) -> Difference | None:
    """The median of one time series with its interval, as a difference from 0; None: too few steps."""
    finite = np.ascontiguousarray(values[np.isfinite(values)], np.float64)
    if len(finite) < LEAST_STEPS:
        return None
    middle, error, _, degrees = _estimate_chance(finite.tobytes())
    apart = student_quantile(0.5 + confidence / 2, degrees) * error
    return Difference(0.0, middle, middle - apart, middle + apart)


@lru_cache(maxsize=4)
def _estimate_chance(series: bytes) -> MedianEstimate:
    """The median of a series (bytes of float64); a screen that is drawn again does not compute it again."""
    return estimate_median(np.frombuffer(series))
