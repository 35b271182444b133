"""Compares the all-reduces of each bucket over the ranks: the figures of METRICS.md from bucket detail.

`launched` finds the buckets that every rank of a step launched, `timing` puts them on one clock side by side,
and `figures` has start, last arrival, wait and transfer. Many steps are taken at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.complete_steps import block_of
from ddptop.frames.statistics import mean, reduce_rows
from ddptop.protocol.messages import Flag
from ddptop.protocol.step_columns import FLAGS
from ddptop.protocol.step_words import CELL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.analysis.steps.complete_steps import CompleteStep, StepBlock
    from ddptop.frames.columns import Column, Mask

    Integers = NDArray[np.int64]

US_PER_MS = NS_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class Timing:
    """All-reduces of `n` steps that launched the same buckets in the same order. Microseconds.

    `ready` and `end` are (launches, n, ranks) on a common clock, counted from the step's first begin;
    a joined rank is NaN throughout. `aligned`: the ranks share a clock, or offsets put them on one.
    """

    bucket_numbers: tuple[int, ...]
    """Bucket number in the layout, per launch."""
    ready: Column
    end: Column
    lanes: int
    aligned: bool
    shift: Column
    """(n, ranks) each rank's own begin of the step on the common clock; 0 where there is none."""
    begin_ns: Integers | None = None
    """(n, ranks) the same on the clock of the rank's host; None: not needed, as there is one host."""

    @property
    def passes(self) -> Integers:
        """(launches,) the number of the backward pass that launched each, from 0."""
        return backward_passes(self.bucket_numbers)


class BucketArrivals(NamedTuple):
    """Start and last arrival of each all-reduce, (launches, n, ranks); the ends are in `Timing`."""

    start: Column
    arrival: Column


class Waits(NamedTuple):
    """(n, ranks) milliseconds, NaN where some end is unknown."""

    collective: Column
    """Length of the union of this rank's collectives."""
    wait: Column
    """Time in which some rank had not arrived at one of them or more."""
    transfer: Column
    """Time in which at least one of them transferred bytes. With several lanes it may overlap with `wait`."""
    exposed: Column
    """Time from the end of backward compute to the end of the last all-reduce, summed over the passes."""
    exposed_wait: Column
    """The part of `exposed` in which some rank had not arrived."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of `n` steps from their bucket detail, in milliseconds; NaN (last: -1) where unknown."""

    arrivals: BucketArrivals
    waits: Waits
    lateness: Column
    """(n, ranks) at the deciding all-reduce of a backward pass, the one with the largest arrival skew; like
    `arrival` and `skew` summed over the passes of the step."""
    arrival: Column
    """(n, ranks) time from the first rank's arrival there to this rank's."""
    spread: Column
    """(n, ranks) time from the first rank's end stamp to this rank's, summed over its all-reduces."""
    skew: Column
    """(n,) arrival skew at the deciding all-reduce."""
    last: Column
    """(n,) rank that came last there, of several passes the one with the largest sum; -1: none, clocks too
    inaccurate or a lone rank."""
    recoverable: Column
    """(n,) time saved if each last arrival had come at the second-latest time."""
    half: Column
    """(n,) time saved if the later half of the ranks had come with the latest of the others."""
    both: Column
    """(n,) time saved by `recoverable` and hidden communication together."""
    contradiction: Column
    """(n,) how long before the last ready stamp some rank stamped the end; positive: clocks are wrong."""
    bucket_collective: Column
    """(n, launches) mean over ranks; so are `bucket_wait`, `bucket_transfer` and `bucket_spread`."""
    bucket_wait: Column
    bucket_transfer: Column
    bucket_spread: Column
    bucket_skew: Column
    """(n, launches) arrival skew."""
    bucket_last: Column
    """(n, launches) the rank that came last; -1: none."""


def backward_passes(bucket_numbers: Sequence[int]) -> Integers:
    """(launches,) the number of the backward pass that launched each bucket of a step, from 0.

    A pass reduces each bucket once at most, so a bucket that comes again begins the next pass. Without
    `no_sync()`, gradient accumulation has one pass for each micro-step.
    """
    if len(set(bucket_numbers)) == len(bucket_numbers):  # as usual
        return np.zeros(len(bucket_numbers), np.int64)
    passes, seen, current = [], set[int](), 0
    for number in bucket_numbers:
        if number in seen:
            current += 1
            seen.clear()
        seen.add(number)
        passes.append(current)
    return np.array(passes, np.int64)


