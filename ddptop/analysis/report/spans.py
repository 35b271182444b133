"""The run's time in equal pieces: step time, waiting, and who was named in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.medians import known
from ddptop.analysis.report.content import Span
from ddptop.analysis.report.points import NOBODY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Column
    from ddptop.analysis.report.points import Points
    from ddptop.analysis.report.walk import Look

MOST_SPANS = 60
"""A line of 80 columns has room for so many."""

LEAST_STEPS = 4
"""A median over fewer steps than this is one step's luck."""


def span_count(steps: int) -> int:
    """Into how many pieces a run of so many steps is divided."""
    return max(1, min(MOST_SPANS, steps // LEAST_STEPS))


def span_of(found: Points, duration_s: float, count: int) -> Column:
    """(points,) number of the span in which each step ended."""
    share = found.time_s / duration_s if duration_s > 0 else np.zeros(len(found.time_s))
    return np.clip((share * count).astype(np.int64), 0, count - 1)


def spans(
    found: Points, where: Column, looks: Sequence[Look], duration_s: float, count: int
) -> tuple[Span, ...]:
    """One Span for each piece, also for those in which no step ended."""
    edges = np.linspace(0.0, duration_s, count + 1)
    return tuple(
        _span(found, np.flatnonzero(where == i), looks, float(edges[i]), float(edges[i + 1]))
        for i in range(count)
    )


def _span(found: Points, at: Column, looks: Sequence[Look], begin_s: float, end_s: float) -> Span:
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


def _named(found: Points, at: Column, looks: Sequence[Look]) -> tuple[int | None, str | None]:
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
