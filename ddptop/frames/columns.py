"""Columns of figures, NaN where unknown, and their folds. `frames/statistics.py` has their medians,
`frames/rings.py` those of the last steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.float64]
    """Figures; in rings they are kept as float32."""
    Indices: TypeAlias = NDArray[np.int64]
    """Places in a column, slots of a ring, numbers of ranks."""
    Mask: TypeAlias = NDArray[np.bool_]


def folds(count: int, rows: int) -> Indices:
    """Edges of `rows` folds of `count` elements, whose sizes differ by at most one; at most `count` folds."""
    rows = min(rows, count)
    return np.arange(rows + 1, dtype=np.int64) * count // max(1, rows)


def fold(values: Column, edges: Indices, *, worst_is_least: bool = False) -> tuple[Column, Column]:
    """(elements, columns) to two (folds, columns): the worst value of each fold and its index; NaN: unknown.

    The worst value is the largest, or with `worst_is_least` the smallest.
    """
    if not values.size:
        empty = np.full((len(edges) - 1, values.shape[1]), np.nan)
        return empty, empty
    ranking = np.where(np.isnan(values), -np.inf, -values if worst_is_least else values)
    # A block is as tall as the largest fold: folds differ by one, so at most one row is read twice.
    height = int(np.diff(edges).max())
    inside = np.minimum(edges[:-1, None] + np.arange(height), edges[1:, None] - 1)
    place = ranking[inside].argmax(axis=1)
    who = np.take_along_axis(inside, place, axis=1)
    worst = np.take_along_axis(values, who, axis=0)
    unknown = np.isnan(worst)
    return worst, np.where(unknown, np.nan, who)
