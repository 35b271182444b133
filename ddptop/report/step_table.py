"""The steps that were read as columns (duration, flagged rank and its cost), and the spans of the run.

The figures of a sample are medians over its last 100 steps. So the flagged rank of a step is taken from the
sample that has the step in the middle of its window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.medians import number_or_none
from ddptop.analysis.steps.windows import DETAILED_BACK
from ddptop.frames.statistics import median
from ddptop.frames.verdict import compares_own_times, skew_pct
from ddptop.report.content import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.report.content import StallPeriod, StragglerSummary
    from ddptop.report.sampling import Sample

NO_RANK = -1

HALF_WINDOW = 50
"""Half of the 100 steps that a sample's medians are over."""


@dataclass(frozen=True, slots=True)
class StepTable:
    """One element per step that was read, in order of time. NaN: unknown."""

    step: Column
    incarnation: Indices
    """Elastic restarts before the step: each counts its steps from 0 again."""
    time_s: Column
    """End of the step, in seconds since the run started."""
    step_ms: Column
    wait_ms: Column
    transfer_ms: Column
    steps: Column
    """Number of steps of the run that the element represents: steps that were not read, or were lost, are
    added to the next one that was read."""
    sample: Indices
    """Index of the sample that contains the step."""
    flagged_by: Indices
    """Index of the sample with the step near the middle of its window: `rank` and `cost` come from it."""
    rank: Indices
    """The flagged rank, or NO_RANK."""
    cost: Column
    """Cost of the flagged rank as a share of the step, 0 without one; NaN: not measured."""
    uneven: Column
    """Cost of late arrivals of any rank as a share of the step; NaN without bucket detail."""

    @property
    def seconds(self) -> Column:
        """Wall time of the steps that each element represents."""
        return self.steps * self.step_ms / 1e3

    def lost_s(self, share: Column) -> Column:
        """The time lost by each element: `share` of its `seconds`."""
        return self.seconds * share


def step_table(samples: Sequence[Sample]) -> StepTable:
    """The steps of all samples."""
    step = _join_columns([sample.points.step for sample in samples])
    counts = [len(sample.points.step) for sample in samples]
    index: Indices = np.repeat(np.arange(len(samples)), counts).astype(np.int64)
    stretch: Indices = np.repeat(np.array([sample.stretch for sample in samples], np.int64), counts)
    # A flag is never taken from another stretch: the steps in between were not read.
    last = np.searchsorted(stretch, stretch, side="right") - 1
    place: Indices = np.arange(len(step))
    flagged_by = index[np.minimum(place + HALF_WINDOW, last)]
    ends = np.cumsum(counts).astype(np.int64)
    begins = ends - np.array([sample.frame.group.window_steps for sample in samples], np.int64)
    # A sample whose window is shorter than 100 steps does not apply to the steps before that window.
    flagged_by = np.where(place >= begins[flagged_by], flagged_by, index) if len(samples) else flagged_by
    wait_ms = _join_columns([sample.points.wait_ms for sample in samples])
    results = np.array([_flagged_shares(sample) for sample in samples], np.float64).reshape(-1, 3)
    # Bucket detail from long before says nothing of the steps of these samples.
    results[_are_outdated(samples, wait_ms)] = NO_RANK, np.nan, np.nan
    own_results, since = results.copy(), _flags_since(samples, begins, ends - counts)
    source = _backdated_samples(samples, results, since, ends)
    is_slow = place >= since[source[flagged_by]]
    rank, cost = np.where(is_slow, results[flagged_by, :2].T, own_results[flagged_by, :2].T)
    return StepTable(
        step=step,
        incarnation=np.repeat([s.frame.group.incarnation for s in samples], counts).astype(np.int64),
        time_s=_join_columns([sample.points.time_s for sample in samples]),
        step_ms=_join_columns([sample.points.step_ms for sample in samples]),
        wait_ms=wait_ms,
        transfer_ms=_join_columns([sample.points.transfer_ms for sample in samples]),
        steps=_steps_since(step),
        sample=index,
        flagged_by=source[flagged_by],
        rank=rank.astype(np.int64),
        cost=cost,
        uneven=_join_columns([np.minimum(s.recoverable / s.points.step_ms, 1.0) for s in samples]),
    )


