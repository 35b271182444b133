"""Evaluates detailed steps: from the reported times of every bucket to the rings of a `DetailWindow`.

Consecutive steps of one kind are evaluated together. They are added in chunks, each up to the next evaluation
of the flag rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import bucket_times, formulas
from ddptop.analysis.steps.clock_check import NO_HOST, contradicting_hosts
from ddptop.analysis.steps.kept import Kind
from ddptop.analysis.steps.windows import (
    BUCKET_COLUMNS,
    DETAIL_SCALARS,
    DETAILED_BACK,
    WAITS,
    DetailWindow,
)
from ddptop.analysis.straggler.arrival_rules import EVERY, EVERY_STEPS
from ddptop.frames.statistics import mean, median, reduce_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddptop.analysis.steps.bucket_times import StepFigures, Timing, Waits
    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.analysis.steps.kept import DividedStep
    from ddptop.analysis.steps.windows import ScopeWindow
    from ddptop.frames.columns import Column, Indices

BUSBW, BUSBW_FREE = DETAIL_SCALARS.index("busbw"), DETAIL_SCALARS.index("free_busbw")


class GroupBuckets(NamedTuple):
    """One process group in n detailed steps, and the values for its rings: (columns, n, ...)."""

    window: ScopeWindow
    timing: Timing
    figures: StepFigures
    free: StepFigures | None
    """The figures without comparing clocks; None where all ranks are on one host."""
    ranks: Column
    group: Column
    bucket: Column


class DetailFigures(NamedTuple):
    """n detailed steps, and the values for the rings of all ranks: (columns, n, ...)."""

    groups: tuple[GroupBuckets, ...]
    waits: Waits
    free: Waits
    """The waits without comparing clocks, where there are several hosts."""
    ranks: Column
    group: Column

    def history(self, first: int, stop: int, *, clock_free: bool) -> tuple[Column, Column, Column]:
        """(stop - first,) wait and transfer of the steps, means over ranks in ms, and busbw."""
        waits = self.free if clock_free else self.waits
        wait, exposed = waits.exposed_wait[first:stop], waits.exposed[first:stop]
        busbw = self.group[BUSBW_FREE if clock_free else BUSBW, first:stop]
        return mean(wait), mean(exposed - wait), busbw


class EvaluatedDetail(NamedTuple):
    """Consecutive steps of a batch with bucket detail."""

    step_indices: list[int]
    """Their indices in the batch."""
    figures: DetailFigures
    first: int
    """Place of the first of them in `figures`."""
    clock_free: bool
    """Whether their wait and transfer are the clock-free fallback."""


def kinds_of_steps(block: StepBlock, steps: Mapping[int, DividedStep]) -> dict[int, Kind]:
    """The kinds of those steps in which a process group has bucket detail of all its ranks; `steps`: by their
    numbers in the block."""
    whole = [number for number, step in steps.items() if step.of_parts == (step.step,)]
    launched = dict(zip(whole, bucket_times.launched(block, np.array(whole, np.int64)), strict=True))
    of_whole: dict[tuple[int, tuple[int, ...] | None], Kind] = {}  # mostly one, of thousands of steps
    kinds: dict[int, Kind] = {}
    for number, step in steps.items():
        if number not in launched:
            kinds[number] = _kind_of(
                step, [bucket_times.launched(part.block, np.array([part.at]))[0] for part in step.of_parts]
            )
            continue
        key = id(step.division), launched[number]
        if key not in of_whole:
            of_whole[key] = _kind_of(step, [launched[number]])
        kinds[number] = of_whole[key]
    return {number: kind for number, kind in kinds.items() if kind.launched}


def _kind_of(step: DividedStep, launched: Sequence[tuple[int, ...] | None]) -> Kind:
    """The kind of a step; `launched`: of each part, as returned by `bucket_times.launched`."""
    parts = enumerate(zip(step.parts, launched, step.compared, strict=True))
    return Kind(
        step.division.version,
        tuple(
            [
                (index, numbers, part.layout, id(part.buckets), compared.comparable)
                for index, (part, numbers, compared) in parts
                if numbers is not None and min(numbers) >= 0 and max(numbers) < len(part.buckets)
            ]
        ),
    )


def needs_new_window(window: DetailWindow | None, step: DividedStep, kind: Kind) -> bool:
    """Whether layouts or process groups have changed, so that a new window begins."""
    if window is None or kind.version != window.version:
        return True
    parts = (step.parts[i] for i, *_ in kind.launched)
    return any(p.scope in window.scopes and window.scopes[p.scope].layout != p.layout for p in parts)


def evaluate_detail(
    window: DetailWindow,
    steps: Sequence[DividedStep],
    kind: Kind,
    backend: str,
    columns: Column,
    points: Column,
    bare: Column | None = None,
) -> DetailFigures:
    """Evaluate n consecutive steps of one kind.

    `columns`: (wall and PHASES, n, ranks) in ms; `points`: (n,) history points; `backend`: of process groups
    that did not report theirs; `bare`: (n, ranks) exposed communication of steps with several backward
    passes, as the ranks' last gradients have it, NaN where that is not known.
    """
    world = columns.shape[-1]
    groups = [
        _evaluate_group(window, steps, kind, number, backend, columns[0])
        for number in range(len(kind.launched))
    ]
    if len(groups) == 1 and len(groups[0].window.scope.ranks) == world:
        waits = groups[0].figures.waits
        free = None if groups[0].free is None else groups[0].free.waits
    else:
        united = [(group.window.scope.ranks, group.timing, group.figures.arrivals) for group in groups]
        waits, free = bucket_times.waits_of_groups(world, united), None
        if any(group.free is not None for group in groups):
            apart = [
                (group.window.scope.ranks, group.timing, (group.free or group.figures).arrivals)
                for group in groups
            ]
            free = bucket_times.waits_of_groups(world, apart)
    return figures_of_detail(window, groups, waits, free, columns, points, bare)


def _evaluate_group(
    window: DetailWindow, steps: Sequence[DividedStep], kind: Kind, at: int, backend: str, wall: Column
) -> GroupBuckets:
    i, numbers, *_ = kind.launched[at]
    part, compared = steps[0].parts[i], steps[0].compared[i]
    several = compared.several_hosts
    scope = window.scope(part.scope, part.layout, part.buckets, several_hosts=several)
    comparisons = [step.compared[i] for step in steps]
    timing = bucket_times.timing(
        [step.of_parts[i] for step in steps],
        numbers,
        lanes=formulas.lanes_of(part.backend or backend),
        aligned=compared.comparable,
        compared=comparisons if several else (),
    )
    step_figures = bucket_times.figures(timing)
    free = None
    if several:
        free = (
            bucket_times.figures(bucket_times.without_common_clock(timing))
            if compared.comparable
            else step_figures
        )
    own_wall = wall if len(scope.members) == wall.shape[-1] else wall[:, scope.members]
    return figures_of_group(scope, timing, step_figures, free, own_wall, comparisons)


def figures_of_group(
    window: ScopeWindow,
    timing: Timing,
    figures: StepFigures,
    free: StepFigures | None,
    wall: Column,
    compared: Sequence[Comparison],
) -> GroupBuckets:
    """The values of n steps for the rings of one process group.

    `free`: the figures without comparing clocks; None where all ranks are on one host. `wall`: (n, ranks of
    the group); `compared`: one per step.
    """
    bound = _bounds(timing, compared)
    late_end = np.stack([comparison.end_ms for comparison in compared])
    summed_bound = bound * (1 + timing.passes[-1])  # arrivals are sums over the backward passes
    ranks = np.stack([figures.lateness, figures.arrival, summed_bound, np.maximum(figures.spread, late_end)])
    scalars = [median(wall), figures.last, figures.recoverable, figures.half, figures.skew]
    wrong = np.full((2, len(figures.last)), NO_HOST)
    suspected = figures.contradiction > bound.min(axis=1)  # usually in no step
    if timing.aligned and suspected.any():
        ready, end = timing.ready[:, suspected], timing.end[:, suspected]
        wrong[:, suspected] = contradicting_hosts(ready, end, compared[0].host, bound[suspected])
    group = np.stack([*scalars, figures.contradiction, *wrong])
    bucket = _per_bucket(window, timing.bucket_numbers, figures, free)
    spread = BUCKET_COLUMNS.index("spread")
    bucket[spread] = np.maximum(bucket[spread], late_end.mean(axis=-1)[:, None])
    return GroupBuckets(window, timing, figures, free, ranks, group, bucket)


def _bounds(timing: Timing, compared: Sequence[Comparison]) -> Column:
    """(n, ranks) bounds of the arrivals; `compared`: one per step."""
    if timing.begin_ns is not None:
        return np.stack(
            [comparison.bound_ms(t_ns) for comparison, t_ns in zip(compared, timing.begin_ns, strict=True)]
        )
    any_time_ns = np.zeros(timing.shift.shape[1], np.int64)  # one clock: its bound is the same at all times
    bounds = {
        id(comparison): comparison.bound_ms(any_time_ns)
        for comparison in {id(comparison): comparison for comparison in compared}.values()
    }
    return np.stack([bounds[id(comparison)] for comparison in compared])


def _per_bucket(
    window: ScopeWindow, bucket_numbers: tuple[int, ...], figures: StepFigures, free: StepFigures | None
) -> Column:
    """(columns, n, buckets). Of a bucket launched several times in a step: means over its all-reduces."""
    values = np.full((len(BUCKET_COLUMNS), len(figures.last), len(window.buckets)), np.nan)
    launches: dict[int, list[int]] = {}
    for launch, number in enumerate(bucket_numbers):
        launches.setdefault(number, []).append(launch)
    for i, name in enumerate(BUCKET_COLUMNS):
        if name == "launches":
            values[i][:, list(launches)] = [len(of_bucket) for of_bucket in launches.values()]
            continue
        source = figures
        if name.startswith("free_"):
            if free is None:
                continue
            source, name = free, name.removeprefix("free_")
        of_launches: Column = getattr(source, f"bucket_{name}")
        values[i][:, list(bucket_numbers)] = of_launches  # of a rank that came last the last one
        for number, of_bucket in launches.items() if name != "last" else ():
            if len(of_bucket) > 1:
                values[i][:, number] = of_launches[:, of_bucket].mean(axis=1)
    return values


def figures_of_detail(
    window: DetailWindow,
    groups: Sequence[GroupBuckets],
    waits: Waits,
    free: Waits | None,
    columns: Column,
    points: Column,
    bare: Column | None = None,
) -> DetailFigures:
    """The values of n steps for the rings of all ranks.

    `points`: (n,) history points; `columns`: (wall and PHASES, n, ranks); `free`: the waits
    without comparing clocks; `bare`: as of `evaluate_detail`.
    """
    kept = [getattr(waits, name) for name in WAITS]
    computed = columns[3] - waits.exposed
    phases = [columns[1], columns[2], computed, columns[4], columns[5]]
    ranks = [*kept, columns[0] - waits.exposed_wait, *phases]
    free_waits = waits if free is None else free
    if window.several_hosts:
        ranks += [
            free_waits.wait,
            free_waits.transfer,
            free_waits.exposed_wait,
            columns[0] - free_waits.exposed_wait,
        ]
    busbw = free_busbw = _busbw([(group_buckets, group_buckets.figures) for group_buckets in groups])
    if free is not None:
        free_busbw = _busbw(
            [(group_buckets, group_buckets.free or group_buckets.figures) for group_buckets in groups]
        )
    scalars = [points, median(columns[0]), overlap_pct(waits, bare), busbw, free_busbw]
    recoverable = _gained(
        columns[0], [(group_buckets.window, group_buckets.figures.recoverable) for group_buckets in groups]
    )
    hidden = reduce_rows(np.fmin, waits.exposed)
    gain_of_both = _gained(
        columns[0], [(group_buckets.window, group_buckets.figures.both) for group_buckets in groups]
    )
    group = np.stack([*scalars, recoverable, hidden, gain_of_both])
    return DetailFigures(tuple(groups), waits, free_waits, np.stack(ranks), group)


def _gained(wall: Column, groups: Sequence[tuple[ScopeWindow, Column]]) -> Column:
    """(n,) decrease of the median over ranks of the step times `wall` (n, ranks) if the steps of each process
    group were shorter by its gain (n,)."""
    less = np.zeros_like(wall)
    for window, gain in groups:
        less[:, window.members] = np.maximum(less[:, window.members], gain[:, None])
    return median(wall) - median(wall - less)


def overlap_pct(waits: Waits, bare: Column | None) -> Column:
    """(n,) 1 - exposed / union of all collectives, over all ranks, in percent. `bare`: as of
    `evaluate_detail`, where more is exposed than the buckets show."""
    exposed = waits.exposed
    if bare is not None:
        exposed = np.fmin(np.fmax(exposed, bare), waits.collective)
    busy, not_hidden = np.nansum(waits.collective, axis=-1), np.nansum(exposed, axis=-1)
    hidden: Column = 100 * (1 - np.divide(not_hidden, busy, out=np.full_like(busy, np.nan), where=busy > 0))
    return hidden


def _busbw(groups: Sequence[tuple[GroupBuckets, StepFigures]]) -> Column:
    """(n,) busbw: bytes of the step over its transfer time (mean over ranks), times the bus factor; mean over
    process groups."""
    busbw_of_groups = []
    for group, step_figures in groups:
        sizes = [group.window.buckets[number].wire_bytes for number in group.timing.bucket_numbers]
        total = sum(float("nan") if size is None else size for size in sizes)
        transfer = mean(step_figures.waits.transfer)
        busbw_of_groups.append(
            formulas.bandwidth_gbps(np.full_like(transfer, total), transfer) * group.window.factor
        )
    return mean(np.stack(busbw_of_groups, axis=-1))


class AddedDetail(NamedTuple):
    """Some of the detailed steps that are evaluated together, from `first` to before `stop`."""

    first: int
    stop: int
    clock_free: bool
    """`DetailWindow.clock_free` before they were added."""
    is_judged: bool
    """Whether the flag rules are to be evaluated after the last of them."""


def add_detail(
    window: DetailWindow, figures: DetailFigures, points: Column, judged: Indices
) -> Iterator[AddedDetail]:
    """Add n evaluated steps to the window. Gives those that were added up to each evaluation of the rules.

    `points`: (n,) history points; `judged`: (k,) after which of the steps the rules are to be evaluated."""
    n_steps, first = len(points), 0
    ends = {*(judged + 1).tolist(), n_steps}
    ends.update(range(DETAILED_BACK - window.count % DETAILED_BACK, n_steps, DETAILED_BACK))
    for stop in sorted(ends):
        chunk, clock_free = slice(first, stop), window.clock_free
        scopes = {
            group.window.scope: (group.ranks[:, chunk], group.group[:, chunk], group.bucket[:, chunk])
            for group in figures.groups
        }
        window.add(figures.ranks[:, chunk], figures.group[:, chunk], scopes)
        is_judged = stop - 1 in judged
        if is_judged and any(scope.several_hosts for scope in window.scopes.values()):
            slots = window.evaluated(int(points[stop - 1]) + 1)
            for scope in window.scopes.values():
                scope.compare_clocks(slots)
        yield AddedDetail(first, stop, clock_free, is_judged)
        first = stop


def rules_are_due(steps: Column, before: int) -> Indices:
    """(k,) after which of n detailed steps the rules are evaluated; `before`: the detailed step before.

    This depends on step numbers, not on how many steps were read, so that a replay from any position
    evaluates at the same steps.
    """
    previous = np.concatenate([[before], steps[:-1]])
    every = steps // np.maximum(steps - previous, 1) % EVERY == EVERY - 1
    return np.flatnonzero(every | (steps // EVERY_STEPS > previous // EVERY_STEPS))
