"""Bucket detail of complete steps: cells of all ranks to the figures of METRICS, many steps at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import metrics
from ddptop.protocol.messages import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Column
    from ddptop.analysis.pairing import CompleteStep

US_PER_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """All-reduces of `n` steps that launched the same buckets in the same order. Microseconds.

    `ready` and `end` are (launches, n, ranks) on the host's clock, counted from the step's first begin;
    a joined rank is NaN throughout. `aligned`: the ranks share a clock.
    """

    numbers: tuple[int, ...]
    """Bucket number in the layout, per launch."""
    ready: Column
    end: Column
    lanes: int
    aligned: bool


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What bucket detail tells of `n` steps, in milliseconds; NaN (last: -1) where it cannot be told."""

    collective: Column
    """(n, ranks), as the five that follow: length of the union of this rank's collectives."""
    wait: Column
    """Time in which at least one of them lacked a rank."""
    transfer: Column
    """Time in which at least one of them moved bytes. With several lanes it may overlap with `wait`."""
    exposed: Column
    exposed_wait: Column
    lateness: Column
    """At the step's deciding all-reduce, the one with the largest arrival skew."""
    last: Column
    """(n,) rank that came last there; -1: nobody, clocks cannot tell or it is alone."""
    recoverable: Column
    """(n,) what the step had been shorter by, had the last arrivals come at the second-latest time."""
    hidden: Column
    """(n,) and by, had all communication been hidden: no more than the least exposed rank's share."""
    both: Column
    bucket_collective: Column
    """(n, launches), as the four that follow: mean over ranks."""
    bucket_wait: Column
    bucket_transfer: Column
    bucket_skew: Column
    bucket_last: Column


def launched(step: CompleteStep) -> tuple[int, ...] | None:
    """The bucket numbers that every rank launched in this step, in order; None if it cannot be judged.

    It can when all ranks that still had inputs sent detail of the same layout and sequence.
    """
    numbers: tuple[int, ...] | None = None
    layout = -1
    for row, batch in zip(step.rows, step.batches, strict=True):
        if row.flags & Flag.JOINED:
            continue
        if not row.flags & Flag.DETAIL or not row.cells or len(row.cells) % 3 or batch.layout < 0:
            return None
        if numbers is None:
            numbers, layout = row.cells[::3], batch.layout
        elif batch.layout != layout or row.cells[::3] != numbers:
            return None
    return numbers


def timing(steps: Sequence[CompleteStep], numbers: tuple[int, ...], *, lanes: int, aligned: bool) -> Timing:
    """Put the cells of `steps`, which all launched `numbers`, on one clock."""
    ranks, launches = len(steps[0].rows), len(numbers)
    nothing = (0,) * (3 * launches)
    joined = np.array([[bool(row.flags & Flag.JOINED) for row in step.rows] for step in steps])
    cells = np.array(
        [nothing if row.flags & Flag.JOINED else row.cells for step in steps for row in step.rows], np.int64
    ).reshape(len(steps), ranks, launches, 3)
    ready = cells[..., 1].transpose(2, 0, 1).astype(np.float64)
    took = cells[..., 2].transpose(2, 0, 1)
    if aligned:
        begin_ns = np.array(
            [[b.base_ns + r.begin_us * 1000 for r, b in zip(s.rows, s.batches, strict=True)] for s in steps],
            np.int64,
        )
        ready += (begin_ns - begin_ns.min(axis=1, keepdims=True)) / 1000.0
    ready[:, joined] = np.nan
    end = np.where(took >= 0, ready + took, np.nan)
    return Timing(numbers, ready, end, lanes, aligned)


