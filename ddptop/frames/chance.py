"""Whether two runs' step times differ by more than chance: medians of time series whose neighbours are alike.

Steps are autocorrelated: a busy machine stays busy for some steps. Steps drawn one by one would make every
interval too narrow, so blocks of consecutive steps are drawn (circular bootstrap, Politis & Romano 1992).
The length of a block follows from the autocorrelation of the series itself (Politis & White 2004, with the
correction of Patton, Politis & White 2009). What a step contributes to a median is the side on which it lies,
so the autocorrelation is that of the sides; one outlier counts as one step. The series of 100 to some
thousand steps have few independent blocks: their number gives the degrees of freedom of Student's t.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ddptop.frames.columns import Column

REPLICATES = 200
"""They give the standard error of the median within 5 %."""

CHUNK = 1 << 18
"""Steps that are drawn at a time: 2 MB."""

LEAST_STEPS = 16
"""Two blocks of 8 steps, the least length: fewer say nothing of how steps vary."""

LEAST_BLOCK = 8

SHORT = 512
"""Most values whose covariances are summed one by one, without `numpy.fft`, which takes 12 ms to import."""

LONGER = 2.0
"""Blocks longer than the length of least squared error, which takes the error for too small: where neighbours
are very alike (0.95), 7 of 100 pairs of equal runs differed instead of 2.5. Measured by
`python -m tests.benchmarks.bench_check`."""

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
    series = [np.ascontiguousarray(one[np.isfinite(one)], np.float64) for one in (first, second)]
    if min(map(len, series)) < LEAST_STEPS:
        return None
    (one, error, free), (two, error_two, free_two) = (_median(values.tobytes()) for values in series)
    both = math.hypot(error, error_two)
    if not both:
        return Difference(one, two - one, two - one, two - one)
    # Welch and Satterthwaite: degrees of freedom of a difference.
    degrees = both**4 / (error**4 / free + error_two**4 / free_two)
    apart = student_quantile(0.5 + confidence / 2, degrees) * both
    return Difference(one, two - one, two - one - apart, two - one + apart)


def interval(values: Column, *, confidence: float = CONFIDENCE) -> Difference | None:
    """The median of one time series with its interval, as a difference from 0; None: too few steps."""
    known = np.ascontiguousarray(values[np.isfinite(values)], np.float64)
    if len(known) < LEAST_STEPS:
        return None
    middle, error, free = _median(known.tobytes())
    apart = student_quantile(0.5 + confidence / 2, free) * error
    return Difference(0.0, middle, middle - apart, middle + apart)


@lru_cache(maxsize=4)
def _median(series: bytes) -> tuple[float, float, float]:
    """Median of a series (bytes of float64), its standard error, and the degrees of freedom of that.

    The same for the same series; a screen that is drawn again does not compute it again.
    """
    values = np.frombuffer(series)
    n = len(values)
    middle = float(np.median(values))
    length = block_length(np.sign(values - middle))
    rng, step = np.random.default_rng(0), np.arange(length)
    at_once = max(1, CHUNK // n)
    medians = []
    for first in range(0, REPLICATES, at_once):
        begins = rng.integers(0, n, (min(at_once, REPLICATES - first), -(-n // length), 1))
        drawn = values[((begins + step) % n).reshape(len(begins), -1)[:, :n]]
        medians.append(np.median(drawn, axis=1, overwrite_input=True))
    return middle, float(np.concatenate(medians).std()), max(1.0, n / length - 1)


def block_length(values: Column) -> int:
    """Length of a block for the circular bootstrap of a series (n,): LEAST_BLOCK to n / 4.

    Patton, Politis & White, Econometric Reviews 28 (2009): (2 G^2 / D)^(1/3) n^(1/3), D = 4/3 g(0)^2, where G
    and g(0) sum the autocovariances up to twice the lag behind which none of the next ones is significant.
    """
    n = len(values)
    apart = values - values.mean()
    most = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    if n <= SHORT:
        covariance = np.correlate(apart, apart, "full")[n - 1 : n + 2 * most] / n
    else:
        size = 1 << (2 * n - 1).bit_length()
        spectrum = np.fft.rfft(apart, size)
        covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[: 2 * most + 1] / n
    least = LEAST_BLOCK
    if covariance[0] > 0:
        near = np.abs(covariance[1 : most + 1] / covariance[0]) < 2 * math.sqrt(math.log10(n) / n)
        run = max(5, math.ceil(math.sqrt(math.log10(n))))
        quiet = np.flatnonzero(np.convolve(near, np.ones(run), "valid") == run)
        lag = int(quiet[0]) if len(quiet) else int(np.flatnonzero(~near)[-1]) + 1
        lags = np.arange(1, min(2 * max(1, lag), len(covariance) - 1) + 1)
        weight = np.minimum(1.0, 2 * (1 - lags / (lags[-1] + 1)))
        part = 2 * weight * covariance[lags]
        whole = covariance[0] + part.sum()
        if whole > 0:
            length = LONGER * (2 * (part * lags).sum() ** 2 / (4 / 3 * whole**2)) ** (1 / 3) * n ** (1 / 3)
            least = max(least, math.ceil(length))
    return min(least, max(1, n // 4))


def student_quantile(share: float, degrees: float) -> float:
    """Quantile of Student's t, by Cornish and Fisher's expansion: within 1 % from 4 degrees of freedom on.

    Abramowitz & Stegun 26.7.5.
    """
    from statistics import NormalDist

    z, v = NormalDist().inv_cdf(share), max(degrees, 2.0)
    z2 = z * z
    terms = (
        (z2 + 1) / 4,
        ((5 * z2 + 16) * z2 + 3) / 96,
        (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384,
    )
    return z * (1 + sum(term / v ** (i + 1) for i, term in enumerate(terms)))
