"""Means over the samples of a run: ranks, phases, communication, buckets and stragglers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ddptop.analysis.ledger.rare import rare_straggler
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import number_or_none
from ddptop.frames.differences import differences
from ddptop.frames.figures import FIGURES
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.phrases import interval_error
from ddptop.frames.statistics import interpolated_quantile, median
from ddptop.frames.verdict import compares_own_times
from ddptop.report.content import (
    BucketSummary,
    Communication,
    HostSummary,
    RankSummary,
    StragglerSummary,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.figures import Figure
    from ddptop.frames.frame import BucketFigures, Frame, GroupFigures, LoggedEvent, Straggler
    from ddptop.frames.hosts import HostFigures
    from ddptop.protocol.vocabulary import StepPhase
    from ddptop.report.sampling import Sample
    from ddptop.report.step_table import StepTable

Voted = TypeVar("Voted", bound=Hashable)

PHASES: tuple[StepPhase, ...] = ("data", "forward", "backward", "optimizer", "other")


def weighted_mean(values: Sequence[float | None], weights: Column) -> float | None:
    """Mean over the known values; None where none is known."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    is_known = np.isfinite(numbers) & (weights > 0)
    total = float(weights[is_known].sum())
    return float((numbers[is_known] * weights[is_known]).sum()) / total if total > 0 else None


def share_pct(part: float | None, whole: float | None) -> float | None:
    """A part of a time in percent; None: one is not known, or the whole is 0."""
    return 100 * part / whole if part is not None and whole else None


def rank_summaries(samples: Sequence[Sample], weights: Column, last: Frame) -> tuple[RankSummary, ...]:
    """One summary for each rank of the group at the end of the run."""
    ranks, world = last.ranks, len(last.ranks.state)
    means = {
        figure.key: _or_none(_figure_mean(samples, weights, figure, world))
        for figure in FIGURES
        if figure.in_report
    }
    return tuple(
        RankSummary(
            rank=rank,
            host=ranks.host[rank],
            device=ranks.device[rank],
            state=ranks.state[rank],
            lost_records=None if n_lost is None else int(n_lost),
            means={key: values[rank] for key, values in means.items()},
        )
        for rank, n_lost in enumerate(_or_none(ranks.lost_records))
    )


def _or_none(values: Column) -> list[float | None]:
    """(n,) numbers; None where one is NaN or infinite."""
    return [value if isfinite(value) else None for value in values.tolist()]


def host_summaries(
    ranks: Sequence[RankSummary], samples: Sequence[Sample], last: Frame, events: Sequence[LoggedEvent]
) -> tuple[HostSummary, ...]:
    """One summary for each host of the group at the end of the run; none where there is one host."""
    of_hosts: dict[str, list[RankSummary]] = defaultdict(list)
    for rank in ranks:
        if rank.host:  # else its last process has not reported
            of_hosts[rank.host].append(rank)
    figures = {host.name: host for host in last.hosts}
    bounds: dict[str, float] = {}
    collector_host = next((host.name for host in last.hosts if host.collector), None)
    for sample in samples:
        bounds_ms = [(host.name, host.clock_bound_ms) for host in sample.frame.hosts]
        bounds_ms = bounds_ms or [
            (clock.host, clock.bound_ms) for clock in sample.frame.clocks if clock.host != collector_host
        ]
        for name, bound_ms in bounds_ms:
            if bound_ms is not None:
                bounds[name] = max(bounds.get(name, 0.0), bound_ms)
    silences = Counter(event.host for event in events if event.kind == "host_unreachable")
    return tuple(
        _host_summary(name, host_ranks, figures.get(name), bounds.get(name), silences[name])
        for name, host_ranks in of_hosts.items()
        if len(of_hosts) > 1
    )


def _host_summary(
    name: str,
    mine: Sequence[RankSummary],
    figures: HostFigures | None,
    bound_ms: float | None,
    silences: int,
) -> HostSummary:
    compared = [rank for rank in mine if rank.has_own_times]
    worst = max(compared, key=lambda rank: rank.late_ms or 0.0, default=None)
    steps = [rank.step_ms for rank in mine if rank.step_ms is not None]
    return HostSummary(
        name=name,
        state=figures.state if figures is not None else "",
        ranks=tuple(rank.rank for rank in mine),
        step_ms=sum(steps) / len(steps) if steps else None,
        worst_rank=None if worst is None else worst.rank,
        excess_ms=None if worst is None else worst.late_ms,
        clock_bound_ms=bound_ms,
        clock_drift_ppm=figures.clock_drift_ppm if figures is not None else None,
        silences=silences,
    )


