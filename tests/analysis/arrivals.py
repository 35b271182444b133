"""Thousands of judged steps from arrival times alone, without the messages around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.bucket_times import Timing, figures
from ddptop.analysis.steps.clocks import ONE_CLOCK, SAME_HOST_BOUND_MS, Comparison
from ddptop.analysis.steps.evaluate_buckets import (
    add_detail,
    figures_of_detail,
    figures_of_group,
    rules_are_due,
)
from ddptop.analysis.steps.groups import Flagged, Scope
from ddptop.analysis.steps.windows import DetailWindow
from ddptop.analysis.straggler import arrival_flags
from ddptop.frames.frame import Straggler
from ddptop.protocol.messages import Bucket

if TYPE_CHECKING:
    from ddptop.frames.columns import Column

STEP_MS, TRANSFER_MS = 20.0, 1.0


def one_host(world: int, bound_ms: float = SAME_HOST_BOUND_MS) -> Comparison:
    """All ranks on one clock, with this bound."""
    exact = np.zeros(world)
    return Comparison(
        host=np.zeros(world, np.int64),
        first=np.zeros(1, np.int64),
        names=("node0",),
        clocks=ONE_CLOCK,
        ready_ms=np.full(world, bound_ms),
        end_ms=exact,
        several_hosts=False,
        comparable=True,
    )


def looks(
    late_ms: Column,
    *,
    size: int = 100,
    shown: float | Column = 1.0,
    hidden: bool = False,
    every: int = 1,
    bounds_ms: Column | None = None,
) -> Iterator[tuple[int, Flagged | None, DetailWindow]]:
    """Judge steps in which each rank arrives as much later as `late_ms` (steps, ranks) says, in its forward.

    `shown`: the share of it that the forward took longer; the rest counts as `other`, or with `hidden` in no
    phase: the rank began its step so much later. `every`: which steps have bucket detail; `bounds_ms`:
    (steps,) of their clocks. Yields at every look the number of detailed steps so far, who is named, and the
    state behind it.
    """
    steps, world = late_ms.shape
    ready = 1000 * (STEP_MS + late_ms)
    end = np.broadcast_to(ready.max(axis=-1, keepdims=True) + 1000 * TRANSFER_MS, ready.shape)
    timing = Timing((0,), ready[None], end[None], 2, True, np.zeros(ready.shape))
    found = figures(timing)
    scope = Scope("", tuple(range(world)))
    window = DetailWindow(world, size, several_hosts=False)
    bucket = Bucket(model=0, index=0, bytes=8, wire_bytes=8, parameters=1, dtype="float32", hook="")
    part = window.scope(scope, 0, (bucket,), several_hosts=False)
    wall = end / 1000 + 1.0
    phases = [
        np.full(wall.shape, 1.0),
        STEP_MS - 2 + shown * late_ms,
        wall - STEP_MS - late_ms,
        np.full(wall.shape, 1.0),
    ]
    other = np.full(wall.shape, 0.5) if hidden else wall - sum(phases)
    columns = np.stack([wall, *phases, other])
    points = every * np.arange(steps, dtype=float)
    bounds = np.full(steps, SAME_HOST_BOUND_MS) if bounds_ms is None else bounds_ms
    compared = [one_host(world, bound) for bound in bounds.tolist()]
    group = figures_of_group(part, timing, found, None, wall, compared)
    evaluated = figures_of_detail(window, [group], found.waits, None, columns, points)
    for part in add_detail(window, evaluated, points, rules_are_due(points, window.newest)):
        if part.is_judged:
            arrival_flags.flag_by_arrivals(window, window.evaluated(int(points[part.stop - 1]) + 1))
            yield part.stop, window.flagged, window


def straggler(window: DetailWindow, steps: int) -> Straggler | None:
    """The figures of the rank flagged now."""
    return arrival_flags.find_straggler(window, window.evaluated(steps))