def _launches_of_passes(passes: Integers) -> list[slice | Integers]:
    """The launches of each pass."""
    last = int(passes.max(initial=0))
    if not last:  # as usual: nothing is copied
        return [slice(None)]
    return [np.flatnonzero(passes == number) for number in range(last + 1)]


def launched(block: StepBlock, steps: Integers) -> list[tuple[int, ...] | None]:
    """The bucket numbers that every rank launched in each of these steps, in order; None without complete
    detail.

    Detail is complete when all ranks with inputs sent it, with the same layout and order.
    """
    launches_of_steps: list[tuple[int, ...] | None] = [None] * len(steps)
    joined, rows = block.joined(steps), np.arange(len(steps))
    flags, layout = block.integers[FLAGS, steps], block.layout[steps]
    n_integers = (block.cells_at[1:] - block.cells_at[:-1]).reshape(block.loss.shape)[steps]
    first = joined.argmin(axis=1)  # a rank with inputs
    expected, expected_layout = n_integers[rows, first], layout[rows, first]
    agrees = (n_integers == expected[:, None]) & (layout == expected_layout[:, None])
    agrees &= flags & int(Flag.DETAIL) != 0
    complete = (agrees | joined).all(axis=1) & ~joined.all(axis=1)
    complete &= (expected > 0) & (expected % CELL == 0) & (expected_layout >= 0)
    for size in {*expected[complete].tolist()}:
        alike = np.flatnonzero(complete & (expected == size))
        begins = block.cells_begin[steps[alike]]
        begins = np.where(joined[alike], begins[np.arange(len(alike)), first[alike]][:, None], begins)
        bucket_numbers = block.cells[begins[..., None] + np.arange(0, size, CELL)]
        same = (bucket_numbers == bucket_numbers[:, :1]).all(axis=(1, 2))
        for index, launches in zip(alike[same].tolist(), bucket_numbers[same, 0].tolist(), strict=True):
            launches_of_steps[index] = tuple(launches)
    return launches_of_steps


def timing(
    steps: Sequence[CompleteStep],
    bucket_numbers: tuple[int, ...],
    *,
    lanes: int,
    aligned: bool,
    compared: Sequence[Comparison] = (),
) -> Timing:
    """Put the cells of `steps`, which all launched `bucket_numbers`, on one clock.

    `compared`: one per step, how the clocks of several hosts compare; empty: the ranks have one clock.
    """
    block, at = block_of(steps)
    joined, cells = block.joined(at), block.launches(at, len(bucket_numbers))
    ready, took = np.ascontiguousarray(cells[..., 1:].transpose(3, 2, 0, 1), np.float64)  # ranks side by side
    shift = np.zeros(joined.shape)
    begin_ns = None
    if aligned or compared:
        begin_ns = block.begin_ns(at)
    if aligned and begin_ns is not None:
        shift, clock_rate = begins_on_one_clock(begin_ns, compared)
        ready *= clock_rate
        ready += shift
        took *= clock_rate
    ready[:, joined] = np.nan
    end = ready + took
    end[took < 0] = np.nan
    return Timing(bucket_numbers, ready, end, lanes, aligned, shift, begin_ns if compared else None)


def begins_on_one_clock(begin_ns: Integers, compared: Sequence[Comparison]) -> tuple[Column, Column | float]:
    """The begins of n steps, (n, ranks) by the clock of each rank's host, on one clock.

    Returns (n, ranks) microseconds from the first begin of a step to each rank's, and by what durations on
    the rank's clock have to be multiplied. `compared`: one per step; empty: the ranks have one clock.
    """
    clock_rate: Column | float = 1.0
    if compared:
        begin_ns = np.stack(
            [
                comparison.to_collector(own_begin_ns)
                for comparison, own_begin_ns in zip(compared, begin_ns, strict=True)
            ]
        )
        clock_rate = 1.0 + np.stack([comparison.drift for comparison in compared])
    return (begin_ns - begin_ns.min(axis=1, keepdims=True)) / NS_PER_US, clock_rate


def without_common_clock(t: Timing) -> Timing:
    """`t` with each rank on its own time, as if the clocks could not be compared."""
    ready, end = t.ready - t.shift, t.end - t.shift
    return Timing(t.bucket_numbers, ready, end, t.lanes, False, np.zeros_like(t.shift))


