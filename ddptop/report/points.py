"""All steps that were read, in columns: what each took, and what of it a named rank cost.

The run's time in equal pieces: step time, waiting, and who was named in each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.detail_window import DETAILED_BACK
from ddptop.analysis.steps.medians import known
from ddptop.frames.verdict import skew_pct
from ddptop.report.content import Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.report.content import Standstill
    from ddptop.report.walk import Look

NOBODY = -1

HALF_WINDOW = 50
"""A look's medians are over the last 100 steps: it speaks for the one in their middle."""


@dataclass(frozen=True, slots=True)
class Points:
    """One element per step read, in order of time. NaN is not known."""

    step: Column
    time_s: Column
    """End of the step, in seconds since the run started."""
    step_ms: Column
    wait_ms: Column
    transfer_ms: Column
    steps: Column
    """How many steps of the run it stands for: those not read, or lost, go with the next one that was."""
    look: Indices
    """Number of the look that it belongs to."""
    judge: Indices
    """Number of the look whose window has the step in its middle, or nearly: it names."""
    rank: Indices
    """The rank named then; NOBODY."""
    cost: Column
    """Share of the step that the named rank cost, 0 where nobody was named; NaN: not judged."""
    uneven: Column
    """Share of the step that late arrivals of any rank cost; NaN without bucket detail."""

    @property
    def seconds(self) -> Column:
        """Wall time of the steps that each element stands for."""
        return self.steps * self.step_ms / 1e3

    def lost_s(self, share: Column) -> Column:
        """Of the wall time of the steps that each element stands for, this share."""
        return self.seconds * share


def points(looks: Sequence[Look]) -> Points:
    """The steps of all looks."""
    step = _joined([look.points.step for look in looks])
    counts = [len(look.points.step) for look in looks]
    number: Indices = np.repeat(np.arange(len(looks)), counts).astype(np.int64)
    stretch: Indices = np.repeat(np.array([look.stretch for look in looks], np.int64), counts)
    last = np.searchsorted(stretch, stretch, side="right") - 1
    place: Indices = np.arange(len(step))
    judge = number[np.minimum(place + HALF_WINDOW, last)]
    ends = np.cumsum(counts).astype(np.int64)
    begins = ends - np.array([look.frame.group.window_steps for look in looks], np.int64)
    # A look whose figures are of the newest steps only says nothing of those before.
    judge = np.where(place >= begins[judge], judge, number) if len(looks) else judge
    wait_ms = _joined([look.points.wait_ms for look in looks])
    told = np.array([_told(look) for look in looks], np.float64).reshape(-1, 3)
    told[_stale(looks, wait_ms)] = NOBODY, np.nan, np.nan
    namers = _backdated(looks, told)
    rank, cost = told[judge, :2].T
    judge = namers[judge]
    return Points(
        step=step,
        time_s=_joined([look.points.time_s for look in looks]),
        step_ms=_joined([look.points.step_ms for look in looks]),
        wait_ms=wait_ms,
        transfer_ms=_joined([look.points.transfer_ms for look in looks]),
        steps=_steps_since(step),
        look=number,
        judge=judge,
        rank=rank.astype(np.int64),
        cost=cost,
        uneven=_joined([np.minimum(look.recoverable / look.points.step_ms, 1.0) for look in looks]),
    )


def _stale(looks: Sequence[Look], wait_ms: Column) -> Mask:
    """(looks,) whether the last step with bucket detail is so far back that figures tell of another time."""
    place: Indices = np.arange(len(wait_ms))
    newest = np.maximum.accumulate(np.where(np.isnan(wait_ms), -np.inf, place))
    ends = np.cumsum([len(look.points.step) for look in looks]).astype(np.int64) - 1
    every = np.array([look.frame.overhead.detail_every or 1 for look in looks])
    return np.asarray(ends - newest[ends] > 2 * HALF_WINDOW + DETAILED_BACK * every)


def _backdated(looks: Sequence[Look], told: Column) -> Indices:
    """(looks,) the look that names for each.

    A rank is named only when it was late for a while: the looks just before, in which late arrivals already
    cost half as much or more, become its own in `told`.
    """
    namers: Indices = np.arange(len(looks))
    back = 0
    for i in range(len(looks) - 2, -1, -1):
        rank, cost, _ = told[i + 1]
        early = told[i, 0] == NOBODY and rank != NOBODY and looks[i].stretch == looks[i + 1].stretch
        back = back + len(looks[i].points.step) if early else 0
        if early and back <= 2 * HALF_WINDOW and 2 * told[i, 2] >= cost:
            told[i, :2] = rank, told[i, 2]
            namers[i] = namers[i + 1]
    return namers


def without_stalls(found: Points, stalls: Sequence[Standstill], started_s: float) -> Points:
    """The same, but steps are shorter by the stalls in them: a stall has a figure of its own."""
    step_ms, uneven = found.step_ms.copy(), found.uneven.copy()
    for stall in stalls:
        middle = stall.since_s + stall.lasted_s / 2 - started_s
        at = int(np.searchsorted(found.time_s, middle))
        if at < len(step_ms) and found.time_s[at] - step_ms[at] / 1e3 <= middle:
            step_ms[at] = max(0.0, step_ms[at] - 1e3 * stall.lasted_s)
            uneven[at] = np.nan
    return replace(found, step_ms=step_ms, uneven=uneven)


