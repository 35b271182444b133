"""Means over the looks of a run: ranks, phases, communication, buckets and the ranks that were named."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import known
from ddptop.report.content import BucketSummary, Communication, Culprit, RankSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import BucketFigures, Frame, Group, Straggler
    from ddptop.report.points import Points
    from ddptop.report.walk import Look

RANK_COLUMNS = (
    *("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"),
    *("wait_ms", "exposed_wait_ms", "exposed_comm_ms", "lateness_ms", "bound_ms", "last_pct"),
    "relative_score",
)

PHASES = ("data", "forward", "backward", "optimizer", "other")


def weighted(values: Sequence[float | None], weights: Column) -> float | None:
    """Mean of what is known; None where nothing is."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    told = np.isfinite(numbers) & (weights > 0)
    total = float(weights[told].sum())
    return float((numbers[told] * weights[told]).sum()) / total if total > 0 else None


def rank_summaries(looks: Sequence[Look], weights: Column, last: Frame) -> tuple[RankSummary, ...]:
    """One for each rank of the group as it is at the end."""
    world = len(last.ranks.state)
    means = {name: _column_mean(looks, weights, name, world) for name in RANK_COLUMNS}
    ranks = last.ranks
    return tuple(
        RankSummary(
            rank=rank,
            host=ranks.host[rank],
            device=ranks.device[rank],
            state=ranks.state[rank],
            **{name: known(means[name][rank]) for name in RANK_COLUMNS},
            lost_records=None if np.isnan(ranks.lost_records[rank]) else int(ranks.lost_records[rank]),
        )
        for rank in range(world)
    )


def _column_mean(looks: Sequence[Look], weights: Column, name: str, world: int) -> Column:
    """(world,) a restarted run may have had other ranks before: those count where they exist."""
    total, weight = np.zeros(world), np.zeros(world)
    for look, own in zip(looks, weights, strict=True):
        column = getattr(look.frame.ranks, name)[:world]
        told = np.isfinite(column)
        total[: len(column)][told] += own * column[told]
        weight[: len(column)][told] += own
    return np.asarray(np.divide(total, weight, out=np.full(world, np.nan), where=weight > 0))


def phases_pct(ranks: Sequence[RankSummary]) -> dict[str, float]:
    """Share of the step by phase, mean over ranks; empty where no step is known."""
    shares = {}
    for phase in PHASES:
        parts = [
            (getattr(rank, f"{phase}_ms"), rank.step_ms)
            for rank in ranks
            if rank.step_ms and getattr(rank, f"{phase}_ms") is not None
        ]
        if parts:
            shares[phase] = 100 * sum(part for part, _ in parts) / sum(whole for _, whole in parts)
    return shares


def communication(
    looks: Sequence[Look],
    weights: Column,
    found: Points,
    ranks: Sequence[RankSummary],
    uneven_pct: float | None,
) -> Communication:
    """Of the whole group. `uneven_pct`: what late arrivals cost, of the time in steps."""

    def mean(get: Callable[[Group], float | None]) -> float | None:
        return weighted([get(look.frame.group) for look in looks], weights)

    def remains(get: Callable[[Group], float | None]) -> float | None:
        """Mean share of the step that a what-if leaves of it."""
        shares = [
            None if (part := get(look.frame.group)) is None else part / look.frame.group.step_ms_p50
            for look in looks
            if look.frame.group.step_ms_p50
        ]
        known_weights = np.array([look.frame.group.step_ms_p50 or 0.0 for look in looks]) * weights
        return weighted(shares, known_weights[known_weights > 0]) if len(shares) else None

    total = float(found.steps.sum())
    step_ms = 1e3 * float(found.seconds.sum()) / total if total > 0 else None
    exposed = mean(lambda group: group.exposed_comm_ms)
    longest = int(found.step_ms.argmax()) if len(found.step_ms) else None
    waits = [rank.exposed_wait_ms for rank in ranks if rank.exposed_wait_ms is not None]
    waited = float(np.mean(waits)) if waits else None
    moving = None if exposed is None or waited is None else max(0.0, exposed - waited)
    no_straggler = None if uneven_pct is None or step_ms is None else step_ms * (1 - uneven_pct / 100)
    hidden, both = (
        None if step_ms is None or (share := remains(get)) is None else step_ms * share
        for get in (lambda group: group.no_exposed_comm_ms, lambda group: group.both_ms)
    )
    both = None if both is None else min(ms for ms in (both, hidden, no_straggler) if ms is not None)
    return Communication(
        step_ms=step_ms,
        step_ms_p50=known(np.median(found.step_ms)) if len(found.step_ms) else None,
        step_ms_p95=known(np.quantile(found.step_ms, 0.95)) if len(found.step_ms) else None,
        step_ms_max=None if longest is None else float(found.step_ms[longest]),
        step_of_max=None if longest is None else int(found.step[longest]),
        collective_ms=mean(lambda group: group.collective_ms),
        wait_ms=mean(lambda group: group.wait_ms),
        transfer_ms=mean(lambda group: group.transfer_ms),
        exposed_comm_ms=exposed,
        exposed_wait_ms=waited,
        exposed_transfer_ms=moving,
        exposed_pct=100 * exposed / step_ms if exposed is not None and step_ms else None,
        exposed_transfer_pct=100 * moving / step_ms if moving is not None and step_ms else None,
        overlap_pct=mean(lambda group: group.overlap_pct),
        busbw_gbps=mean(lambda group: group.busbw_gbps),
        no_straggler_ms=no_straggler,
        no_exposed_comm_ms=hidden,
        both_ms=both,
        bound_ms=mean(lambda group: group.bound_ms),
    )