def waits(ready: Column, arrivals: BucketArrivals, end: Column, passes: Integers) -> Waits:
    """Wait and transfer of each rank over all its launches. Launches of other ranks are NaN in its column.

    `passes`: (launches,) the backward pass of each launch. What is exposed is exposed in one pass: gradients
    of the next one cannot hide it, since each backward waits for its all-reduces.
    """
    start, arrival = arrivals
    unknown_end, unknown = np.isnan(end), np.zeros(ready.shape[1:], bool)
    if unknown_end.any():
        not_launched = np.isnan(ready)
        unknown = np.any(unknown_end & ~not_launched, axis=0) | not_launched.all(axis=0)
    return Waits(
        collective=_known_ms(formulas.union(start, end), unknown),
        wait=_known_ms(formulas.union(start, arrival), unknown),
        transfer=_known_ms(formulas.union(arrival, end), unknown),
        exposed=_known_ms(_sum_over_passes(formulas.exposed, passes, ready, end), unknown),
        exposed_wait=_known_ms(
            _sum_over_passes(formulas.exposed_wait, passes, ready, start, np.fmin(arrival, end)), unknown
        ),
    )


def _sum_over_passes(formula: Callable[..., Column], passes: Integers, *columns: Column) -> Column:
    """The sum of a formula of one backward pass, whose columns are (launches, ...)."""
    of_passes = [
        formula(*(column[launches] for column in columns)) for launches in _launches_of_passes(passes)
    ]
    return of_passes[0] if len(of_passes) == 1 else np.nansum(of_passes, axis=0)


def waits_of_groups(world: int, pieces: Sequence[tuple[Sequence[int], Timing, BucketArrivals]]) -> Waits:
    """`waits` of ranks that are in several process groups: the union of intervals, so nothing counts twice.

    `pieces`: the ranks of each group, and its all-reduces. Ranks in no group are NaN.
    """
    steps = pieces[0][1].ready.shape[1]
    launches = sum(len(t.bucket_numbers) for _, t, _ in pieces)
    ready, end, start, arrival = np.full((4, launches, steps, world), np.nan)
    first_launch = 0
    for ranks, t, arrivals in pieces:
        rows, columns = slice(first_launch, first_launch + len(t.bucket_numbers)), list(ranks)
        # On each rank's own time again, because each group counts from the first begin of its members.
        own = t.ready, t.end, arrivals.start, arrivals.arrival
        for whole, values in zip((ready, end, start, arrival), own, strict=True):
            whole[rows, :, columns] = values - t.shift
        first_launch += len(t.bucket_numbers)
    return waits(
        ready, BucketArrivals(start, arrival), end, _passes_of_groups([t.passes for _, t, _ in pieces])
    )


def _passes_of_groups(groups: Sequence[Integers]) -> Integers:
    """(launches,) the passes of several process groups, the launches of one after those of the other.

    All groups take part in the last pass: one that has fewer was in `no_sync()` before.
    """
    most = max(int(passes[-1]) for passes in groups)
    return np.concatenate([passes + most - int(passes[-1]) for passes in groups])


def figures(t: Timing) -> StepFigures:
    """Compare the ranks' arrivals at each all-reduce; all figures, vectorized over steps and ranks."""
    # A callback may stamp an end many ms late, but never early. So on a shared clock a lane is free on all
    # ranks from the first end stamp on, and arrivals differ by ready stamps alone.
    first_end = reduce_rows(np.fmin, t.end)
    start = formulas.starts(t.ready, first_end if t.aligned else t.end, t.lanes)
    if t.aligned:
        latest = reduce_rows(np.fmax, start)
        arrival = np.broadcast_to(formulas.last_arrival(latest, first_end)[..., None], start.shape)
        compared = _compare_ranks(t, start, latest, first_end)
    else:
        arrival = formulas.clock_free_arrival(start, t.end)
        compared = _nothing_compared(*start.shape)
    arrivals = BucketArrivals(start, arrival)
    return StepFigures(
        arrivals=arrivals,
        waits=waits(t.ready, arrivals, t.end, t.passes),
        bucket_collective=_mean_over_ranks_ms(t.end - start),
        bucket_wait=_mean_over_ranks_ms(formulas.wait(start, arrival)),
        bucket_transfer=_mean_over_ranks_ms(formulas.transfer(arrival, t.end)),
        **compared,
    )


def _compare_ranks(t: Timing, start: Column, latest: Column, first_end: Column) -> dict[str, Column]:
    """The fields of `StepFigures` that compare clocks. `latest` start, `first_end`: (launches, n)."""
    earliest = reduce_rows(np.fmin, start)
    is_latest, skew = start == latest[..., None], latest - earliest
    clear = (np.count_nonzero(is_latest, axis=-1) == 1) & (earliest < latest)
    who = np.where(clear, is_latest.argmax(axis=-1), -1)
    decided = _decide(start, earliest, skew, who, t.passes)
    last_ready, late_end = reduce_rows(np.fmax, t.ready), t.end - first_end[..., None]
    gains = _possible_gains(t, last_ready, first_end - formulas.last_arrival(latest, first_end))
    return {
        "lateness": decided.lateness / US_PER_MS,
        "arrival": decided.arrival / US_PER_MS,
        "spread": late_end.sum(axis=0) / US_PER_MS,
        "skew": decided.skew / US_PER_MS,
        "last": decided.last,
        "recoverable": gains.recoverable,
        "half": gains.half,
        "both": gains.both,
        "contradiction": np.fmax.reduce(last_ready - first_end, axis=0) / US_PER_MS,
        "bucket_spread": _mean_over_ranks_ms(late_end),
        "bucket_skew": skew.T / US_PER_MS,
        "bucket_last": who.T,
    }


