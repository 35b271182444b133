"""Uneven work: ranks are late where their batches are larger, and no rank is to blame.

Sizes are the elements of the inputs of a step's forwards, or logged tokens (`StepWindow.elements`). What an
element more takes is a regression of own time over size, in which every rank is compared with itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.frames.statistics import interpolated_quantile, mean, median, median_of_others

if TYPE_CHECKING:
    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.frames.columns import Column, Indices

COMPARED = 64
"""Most ranks that the regression uses."""

LEAST_STEPS = 24
"""Least steps of it."""

VARIES = 0.05
"""Sizes vary when a rank's differ from its mean by this share of it (standard deviation)."""

FOLLOWS = 0.6
"""Least correlation of own time and size: they have a third of their variance in common. By chance it is
below 0.3 in 80 steps."""

LARGER, ALIKE = 1.1, 1.15
"""Where sizes do not vary, a rank has more than the others from this factor on, and its time for each element
is the others' up to this factor."""

CARRIED = 0.6
"""Least share of the excess that the sizes explain. Not more: the latest rank of a step is the one to whose
work noise adds most."""


def sizes_vary(steps: StepWindow, slots: Indices, members: Indices) -> bool:
    """Whether sizes differ at all: else `ms_saved_if_even` knows nothing of any of these steps."""
    sizes = steps.elements(slots, _compared(members))
    return bool(np.fmax.reduce(sizes, axis=None) > np.fmin.reduce(sizes, axis=None))


def _compared(members: Indices) -> Indices:
    if len(members) <= COMPARED:
        return members
    return members[np.linspace(0, len(members) - 1, COMPARED).astype(np.int64)]


def ms_per_element(steps: StepWindow, slots: Indices, members: Indices) -> float | None:
    """What an element more adds to a rank's own time; None: own times do not follow the sizes."""
    members = _compared(members)
    sizes = steps.elements(slots, members)
    if len(slots) < LEAST_STEPS or len(members) < 2 or np.isnan(sizes).any() or np.ptp(sizes) == 0:
        return None
    usual = sizes.mean(axis=1, keepdims=True)
    if float((sizes - usual).std()) < VARIES * float(usual.mean()):
        return _of_constant_sizes(steps, slots, members, median(sizes))
    over, work = (formulas.more_than_others(values.T).T for values in (sizes, steps.work(slots, members)))
    is_known = ~np.isnan(work)
    if is_known.sum() < LEAST_STEPS:
        return None
    work = work - mean(work)[:, None]
    x, y = (over - mean(np.where(is_known, over, np.nan))[:, None])[is_known], work[is_known]
    limit = 2 * interpolated_quantile(np.abs(y), 0.8)
    y = np.clip(y, -limit, limit)  # a busy machine makes some steps late by several times that
    product, squares = float((x * y).sum()), float((x * x).sum())
    follows = product > 0 and product >= FOLLOWS * float(np.sqrt(squares * (y * y).sum()))
    return product / squares if follows else None


def _of_constant_sizes(steps: StepWindow, slots: Indices, members: Indices, size: Column) -> float | None:
    """Every rank always has the same size: time of forward and own backward for each element by which the
    largest have more. Not for each of theirs: a part of the time is the same whatever the size."""
    compute = median(steps.place("forward", slots, members) + steps.place("backward", slots, members))
    sizes_of_others = median_of_others(size)
    larger = size >= LARGER * sizes_of_others
    if not larger.any() or larger.all():
        return None
    element_ms = compute / size
    usual = float(median(element_ms[~larger]))
    if not usual > 0 or not (element_ms[larger] <= ALIKE * usual).all():
        return None
    more = compute[larger] - median(compute[~larger])
    return max(0.0, float(median(more / (size[larger] - median(size[~larger])))))


def ms_saved_if_even(steps: StepWindow, slots: Indices, members: Indices) -> Column:
    """(n,) ms by which the slowest rank of each step had been faster had all ranks had as many elements."""
    element_ms = ms_per_element(steps, slots, members)
    if element_ms is None:
        return np.full(len(slots), np.nan)
    own_ms = steps.own(slots, members)
    sizes = steps.elements(slots, members)
    even = np.fmax.reduce(own_ms - element_ms * (sizes - sizes.mean(axis=0)), axis=0)
    return np.asarray(np.clip(np.fmax.reduce(own_ms, axis=0) - even, 0.0, None))


def explains(lateness: Column, more: Column, each_ms: float | None) -> bool:
    """Whether sizes have an excess: (n,) of late ranks, and by how many elements each had more."""
    if each_ms is None:
        return False
    explained = each_ms * float(median(more))
    return explained > 0 and explained >= CARRIED * float(median(lateness))
