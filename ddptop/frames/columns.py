"""Columns of figures, NaN where unknown, and their folds; results that are kept for columns of texts.
`frames/statistics.py` has medians, `frames/rings.py` those of the last steps."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Column: TypeAlias = NDArray[np.float64]
    """Figures; in rings they are kept as float32."""
    Indices: TypeAlias = NDArray[np.int64]
    """Places in a column, slots of a ring, numbers of ranks."""
    Mask: TypeAlias = NDArray[np.bool_]


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

KEPT_RESULTS = 4


def keep_newest(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Keep the results for the newest arguments, of which the first is a column of texts.

    A column is compared, not hashed: it is mostly the same object as before. `lru_cache` would hash each of
    its thousands of texts for each call, and a picture makes some hundred calls.
    """
    kept: list[tuple[tuple[object, ...], _Result]] = []

    @wraps(function)
    def result_of(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        for (column, *others), result in kept:
            if column is arguments[0] and (*others,) == arguments[1:]:
                return result
        equal = [result for known, result in kept if known == arguments]
        result = equal[0] if equal else function(*arguments, **named)
        kept.insert(0, (arguments, result))
        del kept[KEPT_RESULTS:]
        return result

    return result_of


@keep_newest
def distinct_texts(texts: tuple[str, ...]) -> frozenset[str]:
    """The texts that a column has, such as the states of its ranks."""
    return frozenset(texts)


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
