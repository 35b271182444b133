"""The formulas of one bucket all-reduce and of one step, as pure functions over arrays.

Shapes: an array is (launches, ..., ranks), where `launches` are the all-reduces of a step in order of launch,
or (..., ranks) with one value per step. Times are in one unit on one clock, NaN where a rank has none. Words
are those of METRICS.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.statistics import LONG, median_of_others, probability_of_at_least, reduce_rows

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Mask

GLOO_LANES = 2
"""gloo's process group runs its queue with two threads unless set otherwise (`ProcessGroupGloo` options)."""

NCCL_LANES = 1
"""NCCL runs the collectives of a group one after another on one stream."""


def lanes_of(backend: str | None) -> int:
    """How many all-reduces of one process group can run at the same time."""
    return NCCL_LANES if backend is not None and "nccl" in backend else GLOO_LANES


def starts(ready: Column, end: Column, lanes: int) -> Column:
    """Start of every all-reduce: ready, or the moment at which the earliest lane is free.

    `ready` is (launches, ...); `end` has the same shape, or no rank axis where all ranks share the ends.
    After an unknown end the lane is free at once. A start is never later than its end.
    """
    start, ends = np.empty_like(ready), end[..., None] if end.ndim < ready.ndim else end
    unknown = np.isnan(ends)
    # Without unknown ends the lanes are free at the same moments on all ranks that share the ends.
    any_unknown = unknown.any()
    free = np.full((lanes, *(ready if any_unknown else ends).shape[1:]), -np.inf)
    for i in range(len(ready)):
        np.maximum(ready[i], np.fmin(free[0], ends[i]), out=start[i])
        free[0] = np.where(unknown[i], start[i], ends[i]) if any_unknown else ends[i]
        if lanes > 1:
            free.sort(axis=0)
    return start


def last_arrival(latest_start: Column, first_end: Column) -> Column:
    """A: when the last rank has arrived, (launches, ...). The end on any rank shows that it had."""
    return np.asarray(np.fmin(latest_start, first_end))


def clock_free_arrival(start: Column, end: Column) -> Column:
    """The last arrival on each rank's own clock, (launches, ..., ranks), where clocks cannot be compared.

    X' = min over ranks of D: the transfer took at most as long as the shortest collective.
    """
    return np.asarray(end - reduce_rows(np.fmin, end - start)[..., None])


def wait(start: Column, arrival: Column) -> Column:
    """W = max(0, A - s): the time that a rank lost to slower ranks."""
    return np.maximum(arrival - start, 0.0)


def transfer(arrival: Column, end: Column) -> Column:
    """X = max(0, e - A): the time from the last arrival to the end."""
    return np.maximum(end - arrival, 0.0)


def union(begin: Column, end: Column) -> Column:
    """Length of the union of intervals along the first axis; NaN or reversed intervals are empty."""
    if not np.isfinite(begin.sum() + end.sum()):  # without NaN, a reversed one changes nothing
        empty = ~(end > begin)
        begin = np.where(np.isnan(begin), np.inf, begin)
        end = np.where(empty, -np.inf, end)
    if not (begin[1:] >= begin[:-1]).all():  # all-reduces usually begin in order, and sorting costs the most
        order = np.argsort(begin, axis=0)
        begin = np.take_along_axis(begin, order, axis=0)
        end = np.take_along_axis(end, order, axis=0)
    total, reach = np.zeros(end.shape[1:]), np.full(end.shape[1:], -np.inf)
    added = np.empty_like(total)
    for first, last in zip(begin, end, strict=True):  # row by row: they stay in the processor's cache
        np.subtract(last, np.maximum(first, reach, out=added), out=added)
        total += np.maximum(added, 0.0, out=added)
        np.maximum(reach, last, out=reach)
    return total


def exposed(ready: Column, end: Column) -> Column:
    """Exposed communication: end of the last all-reduce - end of backward compute, at least 0.

    On a host timer the compute has ended when the last bucket was ready.
    """
    return np.asarray(np.maximum(np.fmax.reduce(end, axis=0) - np.fmax.reduce(ready, axis=0), 0.0))


def exposed_wait(ready: Column, start: Column, arrival: Column) -> Column:
    """The part of the exposed communication in which some rank had not arrived at an all-reduce."""
    computed = np.fmax.reduce(ready, axis=0)
    # Most end before that: they add nothing.
    later = np.flatnonzero((arrival > computed).reshape(len(arrival), -1).any(axis=1))
    return union(np.fmax(start[later], computed), arrival[later])


