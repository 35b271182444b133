"""Medians, quantiles and the bootstrap of the median: what analysis, reports and drawing share.

There are two quantiles: `quantile` is an element, for the rules of the analysis, and `interpolated_quantile`
lies between two elements, for a figure that is shown. A training process loads no numpy for ddptop: what
it needs is in `ddptop/training/medians.py`.

The error of a median is that of a time series. Steps are autocorrelated: a busy machine stays busy for some
steps. Steps drawn one by one would make every interval too narrow, so blocks of consecutive steps are drawn
(circular bootstrap, Politis & Romano 1992). The length of a block follows from the autocorrelation of the
series itself (Politis & White 2004, with the correction of Patton, Politis & White 2009). What a step
contributes to a median is the side on which it lies, so the autocorrelation is that of the sides; one outlier
counts as one step. The series of 100 to some thousand steps have few independent blocks: their number gives
the degrees of freedom of Student's t.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.frames.columns import Column, Indices


LONG = 512
"""Values of a row from which on it is partitioned in half the time of a sort."""


def median(values: Column) -> Column:
    """Median along the last axis without NaN; NaN where nothing is left."""
    ordered, size = np.array(values, order="C"), values.shape[-1]
    if size >= LONG and not np.isnan(ordered).any():
        ordered.partition(((size - 1) // 2, size // 2), axis=-1)
    else:
        sort_values(ordered)
    return median_of_sorted(ordered)


FEW = 32
"""Values of a row up to which `reduce_rows` copies them."""


def reduce_rows(ufunc: np.ufunc, rows: NDArray[Any]) -> NDArray[Any]:
    """`ufunc.reduce` along the last axis, for a ufunc of which the order of values does not matter.

    numpy takes 10 to 40 ns for each row, however short: short rows are put side by side first."""
    if rows.shape[-1] > FEW:
        return np.asarray(ufunc.reduce(rows, axis=-1))
    columns = np.ascontiguousarray(rows.transpose(-1, *range(rows.ndim - 1)))
    return np.asarray(ufunc.reduce(columns, axis=0))


def sort_values(values: Column) -> None:
    """Sort along the last axis, NaN to the end. float32 without a sign have the order of their bits, as which
    they are sorted in two thirds of the time."""
    bits = values.view(np.int32) if values.dtype == np.float32 else values
    (bits if bits is not values and bits.min(initial=0) >= 0 else values).sort(axis=-1)


def median_of_sorted(ordered: Column) -> Column:
    """Median along the last axis of values in order, NaN at the end; in order at the middle is enough where
    none is NaN."""
    size = ordered.shape[-1]
    if not size:
        return np.full(ordered.shape[:-1], np.nan)
    if not np.isnan(ordered[..., -1]).any():
        return np.asarray((ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2, dtype=np.float64)
    n_known = size - np.isnan(ordered).sum(axis=-1)
    rows, counts = ordered.reshape(-1, size), n_known.reshape(-1)
    low = element_at(rows, np.maximum(counts - 1, 0) // 2)
    high = element_at(rows, np.minimum(counts // 2, size - 1))
    return np.asarray(np.where(counts > 0, (low + high) / 2, np.nan).reshape(ordered.shape[:-1]))


def interpolated_quantile(values: Column, share: float) -> float:
    """As `numpy.quantile` of (n,) values without NaN, n > 0, which imports masked arrays first: 20 ms."""
    ordered, place = np.sort(values), (len(values) - 1) * share
    low = int(place)
    below, above = float(ordered[low]), float(ordered[min(low + 1, len(values) - 1)])
    part = place - low
    return below + (above - below) * part if part < 0.5 else above - (above - below) * (1 - part)


def median_of_others(values: Column) -> Column:
    """For each element of the last axis the median of all the *others*; NaN elements are left out.

    The median of all elements would show only half of the difference between two ranks.
    """
    if values.shape[-1] == 2:  # the other one
        return np.where(np.isnan(values), np.nan, values[..., ::-1]).astype(values.dtype)
    top = values.shape[-1] - 1
    places = (top - 1) // 2, top // 2
    if top >= LONG and not np.isnan(values).any():
        ordered = np.partition(values, [*range(places[0], places[1] + 2)], axis=-1)
    else:
        ordered = np.sort(values, axis=-1)  # sorts NaN to the end
        if top < 1 or np.isnan(ordered[..., -1]).any():
            return _median_of_known_others(values, ordered)
    pairs = [
        (ordered[..., place : place + 1], ordered[..., place + 1 : place + 2]) for place in sorted({*places})
    ]
    middle = [np.where(values <= before, after, before) for before, after in pairs]
    return np.asarray(middle[0] if len(middle) == 1 else (middle[0] + middle[1]) / 2)


def _median_of_known_others(values: Column, ordered: Column) -> Column:
    """`median_of_others` where some elements are NaN, whose number may differ. `ordered`: sorted."""
    if np.isnan(ordered[..., 0]).all():  # of what no rank reports
        return np.full(values.shape, np.nan)
    n_others = np.maximum((~np.isnan(values)).sum(axis=-1, keepdims=True) - 1, 0)
    top = values.shape[-1] - 1

    def without_own(place: Column) -> Column:
        value = np.take_along_axis(ordered, np.minimum(place, top), axis=-1)
        after = np.take_along_axis(ordered, np.minimum(place + 1, top), axis=-1)
        return np.where(values <= value, after, value)

    low = without_own(np.maximum(n_others - 1, 0) // 2)
    high = without_own(n_others // 2)
    return np.where((n_others > 0) & ~np.isnan(values), (low + high) / 2, np.nan)


def quantile(values: Column, share: float) -> Column:
    """The element below which `share` of the last axis lies, without NaN; NaN where nothing is left."""
    size = values.shape[-1]
    if not size:
        return np.full(values.shape[:-1], np.nan)
    ordered = np.sort(values, axis=-1)
    if not np.isnan(ordered[..., -1]).any():
        return np.asarray(ordered[..., min(int(share * size), size - 1)])
    n_known = size - np.isnan(ordered).sum(axis=-1, keepdims=True)
    place = np.minimum((share * n_known).astype(np.int64), size - 1)
    return np.asarray(np.take_along_axis(ordered, place, axis=-1)[..., 0])


MAX_SORTED = 6_000
"""Quantiles are taken of at most so many points, evenly picked: a picture has some 300 bins of them."""


def quantiles_of_bins(values: Column, edges: Indices, shares: tuple[float, ...]) -> list[Column]:
    """For each share (0.5: the median) one figure per bin of what is known in it; NaN where nothing is."""
    columns = len(edges) - 1
    low, high = int(edges[0]), int(edges[-1])
    stride = max(1, (high - low) // MAX_SORTED)
    first = -(-low // stride) * stride  # the same points are picked while more come in
    inside = values[first:high:stride]
    bins = np.searchsorted(edges, np.arange(first, high, stride), side="right") - 1
    is_known = np.isfinite(inside)
    inside, bins = inside[is_known], bins[is_known]
    inside = inside[np.lexsort((inside, bins))]
    count = np.bincount(bins, minlength=columns)[:columns]
    begin = np.concatenate([[0], np.cumsum(count)[:-1]])
    filled = count > 0
    figures = []
    for share in shares:
        figure = np.full(columns, np.nan)
        figure[filled] = inside[begin[filled] + np.ceil(share * (count[filled] - 1)).astype(np.int64)]
        figures.append(figure)
    return figures


def mean(values: Column) -> Column:
    """Mean along the last axis without NaN; NaN where nothing is left."""
    if values.size and values.flags.c_contiguous:  # the same to the last bit, in a fifth
        total = values.sum(axis=-1)
        if np.isfinite(total).all():  # and so all values
            return np.asarray(total.astype(np.float64) / values.shape[-1])
    is_known = ~np.isnan(values)
    if not is_known.any():
        return np.full(values.shape[:-1], np.nan)
    count = is_known.sum(axis=-1)
    total = np.where(is_known, values, 0.0).sum(axis=-1)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def probability_of_at_least(count: int, trials: int, p: float) -> float:
    """Probability of `count` or more successes in so many independent trials of probability p (binomial)."""
    return sum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(count, trials + 1))


SURE_FEW = 15.0
"""n independent steps need (1 + SURE_FEW / n) times the certainty of many, roughly as in Student's t."""


