"""From a walk to the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.report import means
from ddptop.report.advice import advice
from ddptop.report.content import Cost, Reading, Report
from ddptop.report.findings import findings
from ddptop.report.points import (
    even_out,
    points,
    span_count,
    span_of,
    spans,
    spread_skew,
    weights,
    without_stalls,
)
from ddptop.report.walk import Walk, look_every

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.protocol.messages import Received
    from ddptop.report.content import BucketSummary
    from ddptop.report.points import Points

NOT_ENDED = frozenset(("live", "stale", "stalled", "waiting"))


def report(messages: Iterable[Received], *, steps: int, growing: bool = False) -> Report:
    """The report of a run whose messages are all at hand; `steps` is about how many steps it has."""
    walk = Walk(look_every(steps))
    for received in messages:
        walk.feed(received)
    return finish(walk, growing=growing)


def finish(
    walk: Walk,
    *,
    growing: bool = False,
    whole: bool = True,
    damage: str | None = None,
    recording: str | None = None,
    refused: int = 0,
) -> Report:
    """The report of what was walked through. `growing`: the recording is still being written."""
    last = walk.look()
    if walk.reducer.stalled_since(walk.last_ns) is not None:
        walk.incidents.see_stall(last)
    state = "lost" if not growing and last.run.state in NOT_ENDED else last.run.state
    last = replace(last, run=replace(last.run, state=state, recording=recording))
    looks = walk.looks
    found = without_stalls(points(looks), walk.incidents.stalls, walk.reducer.state.started_s)
    found = spread_skew(found)
    count = span_count(len(found.step))
    duration_s = max(last.run.elapsed_s, float(found.time_s[-1]) if len(found.time_s) else 0.0)
    where = span_of(found, duration_s, count)
    found = even_out(found, where)
    per_look = weights(found, len(looks))
    ranks = means.rank_summaries(looks, per_look, last)
    incidents = walk.incidents
    cost = _cost(found, sum(stall.lasted_s for stall in incidents.stalls))
    made = Report(
        source="simulated" if last.source == "simulated" else "recording",
        run=last.run,
        reading=_reading(found, per_look, walk, whole=whole, damage=damage, refused=refused),
        verdict=(),
        cost=cost,
        culprits=means.culprits(looks, found, last),
        spans=spans(found, where, looks, duration_s, count),
        ranks=ranks,
        phases_pct=means.phases_pct(ranks),
        communication=means.communication(looks, per_look, found, ranks, cost.uneven_pct),
        buckets=means.bucket_summaries(looks, per_look) or _told_buckets(last),
        stalls=tuple(incidents.stalls),
        deaths=incidents.deaths,
        troubles=incidents.troubles,
        happenings=incidents.happenings,
        advice=(),
        overhead=last.overhead,
    )
    made = replace(made, advice=advice(made))
    return replace(made, verdict=findings(made))


def _told_buckets(last: Frame) -> tuple[BucketSummary, ...]:
    return tuple(means.one_bucket(bucket) for bucket in last.buckets)


def _reading(
    found: Points, per_look: Column, walk: Walk, *, whole: bool, damage: str | None, refused: int
) -> Reading:
    seconds = float(found.seconds.sum())
    judged = ~np.isnan(found.cost)
    free = np.array([look.frame.group.clock_free for look in walk.looks], bool)
    total = float(per_look.sum())
    return Reading(
        steps=round(float(found.steps.sum())),
        read_steps=len(found.step),
        judged_pct=100 * float(found.seconds[judged].sum()) / seconds if seconds > 0 else None,
        whole=whole,
        clock_free=bool(total > 0 and per_look[free].sum() > total / 2),
        refused=refused,
        damage=damage,
    )


def _cost(found: Points, stalled_s: float) -> Cost:
    step_s = float(found.seconds.sum())
    named_s = _lost(found, found.cost)
    uneven_s = _lost(found, found.uneven)
    return Cost(
        step_s=step_s,
        named_s=named_s,
        named_pct=100 * named_s / step_s if named_s is not None and step_s > 0 else None,
        uneven_s=uneven_s,
        uneven_pct=100 * uneven_s / step_s if uneven_s is not None and step_s > 0 else None,
        stalled_s=stalled_s,
    )


def _lost(found: Points, share: Column) -> float | None:
    told = ~np.isnan(share)
    return float(found.lost_s(share)[told].sum()) if told.any() else None
