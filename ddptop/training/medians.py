"""Medians without numpy, which no training process loads for ddptop, and without `statistics`, which loads
`fractions` and `decimal` too (5 ms). All others are in `ddptop/frames/statistics.py`."""

from __future__ import annotations

from collections.abc import Iterable


def median_or_zero(values: Iterable[float]) -> float:
    """The median; 0 for no values."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2 if ordered else 0.0


def upper_median(values: Iterable[int]) -> int:
    """The median, of an even number of values the larger one in the middle; 0 for no values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0