def _figure_mean(samples: Sequence[Sample], weights: Column, figure: Figure, world: int) -> Column:
    """(world,) mean of a figure over the samples.

    An elastic restart may change the number of ranks: a rank counts in the samples that have it.
    """
    total, weight = np.zeros(world), np.zeros(world)
    for sample, steps in zip(samples, weights, strict=True):
        column = values_of_ranks(figure, sample.frame)[:world]
        is_known = np.isfinite(column)
        total[: len(column)][is_known] += steps * column[is_known]
        weight[: len(column)][is_known] += steps
    return np.asarray(np.divide(total, weight, out=np.full(world, np.nan), where=weight > 0))


def phases_pct(ranks: Sequence[RankSummary]) -> dict[str, float]:
    """Share of the step by phase, mean over ranks; empty where no step is known."""
    shares: dict[str, float] = {}
    for phase in PHASES:
        parts = [
            (phase_ms, rank.step_ms)
            for rank in ranks
            if rank.step_ms and (phase_ms := rank.means[f"{phase}_ms"]) is not None
        ]
        if parts:
            shares[phase] = 100 * sum(part for part, _ in parts) / sum(whole for _, whole in parts)
    return shares


def summarize_communication(
    samples: Sequence[Sample],
    weights: Column,
    table: StepTable,
    ranks: Sequence[RankSummary],
    uneven_pct: float | None,
) -> Communication:
    """The whole group's communication. `uneven_pct`: share of step time lost to straggler arrivals."""

    def mean_of_group(get: Callable[[GroupFigures], float | None]) -> float | None:
        return weighted_mean([get(sample.frame.group) for sample in samples], weights)

    total = float(table.steps.sum())
    step_ms = 1e3 * float(table.seconds.sum()) / total if total > 0 else None
    has_steps = len(table.step_ms) > 0
    longest = int(table.step_ms.argmax()) if has_steps else None
    exposed = mean_of_group(lambda group: group.exposed_comm_ms)
    waits = [wait for rank in ranks if (wait := rank.means["exposed_wait_ms"]) is not None]
    wait_ms = float(np.mean(waits)) if waits else None
    transfer_ms = None if exposed is None or wait_ms is None else max(0.0, exposed - wait_ms)
    without = _step_without_losses(samples, weights, step_ms, uneven_pct)
    return Communication(
        step_ms=step_ms,
        step_ms_p50=number_or_none(median(table.step_ms)) if has_steps else None,
        step_ms_p95=number_or_none(interpolated_quantile(table.step_ms, 0.95)) if has_steps else None,
        step_ms_max=None if longest is None else float(table.step_ms[longest]),
        step_of_max=None if longest is None else int(table.step[longest]),
        incarnation_of_max=0 if longest is None else int(table.incarnation[longest]),
        collective_ms=mean_of_group(lambda group: group.collective_ms),
        wait_ms=mean_of_group(lambda group: group.wait_ms),
        transfer_ms=mean_of_group(lambda group: group.transfer_ms),
        exposed_comm_ms=exposed,
        exposed_wait_ms=wait_ms,
        exposed_transfer_ms=transfer_ms,
        exposed_pct=share_pct(exposed, step_ms),
        exposed_transfer_pct=share_pct(transfer_ms, step_ms),
        overlap_pct=mean_of_group(lambda group: group.overlap_pct),
        busbw_gbps=mean_of_group(lambda group: group.busbw_gbps),
        no_straggler_ms=without.no_straggler_ms,
        no_exposed_comm_ms=without.no_exposed_comm_ms,
        both_ms=without.both_ms,
        bound_ms=mean_of_group(lambda group: group.bound_ms),
        all_reduces=mean_of_group(lambda group: group.all_reduces),
        wire_bytes=mean_of_group(lambda group: group.wire_bytes),
        late_no_sync=any(sample.frame.group.late_no_sync for sample in samples),
        no_straggler_low_ms=without.low_ms,
        no_straggler_high_ms=without.high_ms,
    )


class _StepWithoutLosses(NamedTuple):
    """How long the mean step would be without stragglers, without exposed communication, and without both, in
    ms. None: unknown."""

    no_straggler_ms: float | None
    low_ms: float | None
    """Low end of the 95 % interval of `no_straggler_ms`; below, the high end."""
    high_ms: float | None
    no_exposed_comm_ms: float | None
    both_ms: float | None


