"""The columns of the map of ranks x steps: which steps each stands for, and where it is on the map.

A step keeps its column for as long as it is shown. Columns are filled from left to right, then from the left
again, as on the screen of an oscilloscope: what is right of the newest step is older than all at its left. A
line parts the two. In a map that each new step pushes to the left, everything changes with every picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import fold
from ddptop.frames.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.detail import Heat

LEAST_MAP_S = 10.0
"""Seconds that all columns stand for at least, if so many steps are kept: what is replaced before it can be
read is of no use."""

KEPT_WITHIN = 2
"""The steps of a column stay as they are until the run is so many times as fast or as slow."""


@dataclass(frozen=True, slots=True)
class HeatColumns:
    """The columns that have a step, oldest first. Between the newest and the oldest, one is left empty."""

    places: tuple[int, ...]
    """Where each is on the map, from the left."""
    edges: Indices
    """Index in `Heat.steps` of the first step of each, and the end of the last."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each."""
    after_hole: frozenset[int]
    """Places of columns in which steps begin after some that are missing."""

    @property
    def n_older(self) -> int:
        """How many columns at the right are from before the map was filled from the left again."""
        return int(np.argmin(self.places))

    @property
    def parted_at(self) -> int | None:
        """The place between the newest step and older ones at its right; None: there are none."""
        return self.places[-1] + 1 if self.n_older else None


def find_usual_distance(steps: Sequence[int] | Indices) -> int:
    """How far the number of a step is usually from that of the one before: some figures are not known in
    every step."""
    distances: Column = np.diff(np.array(steps, np.float64))
    distances = distances[distances > 0]
    return int(median(distances)) if len(distances) else 1


def choose_steps_per_column(n_columns: int, n_steps: int, step_ms: float, before: int) -> int:
    """How many of the steps that are known a column stands for.

    `n_steps`: so many are kept. `step_ms`: from one to the next; 0: not known. `before`: as many as in the
    last picture; 0: there was none.
    """
    most = max(1, n_steps // n_columns)
    all_columns_s = n_columns * step_ms / 1000
    wanted = math.ceil(min(most, LEAST_MAP_S / all_columns_s)) if all_columns_s > 0 else 1
    is_near = wanted <= KEPT_WITHIN * before and before <= min(most, KEPT_WITHIN * wanted)
    return before if is_near else wanted


def arrange_columns(steps: Sequence[int], n_columns: int, steps_per_column: int) -> HeatColumns:
    """The columns of at least one step. After a restart, which begins with an earlier step, there are only
    the steps since then."""
    numbers = np.array(steps, np.int64)
    distances, usual = np.diff(numbers), find_usual_distance(steps)
    first = int(np.flatnonzero(distances <= 0).max(initial=-1)) + 1
    columns = numbers // (usual * steps_per_column)
    before_shown = columns[-1] - max(1, n_columns - 1)
    first += int(np.searchsorted(columns[first:], before_shown, side="right"))
    begins = first + np.flatnonzero(np.diff(columns[first:], prepend=columns[first] - 1))
    edges = np.append(begins, len(numbers))
    places = columns % n_columns
    holes = np.flatnonzero(distances > usual) + 1
    return HeatColumns(
        places=tuple(places[begins].tolist()),
        edges=edges,
        steps=tuple(zip(numbers[begins].tolist(), numbers[edges[1:] - 1].tolist(), strict=True)),
        after_hole=frozenset(places[holes[holes >= first]].tolist()),
    )


def fold_steps(heat: Heat, columns: HeatColumns, rows: int, *, worst_is_least: bool) -> tuple[Column, Column]:
    """(rows, columns) the worst value of the steps of each column, and whose it is; NaN: not known."""
    shape = (-1, len(heat.steps))
    value, rank = heat.value.reshape(shape)[:rows].T, heat.rank.reshape(shape)[:rows].T
    worst, index = fold(value, columns.edges, worst_is_least=worst_is_least)
    where = np.where(np.isnan(index), columns.edges[:-1, None], index).astype(np.int64)
    return worst.T, np.take_along_axis(rank, where, axis=0).T
