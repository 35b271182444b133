"""What a chart must say of its own data: where steps were lost or thinned out, where a loss was no number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.frames import Column
    from ddptop.tui.paint.chart import Axis

Mark: TypeAlias = Literal["lost", "thinned", "nan"]

NEIGHBOURS = 8
"""Points on each side with which a jump of the step number is compared."""

TOO_FAR = 2
"""A jump of more than so many times the farthest of its neighbours: steps are missing there."""

SEEN_CELLS = 0.5
"""A hole shorter than this on the axis could not be seen anyway."""

RUN = 3
"""Equal jumps in a row from which a recording is taken to have been thinned."""

MOST_HOLES = 400
"""More than a chart has cells."""


def holes(step: Column, time_s: Column, cell_s: float) -> list[tuple[float, float]]:
    """(from, to) in seconds, where steps are missing that had been there before and after.

    A recording's own early history has points of some steps only, and a thinned recording as well: a jump
    counts where it is larger than those around it. Where the step number goes on by one, nothing is missing,
    however long the step took. A step number that falls is a restart.
    """
    if len(step) < 2:
        return []
    jump = np.diff(step)
    far = np.flatnonzero((jump > 1) & (np.diff(time_s) >= SEEN_CELLS * cell_s))
    found = []
    for at in far[-MOST_HOLES:].tolist():
        near = np.concatenate([jump[max(0, at - NEIGHBOURS) : at], jump[at + 1 : at + 1 + NEIGHBOURS]])
        near = near[near > 0]
        if not len(near) or jump[at] > TOO_FAR * near.max():
            found.append((float(time_s[at]), float(time_s[at + 1])))
    return found


def thinned(step: Column) -> Column:
    """(points,) whether only every second, fourth, eighth ... step was kept around a point."""
    there: NDArray[np.bool_] = np.zeros(len(step), bool)
    jump = np.diff(step)
    if len(jump) < RUN or not (jump > 1).any():
        return there
    whole = jump.astype(np.int64)
    regular = (whole >= 2) & (whole & (whole - 1) == 0) & (step[:-1] % np.maximum(1, whole) == 0)
    same = regular[RUN - 1 :].copy()
    for back in range(1, RUN):
        same &= regular[RUN - 1 - back : len(regular) - back] & (
            whole[RUN - 1 :] == whole[RUN - 1 - back : len(whole) - back]
        )
    for offset in range(RUN + 1):
        there[offset : offset + len(same)] |= same
    return there


def no_number(mean: Column, largest: Column) -> Column:
    """(points,) whether some rank's loss was told and was no number: others' were, or it was infinite."""
    return np.asarray(np.isinf(mean) | (np.isnan(mean) & np.isfinite(largest)))


def cells(axis: Axis, across: int, step: Column, time_s: Column, nan_at: Sequence[float]) -> dict[int, Mark]:
    """Marks by cell of the axis; `nan_at`: moments at which a loss was no number. The gravest is kept."""
    cell_s = axis.bin_s * across
    count = axis.columns // across
    first = int(np.searchsorted(time_s, axis.begin_s))
    first = max(0, first - NEIGHBOURS)
    step, time_s = step[first:], time_s[first:]
    found: dict[int, Mark] = {}

    def put(at_s: float, mark: Mark) -> None:
        cell = int((at_s - axis.begin_s) / cell_s)
        if 0 <= cell < count and at_s >= axis.begin_s:
            found[cell] = mark

    at = np.unique(((time_s[thinned(step)] - axis.begin_s) / cell_s).astype(np.int64))
    found.update({cell: "thinned" for cell in at.tolist() if 0 <= cell < count})
    for begin_s, end_s in holes(step, time_s, cell_s):
        inside = axis.begin_s + (np.arange(count) + 0.5) * cell_s
        for cell in np.flatnonzero((inside > begin_s) & (inside < end_s)).tolist():
            found[cell] = "lost"
    for at_s in nan_at:
        put(at_s, "nan")
    return found