def _are_outdated(samples: Sequence[Sample], wait_ms: Column) -> Mask:
    """(samples,) whether the last step with bucket detail is too far back for the sample's figures."""
    place: Indices = np.arange(len(wait_ms))
    newest = np.maximum.accumulate(np.where(np.isnan(wait_ms), -np.inf, place))
    ends = np.cumsum([len(sample.points.step) for sample in samples]).astype(np.int64) - 1
    every = np.array([sample.frame.overhead.detail_every or 1 for sample in samples])
    return np.asarray(ends - newest[ends] > 2 * HALF_WINDOW + DETAILED_BACK * every)


def _flags_since(samples: Sequence[Sample], windows: Indices, begins: Indices) -> Indices:
    """(samples,) first row of the steps that a flag of each sample is about, by the first rows of windows and
    of samples.

    A window may begin where the rank became slow. The first steps of a run are in no window, but are slow if
    those after them are.
    """
    stretches = np.array([sample.stretch for sample in samples], np.int64)
    first = np.searchsorted(stretches, stretches)
    return np.where(windows <= windows[first], begins[first], windows)


def _backdated_samples(samples: Sequence[Sample], results: Column, since: Indices, ends: Indices) -> Indices:
    """(samples,) index of the sample whose flag each sample takes.

    A rank is flagged only after many late steps. So the samples just before the flag get the same flag in
    `results` if late arrivals already cost half as much in them, or more. They must end (`ends`) after the
    row `since` which the rank is slow.
    """
    source: Indices = np.arange(len(samples))
    back = 0
    for i in range(len(samples) - 2, -1, -1):
        rank, cost, _ = results[i + 1]
        same_stretch = samples[i].stretch == samples[i + 1].stretch
        early = results[i, 0] == NO_RANK and rank != NO_RANK and same_stretch
        # As far back as one window: earlier steps are not in the medians that led to the flag.
        back = back + len(samples[i].points.step) if early else 0
        is_recent = back <= 2 * HALF_WINDOW and ends[i] > since[source[i + 1]]
        if early and is_recent and 2 * results[i, 2] >= cost:
            results[i, :2] = rank, results[i, 2]
            source[i] = source[i + 1]
    return source


def exclude_stalls(table: StepTable, stalls: Sequence[StallPeriod], started_s: float) -> StepTable:
    """The table with the stalls subtracted from the steps they occurred in, and from what these waited: they
    are reported separately."""
    step_ms, uneven = table.step_ms.copy(), table.uneven.copy()
    wait_ms, transfer_ms = table.wait_ms.copy(), table.transfer_ms.copy()
    for stall in stalls:
        middle = stall.since_s + stall.lasted_s / 2 - started_s
        index = int(np.searchsorted(table.time_s, middle))
        if index < len(step_ms) and table.time_s[index] - step_ms[index] / 1e3 <= middle:
            step_ms[index] = max(0.0, step_ms[index] - 1e3 * stall.lasted_s)
            # The ranks that waited did so for all of the stall; what is left of a part fits into the step.
            wait_ms[index] = np.clip(wait_ms[index] - 1e3 * stall.lasted_s, 0.0, step_ms[index])
            transfer_ms[index] = np.clip(
                transfer_ms[index], 0.0, step_ms[index] - np.nan_to_num(wait_ms[index])
            )
            # All of what ranks waited in such a step would be the stall.
            uneven[index] = np.nan
    return replace(table, step_ms=step_ms, uneven=uneven, wait_ms=wait_ms, transfer_ms=transfer_ms)