def bucket_summaries(looks: Sequence[Look], weights: Column) -> tuple[BucketSummary, ...]:
    """Of the layout that was in use for most steps; of the last one told where none was measured."""
    used: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, look in enumerate(looks):
        if any(bucket.transfer_ms is not None for bucket in look.frame.buckets):
            used[tuple((b.model, b.index, b.bytes, b.hook) for b in look.frame.buckets)].append(i)
    if not used:
        told = looks[-1].frame.buckets if looks else ()
        return tuple(one_bucket(bucket) for bucket in told)
    places = max(used.values(), key=lambda places: float(weights[places].sum()))
    columns = zip(*(looks[i].frame.buckets for i in places), strict=True)
    return tuple(_bucket(list(column), weights[places]) for column in columns)


def one_bucket(bucket: BucketFigures) -> BucketSummary:
    """Of a single look."""
    return _bucket([bucket], np.ones(1))


def _bucket(seen: Sequence[BucketFigures], weights: Column) -> BucketSummary:
    """Bandwidths are bytes over the mean transfer; the bus factor is the figures' own."""
    newest = seen[-1]
    transfer = weighted([bucket.transfer_ms for bucket in seen], weights)
    algbw = busbw = None
    if newest.bytes is not None and transfer is not None:
        algbw = known(formulas.bandwidth_gbps(float(newest.bytes), np.float64(transfer)))
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
        collective_ms=weighted([bucket.collective_ms for bucket in seen], weights),
        wait_ms=weighted([bucket.wait_ms for bucket in seen], weights),
        transfer_ms=transfer,
        algbw_gbps=algbw,
        busbw_gbps=busbw,
        skew_ms=weighted([bucket.skew_ms for bucket in seen], weights),
    )


def culprits(looks: Sequence[Look], found: Points, last: Frame) -> tuple[Culprit, ...]:
    """Every rank that was named at some time, the dearest first."""
    total_s = float(found.seconds.sum())
    named = sorted({look.frame.straggler.rank for look in looks if look.frame.straggler is not None})
    ranks = [_culprit(rank, looks, found, last, total_s) for rank in named]
    return tuple(sorted((one for one in ranks if one is not None), key=lambda one: -one.lost_s))


def _culprit(rank: int, looks: Sequence[Look], found: Points, last: Frame, total_s: float) -> Culprit | None:
    at = np.flatnonzero(found.rank == rank)
    if not len(at):
        return None
    counts = np.bincount(found.judge[at], weights=found.steps[at], minlength=len(looks))
    weights = np.asarray(counts, np.float64)
    places = [i for i in np.flatnonzero(weights).tolist() if looks[i].frame.straggler is not None]
    seen = [(late, float(weights[i])) for i in places if (late := looks[i].frame.straggler) is not None]

    def mean(get: Callable[[Straggler], float | None]) -> float:
        return weighted([get(late) for late, _ in seen], np.array([own for _, own in seen])) or 0.0

    def usual(get: Callable[[Straggler], str | tuple[int, ...] | None]) -> object:
        votes: dict[object, float] = defaultdict(float)
        for late, own in seen:
            votes[get(late)] += own * late.cost_pct
        return max(votes, key=lambda one: votes[one])

    phases = {phase for late, _ in seen for phase in late.parts_ms}
    scores = [_at(looks[i].frame.ranks.relative_score, rank) for i in places]
    cause, pattern = usual(lambda late: late.cause), usual(lambda late: late.pattern)
    together = usual(lambda late: late.ranks or (late.rank,))
    named_s, lost_s = float(found.seconds[at].sum()), float(found.lost_s(found.cost)[at].sum())
    return Culprit(
        rank=rank,
        ranks=together if isinstance(together, tuple) else (rank,),
        cause=cause if isinstance(cause, str) else None,
        pattern=pattern if isinstance(pattern, str) else None,
        lateness_ms=mean(lambda late: late.lateness_ms),
        bound_ms=mean(lambda late: late.bound_ms),
        last_pct=mean(lambda late: late.last_pct),
        cost_pct=100 * lost_s / named_s if named_s else 0.0,
        lost_s=lost_s,
        named_pct=100 * named_s / total_s if total_s > 0 else 0.0,
        first_step=_first(found.step, int(at[0])),
        last_step=int(found.step[at[-1]]),
        parts_ms={
            phase: mean(lambda late, phase=phase: late.parts_ms.get(phase))  # type: ignore[misc]
            for phase in PHASES
            if phase in phases
        },
        relative_score=weighted(scores, weights[places]),
        host=last.ranks.host[rank] if rank < len(last.ranks.host) else "",
        device=last.ranks.device[rank] if rank < len(last.ranks.device) else "",
    )


def _first(step: Column, place: int) -> int:
    """The step from which on this one stands for those that were not read."""
    before = int(step[place - 1]) if place else -1
    return before + 1 if before < step[place] else 0


def _at(column: Column, rank: int) -> float | None:
    return known(column[rank]) if rank < len(column) else None
