"""Heat maps: a figure of all ranks over the recent steps, folded to any size; the worst of a fold wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.medians import DetailMedians
from ddptop.analysis.steps.window import STEP_COLUMNS
from ddptop.frames.columns import fold, folds
from ddptop.frames.detail import Heat

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.requests import WantsHeat


def heat(state: RunState, want: WantsHeat) -> Heat | None:
    """The last steps that are kept, at most `want.columns`; None where none of these ranks is there."""
    world = state.figures.world
    count = min(want.count or world, world - want.first)
    if count <= 0:
        return None
    steps, values = _figure(state, want.figure, want.columns)
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


def _figure(state: RunState, figure: str, columns: int) -> tuple[Column, Column]:
    """(n,) step numbers and (ranks, n) values of the last steps, oldest first."""
    figures = state.figures
    slots = figures.steps.ranks.recent(columns)
    numbers = figures.steps.group.of("number", slots)
    if figure in STEP_COLUMNS or figure == "loss":
        return numbers, figures.steps.ranks.of(figure, slots)
    window = figures.detail
    if window is None:
        return numbers, np.full((figures.world, len(slots)), np.nan)
    # Buckets are timed in some steps only: the columns are those steps, however far back they lie.
    slots = window.group.recent(columns)
    kept = state.history.since(0)
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


def _lateness(detail: DetailMedians, world: int, slots: Indices) -> Column:
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
