"""A rank's step as one row of pieces: phases, exposed communication, and the holes between."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.wanted_frames import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ddptop.analysis.frames import Column

LEAST_MS = 1e-3
"""Times are whole microseconds: a hole that is shorter is rounding."""


def spans(
    head: Mapping[str, int], begin_ms: float, ready: Column, start: Column, arrival: Column, end: Column
) -> tuple[Span, ...]:
    """Pieces from the rank's begin to its end without holes or overlaps.

    `head`: fields of its StepRow; columns: its all-reduces in ms on the same axis as `begin_ms`.
    Of gradient accumulation only sums are known: the earlier passes are drawn as one forward, one backward.
    """
    done = begin_ms + head["wall_us"] / 1e3
    found: list[Span] = []
    at = begin_ms
    for name, since, until in _phases(head):
        left, right = (min(max(begin_ms + us / 1e3, at), done) for us in (since, until))
        if left - at > LEAST_MS:
            found.append(Span("other", at, left))
            at = left
        if right - at <= 0:
            continue
        if name == "backward":
            found += _backward(at, right, ready, start, arrival, end)
        else:
            found.append(Span(name, at, right))
        at = right
    if done - at > LEAST_MS:
        found.append(Span("other", at, done))
    return tuple(found)


def _phases(head: Mapping[str, int]) -> Iterable[tuple[str, int, int]]:
    """Name, begin and end in us since the step's begin, in the order in which a step goes."""
    data, forward, backward = head["data_us"], head["forward_us"], head["backward_us"]
    forward_at, backward_at, optimizer_at = (
        head[f"{name}_at_us"] for name in ("forward", "backward", "optimizer")
    )
    yield "data", 0, data
    earlier = 0
    if head["micro_steps"] > 1:
        earlier = min(backward, max(0, backward_at - forward_at - forward))
    yield "forward", forward_at, forward_at + forward
    if earlier:
        yield "backward", forward_at + forward, forward_at + forward + earlier
    if backward_at >= 0:
        yield "backward", backward_at, backward_at + backward - earlier
    if optimizer_at >= 0:
        yield "optimizer", optimizer_at, optimizer_at + head["optimizer_us"]


def _backward(
    since: float, until: float, ready: Column, start: Column, arrival: Column, end: Column
) -> list[Span]:
    """Backward compute until the last bucket was ready; after it, what was waited for and what moved."""
    computed = min(max(float(ready.max()), since), until) if len(ready) else until
    found = [Span("backward", since, computed)] if computed > since else []
    edges = np.concatenate([start, arrival, end])
    edges = edges[(edges > computed) & (edges < until)]
    for left, right in itertools.pairwise((computed, *np.unique(edges).tolist(), until)):
        middle = (left + right) / 2
        if right - left <= 0:
            continue
        if ((start <= middle) & (middle < arrival)).any():
            name = "waiting"
        elif ((arrival <= middle) & (middle < end)).any():
            name = "moving"
        else:
            name = "backward"
        if found and found[-1].name == name:
            found[-1] = Span(name, found[-1].begin_ms, right)
        else:
            found.append(Span(name, left, right))
    return found