def spread_skew(table: StepTable) -> StepTable:
    """The table with `uneven` in every step.

    Steps with bucket detail represent the others of their sample; it is at least the flagged rank's cost.
    """
    if not len(table.step):
        return table
    is_known = np.where(np.isnan(table.uneven), 0.0, table.step_ms)
    lost = np.bincount(table.sample, weights=np.nan_to_num(table.uneven) * is_known)
    whole = np.bincount(table.sample, weights=is_known)
    share = np.divide(lost, whole, out=np.full(len(whole), np.nan), where=whole > 0)[table.sample]
    return replace(table, uneven=np.fmax(share, table.cost))


def spread_unread_steps(table: StepTable, span: Indices) -> StepTable:
    """Spread the steps that were not read evenly over those that were read in the same span.

    `span`: (steps,) index of each step's span. One stretch of each span is read; without this its first step
    would represent all that was skipped.
    """
    if not len(span):
        return table
    read = np.bincount(span)
    total = np.bincount(span, weights=table.steps)
    return replace(table, steps=(total / np.maximum(read, 1))[span])


def steps_of_samples(table: StepTable, samples: int) -> Column:
    """(samples,) number of steps of the run that each sample represents."""
    return np.asarray(np.bincount(table.sample, weights=table.steps, minlength=samples), np.float64)


def _flagged_shares(sample: Sample) -> tuple[float, float, float]:
    """The flagged rank, and the shares of the step that it and late arrivals of any rank cost."""
    straggler, pct = sample.frame.straggler, skew_pct(sample.frame)
    blind = sample.frame.group.clock_free and not compares_own_times(sample.frame)
    uneven = np.nan if pct is None or blind else pct / 100
    if straggler is not None and straggler.rare is None:  # what is rare is summed in the ledger
        return float(straggler.rank), straggler.cost_pct / 100, uneven
    return float(NO_RANK), np.nan if np.isnan(uneven) else 0.0, uneven


def _join_columns(columns: Sequence[Column]) -> Column:
    return np.concatenate([column.astype(np.float64) for column in columns]) if columns else np.empty(0)


def _steps_since(step: Column) -> Column:
    """Steps since the previous one; after a restart, which counts from 0 again, those since the restart."""
    if not len(step):
        return step
    ahead = np.diff(step, prepend=-1.0)
    return np.where(ahead > 0, ahead, step + 1)


MOST_SPANS = 60
"""Most spans: a line of 80 columns has room for so many."""

LEAST_STEPS = 4
"""Least steps of a span: a median over fewer means little."""