def certainty(values: Column) -> float:
    """Mean divided by standard error of a time series (`standard_errors`)."""
    return float(certainties(values[None])[0])


def certainties(series: Column) -> Column:
    """(k,) mean divided by standard error of each time series (`standard_errors`)."""
    values, counts = pack_known(series.astype(np.float64))
    return certainties_of_packed(values, counts, np.sort(values, axis=-1))


def certainties_of_packed(values: Column, counts: Indices, ordered: Column) -> Column:
    """`certainties` of series as `pack_known` returns them; `ordered`: the same, each in order."""
    averages, errors = _errors_of_packed(values, counts, ordered)
    sure = np.where((errors == 0) & (averages != 0), np.copysign(np.inf, averages), 0.0)
    return np.divide(averages, errors, out=sure, where=errors > 0)


def standard_error(values: Column) -> tuple[float, float]:
    """`standard_errors` of one time series."""
    averages, errors = standard_errors(values[None])
    return float(averages[0]), float(errors[0])


def standard_errors(series: Column) -> tuple[Column, Column]:
    """(k,) means and standard errors of k time series, (k, n), enlarged where they have few steps (SURE_FEW);
    NaN: too few. Steps of which nothing is known are left out.

    With correlation r between neighbours, n steps count as n (1 - r) / (1 + r) independent ones (Bartlett). r
    is corrected for its bias with few steps (Kendall). Outliers are clipped at two interquartile ranges
    outside the quartiles.
    """
    values, counts = pack_known(series.astype(np.float64))
    return _errors_of_packed(values, counts, np.sort(values, axis=-1))