def _nothing_compared(launches: int, steps: int, ranks: int) -> dict[str, Column]:
    """The fields of `_compare_ranks`, unknown: the ranks' clocks cannot be compared."""
    return {
        **dict.fromkeys(("lateness", "arrival", "spread"), np.full((steps, ranks), np.nan)),
        **dict.fromkeys(("skew", "recoverable", "half", "both", "contradiction"), np.full(steps, np.nan)),
        "last": np.full(steps, -1),
        **dict.fromkeys(("bucket_spread", "bucket_skew"), np.full((steps, launches), np.nan)),
        "bucket_last": np.full((steps, launches), -1),
    }


class _Decided(NamedTuple):
    """What the deciding all-reduces of the passes of n steps say: `StepFigures` of these names, in us."""

    lateness: Column
    arrival: Column
    skew: Column
    last: Column


def _decide(start: Column, earliest: Column, skew: Column, who: Column, passes: Integers) -> _Decided:
    """`earliest`, `skew` and `who` (the last arriver): (launches, n)."""
    steps, known_skew = np.arange(start.shape[1]), np.where(np.isnan(skew), -1.0, skew)
    of_passes = []
    for launches in _launches_of_passes(passes):
        decisive = np.arange(len(start))[launches][known_skew[launches].argmax(axis=0)], steps
        late = formulas.lateness(start[decisive])
        arrival = start[decisive] - earliest[decisive][:, None]
        of_passes.append(_Decided(late, arrival, skew[decisive], who[decisive]))
    if len(of_passes) == 1:
        return of_passes[0]
    late, arrival, skew_sum = (
        np.sum([getattr(decided, name) for decided in of_passes], axis=0)
        for name in ("lateness", "arrival", "skew")
    )
    most = np.fmax.reduce(arrival, axis=-1)
    is_last = arrival == most[:, None]
    clear = (np.count_nonzero(is_last, axis=-1) == 1) & (most > 0)
    return _Decided(late, arrival, skew_sum, np.where(clear, is_last.argmax(axis=-1), -1))


def _known_ms(values_us: Column, unknown: Mask) -> Column:
    """In milliseconds; NaN for a rank with an unknown end, or that had joined."""
    values_ms = values_us / US_PER_MS
    values_ms[unknown] = np.nan
    return values_ms


def _mean_over_ranks_ms(values_us: Column) -> Column:
    """(launches, n, ranks) to the mean over ranks as (n, launches), in milliseconds."""
    return np.asarray(mean(values_us).T / US_PER_MS)


class _Gains(NamedTuple):
    """(n,) ms that a step loses: to its last arrivals, to its later half, and to last arrivals and exposed
    communication together."""

    recoverable: Column
    half: Column
    both: Column


def _possible_gains(t: Timing, ready: Column, transfer: Column) -> _Gains:
    """The time that each step would have saved.

    Each figure is a difference of two results of one model (`formulas.replay`), so that its errors cancel:
    arrivals as they were or earlier, lanes and transfer times as measured. What a backward pass saves, all
    later ones begin earlier by. `ready`: (launches, n), the last of all ranks, `transfer`: likewise.
    """
    transfer, sooner = np.maximum(transfer, 0.0), formulas.second_latest(t.ready)
    # Of three ranks the later half is one.
    middle = formulas.middle_latest(t.ready) if t.ready.shape[-1] > 3 else sooner
    gains = np.zeros((3, ready.shape[1]))
    for launches in _launches_of_passes(t.passes):
        moved = transfer[launches]
        as_it_was = formulas.replay(ready[launches], moved, t.lanes)
        without = [formulas.replay(sooner[launches], moved, t.lanes)]
        without.append(without[0] if middle is sooner else formulas.replay(middle[launches], moved, t.lanes))
        without.append(np.fmax.reduce(sooner[launches], axis=0))
        gains += np.maximum(as_it_was - without, 0.0) / US_PER_MS
    return _Gains(*gains)