def _step_without_losses(
    samples: Sequence[Sample], weights: Column, step_ms: float | None, uneven_pct: float | None
) -> _StepWithoutLosses:
    """`step_ms`: the mean step; `uneven_pct`: the share of it that is lost to straggler arrivals."""
    if step_ms is None:
        return _StepWithoutLosses(None, None, None, None, None)
    groups = [
        (sample.frame.group, usual_ms, weight)
        for sample, weight in zip(samples, weights.tolist(), strict=True)
        if weight and (usual_ms := sample.frame.group.step_ms_p50)
    ]
    ms_weights = np.array([usual_ms * weight for _, usual_ms, weight in groups])

    def part_of_step(get: Callable[[GroupFigures], float | None]) -> float | None:
        """Mean of a time as a share of its sample's step, of the mean step."""
        times_ms = [(get(group), usual_ms) for group, usual_ms, _ in groups]
        share = weighted_mean([None if ms is None else ms / usual for ms, usual in times_ms], ms_weights)
        return None if share is None else step_ms * share

    no_straggler_ms = None if uneven_pct is None else step_ms * (1 - uneven_pct / 100)
    no_exposed_comm_ms = part_of_step(lambda group: group.no_exposed_comm_ms)
    both_ms = part_of_step(lambda group: group.both_ms)
    if both_ms is not None:
        both_ms = min(ms for ms in (both_ms, no_exposed_comm_ms, no_straggler_ms) if ms is not None)
    error_ms = part_of_step(_even_error)
    low_ms = high_ms = None
    if no_straggler_ms is not None and error_ms is not None:
        low_ms, high_ms = no_straggler_ms - error_ms, no_straggler_ms + error_ms
    return _StepWithoutLosses(no_straggler_ms, low_ms, high_ms, no_exposed_comm_ms, both_ms)


def _even_error(group: GroupFigures) -> float | None:
    """How far the step without skew may be wrong, in ms; None: unknown."""
    if group.no_straggler_ms is None:
        return None
    return interval_error(group.no_straggler_ms, group.no_straggler_low_ms, group.no_straggler_high_ms)


def bucket_summaries(samples: Sequence[Sample], weights: Column) -> tuple[BucketSummary, ...]:
    """The buckets of the layout that was in use for most steps; of the last layout if none was measured."""
    used: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        if any(bucket.transfer_ms is not None for bucket in sample.frame.buckets):
            # DDP builds its buckets anew after the first step: a layout of one step is not the run's.
            used[tuple((b.model, b.index, b.bytes, b.hook) for b in sample.frame.buckets)].append(i)
    if not used:
        newest = samples[-1].frame.buckets if samples else ()
        return tuple(unmeasured_bucket(bucket) for bucket in newest)
    places = max(used.values(), key=lambda places: float(weights[places].sum()))
    columns = zip(*(samples[i].frame.buckets for i in places), strict=True)
    return tuple(_summarize_bucket(list(column), weights[places]) for column in columns)


def unmeasured_bucket(bucket: BucketFigures) -> BucketSummary:
    """The summary of a bucket that is known from its layout alone."""
    return _summarize_bucket([bucket], np.ones(1))


def _summarize_bucket(seen: Sequence[BucketFigures], weights: Column) -> BucketSummary:
    """One bucket. Bandwidths are bytes over the mean transfer; the bus factor is that of the samples."""
    newest = seen[-1]
    transfer = weighted_mean([bucket.transfer_ms for bucket in seen], weights)
    algbw = busbw = None
    if newest.bytes is not None and transfer is not None:
        algbw = number_or_none(formulas.bandwidth_gbps(float(newest.bytes), np.float64(transfer)))
    factors = [b.busbw_gbps / b.algbw_gbps for b in seen if b.algbw_gbps and b.busbw_gbps is not None]
    if algbw is not None and factors:
        busbw = algbw * factors[-1]
    return BucketSummary(
        index=newest.index,
        model=newest.model,
        group=newest.group,
        bytes=newest.bytes,
        parameters=newest.parameters,
        dtype=newest.dtype,
        hook=newest.hook,
        collective_ms=weighted_mean([bucket.collective_ms for bucket in seen], weights),
        wait_ms=weighted_mean([bucket.wait_ms for bucket in seen], weights),
        transfer_ms=transfer,
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        skew_ms=weighted_mean([bucket.skew_ms for bucket in seen], weights),
        launches=weighted_mean([bucket.launches for bucket in seen], weights),
    )