def _errors_of_packed(values: Column, counts: Indices, ordered: Column) -> tuple[Column, Column]:
    if values.shape[1] < 2:
        return np.full(len(values), np.nan), np.full(len(values), np.nan)
    few, counts = counts < 2, np.maximum(counts, 2)
    in_row = np.arange(values.shape[1]) >= values.shape[1] - counts[:, None]
    low, high = (element_at(ordered, (share * counts).astype(np.int64))[:, None] for share in (0.25, 0.75))
    values = np.where(in_row, np.clip(values, low - 2 * (high - low), high + 2 * (high - low)), 0.0)
    averages = values.sum(axis=-1) / counts
    around = np.where(in_row, values - averages[:, None], 0.0)
    variances = (around**2).sum(axis=-1) / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (around[:, 1:] * around[:, :-1]).sum(axis=-1) / (counts - 1) / variances
        r = np.clip(r + (1 + 4 * r) / counts, 0.0, 0.99)
        independent = counts * (1 - r) / (1 + r)
        errors = np.sqrt(variances / independent) * (1 + SURE_FEW / independent)
    errors = np.where(variances > 0, errors, 0.0)
    return np.where(few, np.nan, averages), np.where(few, np.nan, errors)


def pack_known(series: Column) -> tuple[Column, Indices]:
    """(k, n) the known values of each row, in their order, behind NaN; and (k,) how many there are."""
    unknown = np.isnan(series)
    counts = series.shape[1] - unknown.sum(axis=-1)
    if not (unknown[:, 1:] & ~unknown[:, :-1]).any():  # they are already
        return series, counts
    packed = np.full(series.shape, np.nan, series.dtype)
    packed[np.arange(series.shape[1]) >= series.shape[1] - counts[:, None]] = series[~unknown]
    return packed, counts