def spread_skew(found: Points) -> Points:
    """The same with what late arrivals cost in every step: those with detail speak for the others of their
    look, and it is no less than what is known of the named rank."""
    if not len(found.step):
        return found
    told = np.where(np.isnan(found.uneven), 0.0, found.step_ms)
    lost = np.bincount(found.look, weights=np.nan_to_num(found.uneven) * told)
    whole = np.bincount(found.look, weights=told)
    share = np.divide(lost, whole, out=np.full(len(whole), np.nan), where=whole > 0)[found.look]
    return replace(found, uneven=np.fmax(share, found.cost))


def even_out(found: Points, span: Indices) -> Points:
    """Spread what was not read evenly over what was read of the same span, (points,) numbers of spans.

    A stretch is read out of each span; without this its first step would stand for all that was left out.
    """
    if not len(span):
        return found
    read = np.bincount(span)
    total = np.bincount(span, weights=found.steps)
    return replace(found, steps=(total / np.maximum(read, 1))[span])


def weights(found: Points, looks: int) -> Column:
    """(looks,) steps of the run that each look stands for."""
    return np.asarray(np.bincount(found.look, weights=found.steps, minlength=looks), np.float64)


def _told(look: Look) -> tuple[float, float, float]:
    """The rank named in a look, and the shares of the step that it and late arrivals of any rank cost."""
    late, pct = look.frame.straggler, skew_pct(look.frame)
    uneven = np.nan if pct is None or look.frame.group.clock_free else pct / 100
    if late is not None:
        return float(late.rank), late.cost_pct / 100, uneven
    return float(NOBODY), np.nan if np.isnan(uneven) else 0.0, uneven


def _joined(columns: Sequence[Column]) -> Column:
    return np.concatenate([column.astype(np.float64) for column in columns]) if columns else np.empty(0)


def _steps_since(step: Column) -> Column:
    """Steps since the one before; where a restarted run counts from 0 again, those since its start."""
    if not len(step):
        return step
    ahead = np.diff(step, prepend=-1.0)
    return np.where(ahead > 0, ahead, step + 1)


MOST_SPANS = 60
"""A line of 80 columns has room for so many."""

LEAST_STEPS = 4
"""A median over fewer steps than this is one step's luck."""


def span_count(steps: int) -> int:
    """Into how many pieces a run of so many steps is divided."""
    return max(1, min(MOST_SPANS, steps // LEAST_STEPS))


def span_of(found: Points, duration_s: float, count: int) -> Indices:
    """(points,) number of the span in which each step ended."""
    share = found.time_s / duration_s if duration_s > 0 else np.zeros(len(found.time_s))
    return np.clip((share * count).astype(np.int64), 0, count - 1)


def spans(
    found: Points, where: Indices, looks: Sequence[Look], duration_s: float, count: int
) -> tuple[Span, ...]:
    """One Span for each piece, also for those in which no step ended."""
    edges = np.linspace(0.0, duration_s, count + 1)
    return tuple(
        _span(found, np.flatnonzero(where == i), looks, float(edges[i]), float(edges[i + 1]))
        for i in range(count)
    )


def _span(found: Points, at: Indices, looks: Sequence[Look], begin_s: float, end_s: float) -> Span:
    step_ms, cost = found.step_ms[at], found.cost[at]
    rank, cause = _named(found, at, looks)
    lost_s = _sum(found.lost_s(found.cost)[at])
    spent_s = float(found.seconds[at][~np.isnan(cost)].sum()) if len(at) else 0.0
    p50 = known(np.median(step_ms)) if len(at) else None
    even_ms = (step_ms * (1 - found.uneven[at]))[~np.isnan(found.uneven[at])]
    return Span(
        begin_s=begin_s,
        end_s=end_s,
        first_step=int(found.step[at[0]]) if len(at) else None,
        last_step=int(found.step[at[-1]]) if len(at) else None,
        steps=round(float(found.steps[at].sum())),
        read_steps=len(at),
        step_ms=p50,
        wait_pct=_share(found.wait_ms[at], step_ms),
        transfer_pct=_share(found.transfer_ms[at], step_ms),
        no_straggler_ms=known(np.median(even_ms)) if len(even_ms) else None,
        rank=rank,
        cause=cause,
        cost_pct=100 * lost_s / spent_s if lost_s is not None and spent_s > 0 else None,
        lost_s=lost_s,
    )


def _named(found: Points, at: Indices, looks: Sequence[Look]) -> tuple[int | None, str | None]:
    """Whoever was named for most of the span, if that was a third of it or more; and why."""
    named = at[found.rank[at] != NOBODY]
    if not len(named) or 3 * len(named) < len(at):
        return None, None
    rank = int(np.bincount(found.rank[named]).argmax())
    newest = looks[int(found.judge[named[found.rank[named] == rank][-1]])].frame.straggler
    return rank, newest.cause if newest is not None else None


def _share(part: Column, whole: Column) -> float | None:
    told = ~np.isnan(part)
    total = float(whole[told].sum())
    return 100 * float(part[told].sum()) / total if total > 0 else None


def _sum(values: Column) -> float | None:
    told = values[~np.isnan(values)]
    return float(told.sum()) if len(told) else None