def span_count(steps: int) -> int:
    """Number of spans into which a run of `steps` steps is divided."""
    return max(1, min(MOST_SPANS, steps // LEAST_STEPS))


def span_of(table: StepTable, duration_s: float, count: int) -> Indices:
    """(steps,) index of the span in which each step ended."""
    share = table.time_s / duration_s if duration_s > 0 else np.zeros(len(table.time_s))
    return np.clip((share * count).astype(np.int64), 0, count - 1)


@dataclass(frozen=True, slots=True)
class RareLoss:
    """What a rank that is rarely slow has cost, as the ledger has it."""

    rank: int
    cause: str | None
    lost_s: Column
    """(steps,) of each element of the table."""


def place_rare_loss(slow: StragglerSummary, samples: Sequence[Sample], table: StepTable) -> RareLoss:
    """Divide what the ledger says a rarely slow rank has cost between the steps that took longer than the
    median step, by half of its usual wait at least, in the samples in which the sum of the ledger grew."""
    sums = [_rare_rank_seconds(slow, sample) for sample in samples]
    grown = np.maximum(0.0, np.diff(np.maximum.accumulate(sums), prepend=0.0))
    longer_ms = np.nan_to_num(table.step_ms - np.nanmedian(table.step_ms))
    longer_ms = np.where(longer_ms >= slow.lateness_ms / 2, longer_ms, 0.0)
    of_sample = np.bincount(table.sample, longer_ms, len(samples))
    share = np.divide(grown, of_sample, out=np.zeros(len(samples)), where=of_sample > 0)
    weight = longer_ms * share[table.sample]
    if not weight.sum() > 0:  # its slow steps were not read
        weight = np.nan_to_num(table.seconds)
    return RareLoss(slow.rank, slow.cause, slow.lost_s * weight / weight.sum())


def _rare_rank_seconds(slow: StragglerSummary, sample: Sample) -> float:
    waited_for = sample.frame.ledger.run.waited_for if sample.frame.ledger is not None else ()
    key = slow.rank, slow.place or slow.cause
    return sum(row.dear_rank_seconds for row in waited_for if (row.rank, row.place) == key)


def make_spans(
    table: StepTable,
    where: Indices,
    samples: Sequence[Sample],
    duration_s: float,
    count: int,
    stragglers: Sequence[StragglerSummary] = (),
) -> tuple[Span, ...]:
    """One Span for each interval, also for those in which no step ended."""
    edges = np.linspace(0.0, duration_s, count + 1)
    rare = [place_rare_loss(slow, samples, table) for slow in stragglers if slow.rare is not None]
    return tuple(
        _make_span(table, np.flatnonzero(where == i), samples, float(edges[i]), float(edges[i + 1]), rare)
        for i in range(count)
    )


def _make_span(
    table: StepTable,
    at: Indices,
    samples: Sequence[Sample],
    begin_s: float,
    end_s: float,
    rare: Sequence[RareLoss],
) -> Span:
    step_ms, cost = table.step_ms[at], table.cost[at]
    rank, cause = _most_flagged(table, at, samples)
    lost_s = _known_sum(table.lost_s(table.cost)[at])
    for loss in rare:
        rarely_s = float(loss.lost_s[at].sum())
        if rarely_s > (lost_s or 0.0):
            rank, cause = loss.rank, loss.cause
        lost_s = (lost_s or 0.0) + rarely_s if rarely_s else lost_s
    spent_s = float(table.seconds[at][~np.isnan(step_ms if rare else cost)].sum()) if len(at) else 0.0
    p50 = number_or_none(median(step_ms)) if len(at) else None
    even_ms = (step_ms * (1 - table.uneven[at]))[~np.isnan(table.uneven[at])]
    return Span(
        begin_s=begin_s,
        end_s=end_s,
        first_step=int(table.step[at[0]]) if len(at) else None,
        last_step=int(table.step[at[-1]]) if len(at) else None,
        incarnation=int(table.incarnation[at[0]]) if len(at) else 0,
        last_incarnation=int(table.incarnation[at[-1]]) if len(at) else 0,
        steps=round(float(table.steps[at].sum())),
        read_steps=len(at),
        step_ms=p50,
        wait_pct=_mean_share(table.wait_ms[at], step_ms),
        transfer_pct=_mean_share(table.transfer_ms[at], step_ms),
        no_straggler_ms=number_or_none(median(even_ms)) if len(even_ms) else None,
        rank=rank,
        cause=cause,
        cost_pct=min(100.0, 100 * lost_s / spent_s) if lost_s is not None and spent_s > 0 else None,
        lost_s=lost_s,
    )


def _most_flagged(table: StepTable, at: Indices, samples: Sequence[Sample]) -> tuple[int | None, str | None]:
    """The rank that was flagged for most of the span, if for at least a third of it, and the cause."""
    flagged = at[table.rank[at] != NO_RANK]
    if not len(flagged) or 3 * len(flagged) < len(at):
        return None, None
    rank = int(np.bincount(table.rank[flagged]).argmax())
    newest = samples[int(table.flagged_by[flagged[table.rank[flagged] == rank][-1]])].frame.straggler
    return rank, newest.cause if newest is not None else None


def _mean_share(part: Column, whole: Column) -> float | None:
    is_known = ~np.isnan(part)
    total = float(whole[is_known].sum())
    return 100 * float(part[is_known].sum()) / total if total > 0 else None


def _known_sum(values: Column) -> float | None:
    is_known = values[~np.isnan(values)]
    return float(is_known.sum()) if len(is_known) else None