def summarize_stragglers(
    samples: Sequence[Sample], table: StepTable, where: Indices, spans: int, last: Frame
) -> tuple[StragglerSummary, ...]:
    """Every rank that was flagged at any time, the most costly first. `where`: (steps,) the span of each."""
    total_s = float(table.seconds.sum())
    flagged = sorted(
        {
            late.rank
            for sample in samples
            if (late := sample.frame.straggler) is not None and late.rare is None
        }
    )
    summaries = [_summarize_straggler(rank, samples, table, last, total_s) for rank in flagged]
    known_ones = [summary for summary in summaries if summary is not None]
    rarely = _summarize_rarely_slow(last)
    if rarely is not None and not any(_says_as_much(summary, rarely) for summary in known_ones):
        known_ones.append(rarely)
    known_ones.sort(key=lambda summary: -summary.lost_s)
    return tuple(
        replace(summary, excess_ms=_excess_over_time(summary.rank, samples, table, where, spans))
        for summary in known_ones
    )


def _says_as_much(flagged: StragglerSummary, rarely: StragglerSummary) -> bool:
    """Whether a rank that the rules for a window flagged is the rarely slow one, in the same place and at
    about its cost: once is enough."""
    same = (flagged.rank, flagged.place or flagged.cause) == (rarely.rank, rarely.place or rarely.cause)
    return same and flagged.lost_s >= rarely.lost_s / 2


def _summarize_rarely_slow(last: Frame) -> StragglerSummary | None:
    """The rank that cost the most by few slow steps of the whole run, by the ledger; None: there is none."""
    sums = last.ledger if compares_own_times(last) else None
    late = None if sums is None else rare_straggler(sums, whole_run=True)
    if late is None or late.rare is None:
        return None
    run_s = late.rare.over_s
    host, device = _host_and_device(late.rank, last)
    return StragglerSummary(
        rank=late.rank,
        ranks=(late.rank,),
        cause=late.cause,
        pattern=late.pattern,
        lateness_ms=late.lateness_ms,
        bound_ms=0.0,
        last_pct=late.last_pct,
        cost_pct=late.cost_pct,
        lost_s=late.cost_pct / 100 * run_s,
        flagged_pct=late.cost_pct,
        first_step=late.rare.steps[0],
        last_step=late.rare.steps[-1],
        parts_ms={},
        relative_score=None,
        place=late.place,
        basis="every_step",
        rare=late.rare,
        host=host,
        device=device,
    )


class _FlaggedTime:
    """The steps for which a rank was flagged, and the samples that flag it."""

    def __init__(self, rank: int, samples: Sequence[Sample], table: StepTable) -> None:
        self.elements: Indices = np.flatnonzero(table.rank == rank)
        """Rows of the table of steps in which this rank is flagged."""
        counts = np.bincount(
            table.flagged_by[self.elements], weights=table.steps[self.elements], minlength=len(samples)
        )
        seen = [
            (sample.frame, sample.frame.straggler, float(count))
            for sample, count in zip(samples, counts, strict=True)
            if count and sample.frame.straggler is not None
        ]
        self.frames = [frame for frame, _, _ in seen]
        self.stragglers = [straggler for _, straggler, _ in seen]
        self.weights: Column = np.array([count for _, _, count in seen], np.float64)
        """(frames,) for how many steps each stands."""

    def mean(self, get: Callable[[Straggler], float | None]) -> float:
        """Mean of a figure of the straggler; 0: not known."""
        return weighted_mean([get(straggler) for straggler in self.stragglers], self.weights) or 0.0

    def group_mean(self, get: Callable[[GroupFigures], float | None]) -> float | None:
        """Mean of a figure of the group."""
        return weighted_mean([get(frame.group) for frame in self.frames], self.weights)

    def most_costly(self, get: Callable[[Straggler], Voted]) -> Voted:
        """The value of the straggler that has cost most, which need not be that of most steps."""
        votes: dict[Voted, float] = defaultdict(float)
        for straggler, weight in zip(self.stragglers, self.weights.tolist(), strict=True):
            votes[get(straggler)] += weight * straggler.cost_pct
        return max(votes, key=lambda value: votes[value])