def element_at(rows: Column, places: Indices) -> Column:
    """(k,) the element of each row, (k, n), at its place, (k,)."""
    return np.asarray(rows[np.arange(len(rows)), places])


LEAST_BLOCK = 8
"""Least steps of a block of the bootstrap."""

REPLICATES = 200
"""Resampled series of a bootstrap. They give the standard error of the median within 5 %."""

DRAWN_TOGETHER = 1 << 18
"""Steps of all replicates that are drawn at once, and kept for the next series as long: 2 MB at most."""

SHORT = 512
"""Most values whose covariances are summed one by one, without `numpy.fft`, which takes 12 ms to import."""

LONGER = 2.0
"""Blocks longer than the length of least squared error, which takes the error for too small: where neighbours
are very alike (0.95), 7 of 100 pairs of equal runs differed instead of 2.5. Measured by
`python -m tests.benchmarks.bench_check`."""


class MedianEstimate(NamedTuple):
    """The median of a time series, with what its own steps say of its error."""

    middle: float
    error: float
    """Standard error, in the unit of the series."""
    block: int
    """Steps of a block of the bootstrap."""
    degrees: float
    """Degrees of freedom of the error: the independent blocks less one."""


def estimate_median(values: Column) -> MedianEstimate:
    """The median of a time series (n,) without NaN, n > 0; always the same for the same series."""
    middle = float(median(values))
    block = block_length(np.sign(values - middle))
    error = float(_resampled_medians(values, block).std())
    return MedianEstimate(middle, error, block, max(1.0, len(values) / block - 1))


def interval_of_median(values: Column, wider: float = 1.0) -> tuple[float, float]:
    """Interval of 95 % of the median of a time series (n,) without NaN, n > 0.

    `wider`: factor on its half, for what the series does not show of its error.
    """
    middle, error, block, degrees = estimate_median(values)
    error /= np.sqrt(1 - block / len(values))  # the blocks vary around their own median
    apart = wider * error * student_quantile(0.975, degrees)
    return middle - apart, middle + apart


def _resampled_medians(values: Column, block: int) -> Column:
    """(REPLICATES,) medians of a time series (n,), resampled in blocks of so many steps."""
    n = len(values)
    at_once = max(1, DRAWN_TOGETHER // n)
    if at_once >= REPLICATES:
        return median(values[_all_drawn(n, block)])
    rng = np.random.default_rng(0)
    counts = [min(at_once, REPLICATES - first) for first in range(0, REPLICATES, at_once)]
    return np.concatenate([median(values[_sample_blocks(rng, count, n, block)]) for count in counts])


@lru_cache(maxsize=8)
def _all_drawn(n: int, block: int) -> Indices:
    """(REPLICATES, n) indices, always the same: a replay shows the same."""
    drawn = _sample_blocks(np.random.default_rng(0), REPLICATES, n, block)
    return drawn.astype(np.min_scalar_type(n))  # several are kept


def _sample_blocks(rng: np.random.Generator, count: int, n: int, block: int) -> Indices:
    """(count, n) indices into a series of n steps, drawn in blocks, which go on at the series' begin."""
    begins = rng.integers(n, size=(count, -(-n // block), 1))
    return ((begins + np.arange(block)) % n).reshape(count, -1)[:, :n]


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
    from statistics import NormalDist  # takes 5 ms to import

    z, v = NormalDist().inv_cdf(share), max(degrees, 2.0)
    z2 = z * z
    terms = (
        (z2 + 1) / 4,
        ((5 * z2 + 16) * z2 + 3) / 96,
        (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384,
    )
    return z * (1 + sum(term / v ** (i + 1) for i, term in enumerate(terms)))