def figures(t: Timing) -> StepFigures:
    """Everything above, vectorised over steps and ranks."""
    # A callback may stamp an end many ms late, and never early. So on a shared clock the first end
    # seen frees a lane on all ranks, and arrivals differ by ready stamps alone.
    first_end = np.fmin.reduce(t.end, axis=-1)
    start = metrics.starts(t.ready, first_end if t.aligned else t.end, t.lanes)
    if t.aligned:
        arrival = metrics.last_arrival(start, t.end)[..., None]
    else:
        arrival = metrics.clock_free_arrival(start, t.end)
    unknown = np.isnan(t.end).any(axis=0)
    waited = metrics.wait(start, arrival)
    late, last = _lateness(start, t.aligned)
    recoverable, both = _what_if(t, np.fmin.reduce(t.end - arrival, axis=-1))
    exposed = _known(metrics.exposed(t.ready, t.end), unknown)
    skew = np.fmax.reduce(start, axis=-1) - np.fmin.reduce(start, axis=-1)
    return StepFigures(
        collective=_known(metrics.union(start, t.end), unknown),
        wait=_known(metrics.union(start, np.broadcast_to(arrival, start.shape)), unknown),
        transfer=_known(metrics.union(np.broadcast_to(arrival, start.shape), t.end), unknown),
        exposed=exposed,
        exposed_wait=_known(metrics.exposed_wait(t.ready, start, np.fmin(arrival, t.end)), unknown),
        lateness=late,
        last=last,
        recoverable=recoverable,
        hidden=np.fmin.reduce(exposed, axis=-1),
        both=both,
        bucket_collective=_mean(t.end - start),
        bucket_wait=_mean(waited),
        bucket_transfer=_mean(np.maximum(t.end - arrival, 0.0)),
        bucket_skew=(skew if t.aligned else np.full_like(skew, np.nan)).T / US_PER_MS,
        bucket_last=_last_of(start).T if t.aligned else np.full(skew.T.shape, -1),
    )


def _known(values_us: Column, unknown: Column) -> Column:
    """Milliseconds; NaN for a rank of which some end is unknown (or that had joined)."""
    return np.where(unknown, np.nan, values_us / US_PER_MS)


def _mean(values_us: Column) -> Column:
    """(launches, n, ranks) to the mean over ranks as (n, launches), in milliseconds."""
    return np.asarray(metrics.mean(values_us).T / US_PER_MS)


def _last_of(start: Column) -> Column:
    """The rank that arrives last; -1 where fewer than two arrive, or several at the same microsecond."""
    latest = np.fmax.reduce(start, axis=-1)
    nobody = ((~np.isnan(start)).sum(axis=-1) < 2) | ((start == latest[..., None]).sum(axis=-1) > 1)
    return np.where(nobody, -1, np.where(np.isnan(start), -np.inf, start).argmax(axis=-1))


def _lateness(start: Column, aligned: bool) -> tuple[Column, Column]:
    """(n, ranks) lateness in ms and (n,) last arriver, both at the step's deciding all-reduce."""
    _, steps, ranks = start.shape
    if not aligned:
        return np.full((steps, ranks), np.nan), np.full(steps, -1)
    skew = np.fmax.reduce(start, axis=-1) - np.fmin.reduce(start, axis=-1)
    decisive = np.where(np.isnan(skew), -1.0, skew).argmax(axis=0)
    at = start[decisive, np.arange(steps)]
    return metrics.lateness(at) / US_PER_MS, _last_of(at)


def _what_if(t: Timing, transfer: Column) -> tuple[Column, Column]:
    """(n,) ms that a step loses to its last arrivals, and to these and to exposed communication together.

    Both compare the same little model with and without, so that its errors cancel: arrivals as they were
    or with the last one come at the second-latest time, then lanes and transfer times as measured.
    """
    steps = t.ready.shape[1]
    if not t.aligned:
        return np.full(steps, np.nan), np.full(steps, np.nan)
    transfer = np.maximum(transfer, 0.0)
    arrived = np.fmax.reduce(t.ready, axis=-1)
    sooner = metrics.second_latest(t.ready)
    as_it_was = metrics.replay(arrived, transfer, t.lanes)
    without = metrics.replay(sooner, transfer, t.lanes)
    computed = np.fmax.reduce(sooner, axis=0)
    return np.maximum(as_it_was - without, 0.0) / US_PER_MS, np.maximum(as_it_was - computed, 0.0) / US_PER_MS