def _summarize_straggler(
    rank: int, samples: Sequence[Sample], table: StepTable, last: Frame, total_s: float
) -> StragglerSummary | None:
    flagged = _FlaggedTime(rank, samples, table)
    if not len(flagged.elements):
        return None
    first, newest = int(flagged.elements[0]), int(flagged.elements[-1])
    flagged_s = float(table.seconds[flagged.elements].sum())
    lost_s = float(table.lost_s(table.cost)[flagged.elements].sum())
    cause = flagged.most_costly(lambda straggler: straggler.cause)
    host, device = _host_and_device(rank, last)
    scores = [_value_of_rank(frame.ranks.relative_score, rank) for frame in flagged.frames]
    return StragglerSummary(
        rank=rank,
        ranks=flagged.most_costly(lambda straggler: straggler.ranks or (straggler.rank,)),
        cause=cause,
        pattern=flagged.most_costly(lambda straggler: straggler.pattern),
        lateness_ms=flagged.mean(lambda straggler: straggler.lateness_ms),
        bound_ms=flagged.mean(lambda straggler: straggler.bound_ms),
        last_pct=flagged.mean(lambda straggler: straggler.last_pct),
        cost_pct=100 * lost_s / flagged_s if flagged_s else 0.0,
        lost_s=lost_s,
        flagged_pct=100 * flagged_s / total_s if total_s > 0 else 0.0,
        first_step=_first_step(table.step, first),
        last_step=int(table.step[newest]),
        incarnation=int(table.incarnation[first]),
        last_incarnation=int(table.incarnation[newest]),
        parts_ms=_mean_ms_by_phase(flagged),
        relative_score=weighted_mean(scores, flagged.weights),
        place=flagged.most_costly(lambda straggler: straggler.place if straggler.cause == cause else None),
        basis=flagged.most_costly(lambda straggler: straggler.basis),
        group=flagged.most_costly(lambda straggler: straggler.group),
        disagrees=flagged.mean(lambda straggler: float(straggler.disagrees)) > 0.5,
        step_ms=flagged.group_mean(lambda group: group.step_ms_p50),
        step_without_ms=flagged.group_mean(lambda group: group.no_straggler_ms),
        step_without_low_ms=flagged.group_mean(lambda group: group.no_straggler_low_ms),
        step_without_high_ms=flagged.group_mean(lambda group: group.no_straggler_high_ms),
        differs=_differences_of_rank(rank, flagged.frames[-1]) if flagged.frames else (),
        host=host,
        device=device,
    )


def _mean_ms_by_phase(flagged: _FlaggedTime) -> dict[str, float]:
    """How much longer than the others it takes, by phase."""

    def mean_of(phase: StepPhase) -> float:
        return flagged.mean(lambda straggler: straggler.parts_ms.get(phase))

    seen = {phase for straggler in flagged.stragglers for phase in straggler.parts_ms}
    return {phase: mean_of(phase) for phase in PHASES if phase in seen}


def _host_and_device(rank: int, last: Frame) -> tuple[str, str]:
    """Empty texts: the group does not have the rank any more."""
    ranks = last.ranks
    return (ranks.host[rank], ranks.device[rank]) if rank < len(ranks.host) else ("", "")


def _excess_over_time(
    rank: int, samples: Sequence[Sample], table: StepTable, where: Indices, spans: int
) -> tuple[float | None, ...]:
    """Mean over the steps of each span, from the samples that their cost is from; None where it is not known.
    Empty: in none of them."""
    of_samples = [_value_of_rank(sample.frame.ranks.excess_ms, rank) for sample in samples]
    excess = np.array([np.nan if ms is None else ms for ms in of_samples])[table.flagged_by]
    is_known = np.isfinite(excess)
    if not is_known.any():
        return ()
    span, weight = where[is_known], table.steps[is_known]  # a row stands for so many steps
    steps = np.bincount(span, weight, spans)
    total = np.bincount(span, weight * excess[is_known], spans)
    return tuple(_or_none(np.divide(total, steps, out=np.full(spans, np.nan), where=steps > 0)))


def _differences_of_rank(rank: int, frame: Frame) -> tuple[str, ...]:
    straggler = frame.straggler
    reason = straggler.waits_for if straggler is not None and straggler.rank == rank else ""
    differs = differences(frame, rank) if rank < len(frame.ranks.state) else ()
    return tuple(filter(None, (reason, *differs)))


def _first_step(step: Column, place: int) -> int:
    """The first of the steps that this element of the table represents."""
    before = int(step[place - 1]) if place else -1
    # A restart counts its steps from 0 again.
    return before + 1 if before < step[place] else 0


def _value_of_rank(column: Column, rank: int) -> float | None:
    return number_or_none(column[rank]) if rank < len(column) else None
