"""Numbers as text for users. What is not known (None, NaN) is a dash, never a zero.

Decimals:

- none for counts, for larger shares and for the use of a CPU or GPU
- one for ms and for shares below a few %
- two for ratios, bandwidths, clocks, round trips and times of single buckets
- four for a loss

A difference has as many as its figure. All other modules format by these functions. The minus sign is the
ASCII one, so that a figure can be copied.
"""

from __future__ import annotations

import math
import time

UNKNOWN = "–"

RATIO = 2
"""Decimals of ratios, bandwidths, and times of buckets, clocks and round trips, some hundredths of a ms."""

LEAST_SHOWN_MS = 0.05
"""What is less is 0.0 in figures with one decimal."""


def known(value: float | None) -> bool:
    """Whether there is a number at all."""
    return value is not None and not math.isnan(value)


def fixed(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A number with so many decimals and thousands parted, and its unit."""
    if value is None or math.isnan(value):
        return UNKNOWN
    return f"{_rounded(value, digits):,.{digits}f}{unit}"


def whole(value: float | None) -> str:
    """A number without decimals, as the use of a CPU or GPU."""
    return fixed(value, 0)


def ratio(value: float | None) -> str:
    """A ratio, with two decimals."""
    return fixed(value, RATIO)


def plus_minus(value: float | None) -> str:
    """An error, `±0.1`."""
    text = fixed(value)
    return text if text == UNKNOWN else f"±{text}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign, `+1.5`, `-0.3`; without one where it rounds to zero."""
    number = _rounded(value, digits)
    return f"{number:+,.{digits}f}" if number else f"{number:,.{digits}f}"


def bounded(value: float | None, bound: float | None) -> str:
    """A number with its error, `20.3 ±0.1`; without one where that is not known."""
    text = fixed(value, 1)
    return text if bound is None or text == UNKNOWN else f"{text} ±{fixed(bound, 1)}"


def sized_ms(value_ms: float, bound_ms: float) -> str:
    """How much longer something takes, `20.3 ±0.1 ms`; `roughly 20 ms` where the error is as large: it
    varies, and an error above the figure would say nothing."""
    if bound_ms < value_ms:
        return f"{bounded(value_ms, bound_ms)} ms"
    return f"roughly {fixed(value_ms, 0 if value_ms >= 10 else 1)} ms"


FEW_PCT = 5.0
"""Shares below have a decimal."""


def percent(value: float | None, digits: int | None = None) -> str:
    """A share: `43%`, `0.8%`, `0%`."""
    small = value is not None and value != 0 and abs(_rounded(value, 1)) < FEW_PCT
    return fixed(value, int(small) if digits is None else digits, "%")


def significant(value: float | None, digits: int = 4) -> str:
    """A number of unknown size, as a script logs it: `0.03142`, `1.2e+07`."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.{digits}g}"


def _rounded(value: float, digits: int) -> float:
    """Rounded to so many decimals, zero without a sign; by Python, as numpy rounds its floats otherwise."""
    return round(float(value), digits) + 0.0


def count(value: float | None) -> str:
    """A whole number with thousands parted."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{int(value):,}"


def counted(value: int, noun: str) -> str:
    """`1 rank`, `4,096 ranks`."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def loss(value: float | None) -> str:
    """A loss to four decimals; one that is very small or very large in powers of ten."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0.0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.3e}"


def size(value: float | None) -> str:
    """Bytes in decimal units, as bandwidth is (1 MB = 1e6 bytes)."""
    if value is None or math.isnan(value):
        return UNKNOWN
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:,.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """`4.2 s`, `12 min 05 s`, `3 h 12 min`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def age(seconds: float) -> str:
    """How long something holds: `17 s`, `4 min`, `3 h`, `2 days`."""
    whole = max(0, int(seconds))
    for unit, length, until in (("s", 1, 100), ("min", 60, 100 * 60), ("h", 3600, 48 * 3600)):
        if whole < until:
            return f"{whole // length} {unit}"
    return f"{whole // 86400} days"


def short_age(seconds: float) -> str:
    """How long something holds, in few cells: `17s`, `4m`, `3h`, `2d`."""
    number, unit = age(seconds).split()
    return f"{number}{unit[0]}"


def clock(unix_s: float, seconds: bool = True) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(unix_s))
