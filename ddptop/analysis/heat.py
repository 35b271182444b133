"""Heat maps: a figure of all ranks over the recent steps, folded to any size; the worst of a fold wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.medians import DetailMedians
from ddptop.analysis.wanted_frames import Heat
from ddptop.analysis.window import STEP_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.analysis.frames import Column
    from ddptop.analysis.reducer import Reducer
    from ddptop.analysis.wants import WantsHeat


def heat(reducer: Reducer, want: WantsHeat) -> Heat | None:
    """The last steps that are kept, at most `want.columns`; None where none of these ranks is there."""
    world = reducer.figures.world
    count = min(want.count or world, world - want.first)
    if count <= 0:
        return None
    steps, values = _figure(reducer, want.figure, want.columns)
    part = values[want.first : want.first + count]
    edges = folds(count, want.rows)
    value, rank = fold(part, edges)
    known = part[np.isfinite(part)]
    spread = [float(f(known)) for f in (np.min, np.median, np.max)] if len(known) else [None, None, None]
    return Heat(
        figure=want.figure,
        first=want.first,
        count=count,
        rows=tuple((edges + want.first).tolist()),
        steps=tuple(int(step) for step in steps.tolist()),
        low=spread[0],
        middle=spread[1],
        high=spread[2],
        value=value.ravel().astype(np.float32),
        rank=(rank + want.first).ravel().astype(np.float32),
    )


def folds(count: int, rows: int) -> NDArray[np.int64]:
    """Edges of `rows` folds of `count` things, as even as whole things allow; fewer where there are fewer."""
    rows = min(rows, count)
    return np.arange(rows + 1, dtype=np.int64) * count // max(1, rows)


def fold(values: Column, edges: NDArray[np.int64], *, worst_is_least: bool = False) -> tuple[Column, Column]:
    """(things, columns) to (folds, columns): the worst value of every fold, and whose it is; NaN unknown.

    An infinite value is worse than any number, so it wins.
    """
    if not values.size:
        empty = np.full((len(edges) - 1, values.shape[1]), np.nan)
        return empty, empty
    ranking = np.where(np.isnan(values), -np.inf, -values if worst_is_least else values)
    # A block is as tall as the largest fold: folds differ by one, so at most one row is looked at twice.
    height = int(np.diff(edges).max())
    inside = np.minimum(edges[:-1, None] + np.arange(height), edges[1:, None] - 1)
    place = ranking[inside].argmax(axis=1)
    who = np.take_along_axis(inside, place, axis=1)
    found = np.take_along_axis(values, who, axis=0)
    unknown = np.isnan(found)
    return found, np.where(unknown, np.nan, who)


def _figure(reducer: Reducer, figure: str, columns: int) -> tuple[Column, Column]:
    """(n,) step numbers and (ranks, n) values of the last steps, oldest first."""
    figures = reducer.figures
    slots = figures.steps.ranks.recent(columns)
    numbers = figures.steps.group.of("number", slots)
    if figure in STEP_COLUMNS or figure == "loss":
        return numbers, figures.steps.ranks.of(figure, slots)
    window = figures.detail
    if window is None:
        return numbers, np.full((figures.world, len(slots)), np.nan)
    # Buckets are timed in some steps only: the columns are those steps, however far back they lie.
    slots = window.group.recent(columns)
    kept = reducer.history.since(0)
    points = window.group.of("point", slots).astype(np.int64) - kept.start
    slots, numbers = slots[points >= 0], kept.step[points[points >= 0]]
    detail = DetailMedians(window, slots, figures.world)
    if figure == "lateness":
        return numbers, _lateness(detail, figures.world, slots)
    waited = window.ranks.of(detail.name("exposed_wait"), slots)
    if figure == "wait":
        return numbers, waited
    if figure == "transfer":
        return numbers, window.ranks.of("exposed", slots) - waited
    return numbers, window.ranks.of(figure, slots)


def _lateness(detail: DetailMedians, world: int, slots: Column) -> Column:
    """(ranks, n); of a rank in several process groups that in which it is largest in size."""
    found = np.full((world, len(slots)), np.nan)
    window = detail.window
    assert window is not None
    for scope in window.scopes.values():
        if scope.clock_free:
            continue
        values = scope.ranks.of("lateness", slots)
        before = found[scope.members]
        with np.errstate(invalid="ignore"):
            larger = np.abs(values) > np.fmax(np.abs(before), -1.0)
        found[scope.members] = np.where(larger, values, before)
    return found