def more_than_others(values: Column) -> Column:
    """v - median over the other ranks of v, along the last axis."""
    return np.asarray(values - median_of_others(values))


def lateness(start: Column) -> Column:
    """s - median over the other ranks of s, along the last axis."""
    return more_than_others(start)


def excess(own: Column, without_backward: Column) -> Column:
    """o - median over the other ranks of o, along the last axis. NaN: joined, or not reported.

    Where a rank's last gradient is unknown, `own` is NaN. Such a rank, and one that alone knows its own, is
    compared with the others without backward.
    """
    with_backward = more_than_others(own)
    unknown = np.isnan(with_backward)
    return (
        np.where(unknown, more_than_others(without_backward), with_backward)
        if unknown.any()
        else with_backward
    )


def transfer_of_step(exposed: Column, counts: Mask) -> Column:
    """min over ranks of exposed communication, along the last axis: what the last arriver could not hide.

    `counts`: whether the rank took part with gradients of its own. NaN where one of these is unknown: it may
    have been the last.
    """
    unknown = reduce_rows(np.logical_or, np.isnan(exposed) & counts)
    return np.where(unknown, np.nan, reduce_rows(np.fmin, exposed))


def second_latest(times: Column) -> Column:
    """The second-latest time along the last axis, without NaN; with a single rank its own time."""
    if times.shape[-1] < 2:
        return np.asarray(times[..., 0])
    known_times = np.where(np.isnan(times), -np.inf, times)
    largest_at = known_times.argmax(axis=-1)[..., None]
    latest = np.take_along_axis(known_times, largest_at, axis=-1)[..., 0]
    np.put_along_axis(known_times, largest_at, -np.inf, axis=-1)
    second = reduce_rows(np.maximum, known_times)
    return np.where(np.isinf(second), latest, second)


def middle_latest(times: Column) -> Column:
    """The latest of n times along the last axis without the n // 2 largest, for up to half of the ranks that
    are late together. Without NaN; NaN where nothing is left."""
    size, unknown = times.shape[-1], np.isnan(times)
    if size >= LONG and not unknown.any():
        place = size - 1 - size // 2
        return np.asarray(np.partition(times, place, axis=-1)[..., place])
    ordered = np.sort(times, axis=-1)  # sorts NaN to the end
    n_known = (~unknown).sum(axis=-1, keepdims=True)
    return np.asarray(np.take_along_axis(ordered, np.maximum(n_known - 1 - n_known // 2, 0), axis=-1)[..., 0])


def recoverable(start: Column) -> Column:
    """A - second latest s of each all-reduce: the time saved if the last arriver came second latest."""
    return np.asarray(reduce_rows(np.fmax, start) - second_latest(start))


def replay(arrival: Column, transfer: Column, lanes: int) -> Column:
    """When the last all-reduce of a step ends, from last arrivals and transfer times (launches, ...)."""
    free = np.full((lanes, *arrival.shape[1:]), -np.inf)
    for i in range(len(arrival)):
        free[0] = np.maximum(arrival[i], free[0]) + transfer[i]
        if lanes > 1:
            free.sort(axis=0)
    return np.asarray(free.max(axis=0))


def bus_factor(world: int) -> float:
    """nccl-tests' factor of an all-reduce: 2(n-1)/n."""
    return 2.0 * (world - 1) / world if world > 0 else 0.0


def share(part: Column | float, whole: Column | float) -> Column:
    """`part / whole`; NaN where the whole is 0, such as a step that took no time."""
    return np.asarray(part / np.where(np.asarray(whole) > 0, whole, np.nan))


def bandwidth_gbps(size_bytes: Column | float, time_ms: Column) -> Column:
    """algbw = S / X with 1 GB = 1e9 bytes; NaN where nothing was timed."""
    time_ms = np.asarray(time_ms, dtype=np.float64)
    return np.divide(size_bytes, time_ms * 1e6, out=np.full_like(time_ms, np.nan), where=time_ms > 0)


def relative_scores(self_ms: Column) -> Column:
    """(min over ranks of median self time) / own median self time, in (0, 1]."""
    known_ms = self_ms[np.isfinite(self_ms) & (self_ms > 0)]
    if not known_ms.size:
        return np.full_like(self_ms, np.nan)
    unknown = np.full_like(self_ms, np.nan)
    return np.asarray(np.divide(known_ms.min(), self_ms, out=unknown, where=self_ms > 0))


def by_chance(count: int, steps: int, ranks: int) -> float:
    """Probability that any of so many equally fast ranks comes last in `count` or more of the steps."""
    return ranks * probability_of_at_least(count, steps, 1 / ranks)
