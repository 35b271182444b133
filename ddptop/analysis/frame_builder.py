"""A frame from the reducer's state: medians are taken here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import judge, metrics
from ddptop.analysis.alerts import alerts
from ddptop.analysis.frames import BucketFigures, Frame, Group, Overhead, Ranks, RankSteps, RunInfo
from ddptop.analysis.members import STALL_STEPS, group_state
from ddptop.analysis.window import FEW_DETAILED, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.analysis.frames import Column
    from ddptop.analysis.members import Member
    from ddptop.analysis.reducer import Reducer
    from ddptop.analysis.window import DetailWindow
    from ddptop.protocol.messages import Scalar

CARD_OWN = ("torch", "script", "argv")
"""Entries of a rank's card that have a place of their own in a frame."""

GROUP_WAITS = ("collective", "wait", "transfer", "exposed")


class _Detail:
    """Medians over the judged detailed steps; all unknown while there are none."""

    def __init__(self, window: DetailWindow | None, end: int, world: int) -> None:
        self.window = window
        self.slots = window.judged(end) if window is not None else np.arange(0)
        self.unknown = np.full(world, np.nan)

    def ranks(self, name: str) -> Column:
        """(ranks,) median of one column."""
        return self._of(name)[0]

    def over_ranks(self, name: str) -> float | None:
        """Median over the steps of the mean over ranks."""
        return self._of(name)[1]

    def _of(self, name: str) -> tuple[Column, float | None]:
        if self.window is None or not len(self.slots):
            return self.unknown, None
        values = self.window.ranks.of(name, self.slots)
        return metrics.median(values), known(metrics.median(metrics.mean(values.T)))

    def group(self, name: str, less: str | None = None) -> float | None:
        """Median of a scalar of the step, or of its difference to another."""
        if self.window is None or not len(self.slots):
            return None
        values = self.window.group.of(name, self.slots)
        if less is not None:
            values = values - self.window.group.of(less, self.slots)
        return known(metrics.median(values))

    def last_pct(self) -> Column:
        """(ranks,) share of the judged steps in which each came last."""
        if self.window is None or len(self.slots) < FEW_DETAILED:
            return self.unknown
        last = self.window.group.of("last", self.slots)
        last = last[last >= 0].astype(np.int64)
        if not len(last) and np.isnan(self.window.group.of("recoverable", self.slots)).all():
            return self.unknown  # clocks that cannot be compared
        return 100.0 * np.bincount(last, minlength=len(self.unknown)) / len(self.slots)


def known(value: Column | float) -> float | None:
    """A scalar; None where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None


def build(
    reducer: Reducer, now_ns: int, *, cursor: int, focus: int | None, source: str, recording: str | None
) -> Frame:
    """See `Reducer.frame`."""
    figures = reducer.figures
    detail = _Detail(figures.detail, reducer.history.end, figures.world)
    group = _group(reducer, detail)
    run_state = reducer.run.state if reducer.run is not None else "live"
    stall_ns = int(max(reducer.stall_s * 1e3, STALL_STEPS * (group.step_ms_p50 or 0.0)) * 1e6)
    states = [member.state(now_ns, stall_ns, run_state) for member in reducer.members]
    straggler = None
    if figures.detail is not None and figures.straggler is not None:
        straggler = judge.straggler(figures.detail, detail.slots, figures.straggler)
    simulated = reducer.run is not None and reducer.run.simulated
    in_world = focus is not None and 0 <= focus < figures.world
    return Frame(
        source="simulated" if simulated else source,
        unix_s=reducer.unix_s(now_ns),
        run=_run(reducer, now_ns, group_state(states, run_state), recording),
        group=group,
        ranks=_ranks(reducer, states, detail, now_ns),
        buckets=_buckets(reducer, detail),
        straggler=straggler,
        alerts=alerts(reducer, states, straggler, now_ns),
        happenings=reducer.log.all(),
        overhead=_overhead(reducer),
        history=reducer.history.since(cursor),
        focus=_focus(reducer, focus) if in_world and focus is not None else None,
        records=sum(member.records for member in reducer.members),
        lost_records=sum(member.lost_records for member in reducer.members),
    )


def _run(reducer: Reducer, now_ns: int, state: str, recording: str | None) -> RunInfo:
    run = reducer.run
    hellos = [member.hello for member in reducer.members if member.hello is not None]
    card: dict[str, Scalar] = dict(reducer.cards[min(reducer.cards)]) if reducer.cards else {}
    torch, script, argv = (card.pop(name, None) for name in CARD_OWN)
    until_ns = now_ns if reducer.ended_ns is None else min(now_ns, reducer.ended_ns)
    return RunInfo(
        name=run.name if run else "",
        id=run.run_id if run else hellos[0].run_id if hellos else "",
        state=state,
        started_at=reducer.started_s,
        elapsed_s=max(0.0, reducer.unix_s(until_ns) - reducer.started_s),
        world_size=len(reducer.members),
        backend=hellos[0].backend if hellos else None,
        nodes=len({hello.host for hello in hellos}),
        script=run.script if run else str(script or ""),
        argv=run.argv if run else tuple(str(argv or "").split()),
        torch=None if torch is None else str(torch),
        exit_code=run.exit_code if run else None,
        recording=recording,
        card=card,
    )


def _group(reducer: Reducer, detail: _Detail) -> Group:
    figures = reducer.figures
    slots = figures.steps.slots()
    number, step, end = (figures.steps.group.of(name, slots) for name in ("number", "step", "end"))
    p50 = known(np.median(step)) if len(step) else None
    span = float(end[-1] - end[0]) if len(end) > 1 else 0.0
    loss = np.where(figures.loss_told, figures.loss, np.nan)
    finite = np.isfinite(loss).any()
    collective, wait, transfer, exposed = (detail.over_ranks(name) for name in GROUP_WAITS)
    ran = detail.group("step")

    def what_if(gain: str) -> float | None:
        """p50 less what the detailed steps would gain: their gain carries over, however few they are."""
        if len(detail.slots) < FEW_DETAILED:
            return None
        less = detail.group("step", gain)
        return None if less is None or ran is None or p50 is None else max(0.0, p50 - (ran - less))

    return Group(
        step=reducer.complete_step,
        steps_per_s=float(number[-1] - number[0]) / span if span > 0 else None,
        step_ms_p50=p50,
        step_ms_p95=known(np.quantile(step, 0.95)) if len(step) else None,
        loss_mean=known(figures.loss[figures.loss_told].mean()) if figures.loss_told.any() else None,
        loss_min=known(np.nanmin(loss)) if finite else None,
        loss_max=known(np.nanmax(loss)) if finite else None,
        loss_min_rank=int(np.nanargmin(loss)) if finite else None,
        loss_max_rank=int(np.nanargmax(loss)) if finite else None,
        collective_ms=collective,
        wait_ms=wait,
        transfer_ms=transfer,
        exposed_comm_ms=exposed,
        overlap_pct=detail.group("overlap"),
        busbw_gbps=detail.group("busbw"),
        no_straggler_ms=what_if("recoverable"),
        no_exposed_comm_ms=what_if("hidden"),
        both_ms=what_if("both"),
    )


def _ranks(reducer: Reducer, states: Sequence[str], detail: _Detail, now_ns: int) -> Ranks:
    members = reducer.members
    steps = reducer.figures.steps
    slots = steps.slots()
    walls = steps.ranks.medians(("step", *PHASES), slots) if len(slots) else {}
    unknown = detail.unknown
    own = detail.ranks("self")
    window = reducer.figures.detail

    def each(value: Callable[[Member], float | None]) -> Column:
        """Exact: counts and ids."""
        return np.array([value(member) for member in members], np.float64)

    def narrow(column: Column) -> Column:
        """float32, as it also travels: a frame is the same before and after the credit link."""
        return column.astype(np.float32)

    best = unknown if window is None else np.fmin(window.best_self, own)
    individual = np.divide(best, own, out=np.full_like(own, np.nan), where=own > 0)
    if window is None or np.isnan(window.best_self).all():
        individual = unknown
    return Ranks(
        host=tuple(m.hello.host if m.hello else "" for m in members),
        device=tuple(m.hello.device if m.hello else "" for m in members),
        state=tuple(states),
        phase=tuple(m.phase for m in members),
        local_rank=each(lambda m: m.hello.local_rank if m.hello else None),
        pid=each(lambda m: m.hello.pid if m.hello else None),
        incarnation=each(lambda m: m.hello.incarnation if m.hello else None),
        age_ms=each(lambda m: max(0, now_ns - m.heard_ns) / 1e6 if m.hello else None),
        step=each(lambda m: m.step if m.hello else None),
        bucket=each(lambda m: m.bucket),
        sequence=each(lambda m: m.sequence),
        loss=narrow(reducer.figures.loss),
        **{f"{name}_ms": narrow(walls.get(name, unknown)) for name in ("step", *PHASES)},
        **{f"{name}_ms": narrow(detail.ranks(name)) for name in ("collective", "wait", "transfer")},
        exposed_comm_ms=narrow(detail.ranks("exposed")),
        exposed_wait_ms=narrow(detail.ranks("exposed_wait")),
        lateness_ms=narrow(detail.ranks("lateness")),
        last_pct=narrow(detail.last_pct()),
        relative_score=narrow(metrics.relative_scores(own)),
        individual_score=narrow(individual),
        records=each(lambda m: m.records),
        lost_records=each(lambda m: m.lost_records),
        rss_bytes=each(lambda m: m.rss_bytes),
        cpu_pct=narrow(each(lambda m: m.cpu_pct)),
    )


def _buckets(reducer: Reducer, detail: _Detail) -> tuple[BucketFigures, ...]:
    """Of the newest layout with detail, or before there is any, the names of the newest layout told."""
    window = detail.window
    members = [m for m in reducer.members if m.hello is not None]
    sessions = [s for s in (reducer.session_of(m) for m in members) if s is not None and s.generation >= 0]
    newest = sessions[0].generation if sessions else -1
    if window is None or not len(detail.slots):
        buckets = reducer.layouts.buckets(sessions[0].layouts.get(newest, -1)) if sessions else None
        medians: dict[str, Column] = {}
        last = np.empty((len(buckets or ()), 0))
    else:
        buckets = window.buckets
        for session in sessions[:1]:
            newest = next((g for g, number in session.layouts.items() if number == window.layout), newest)
        medians = window.bucket.medians(("collective", "wait", "transfer", "skew"), detail.slots)
        last = window.bucket.of("last", detail.slots)
    factor = metrics.bus_factor(reducer.figures.world)
    found = []
    for i, bucket in enumerate(buckets or ()):
        collective, wait, transfer, skew = (
            known(medians[name][i]) if medians else None
            for name in ("collective", "wait", "transfer", "skew")
        )
        algbw = _bandwidth(bucket.wire_bytes, transfer)
        effective = _bandwidth(bucket.wire_bytes, collective)
        arriver, share = _usual(last[i])
        found.append(
            BucketFigures(
                index=bucket.index,
                generation=newest,
                model=bucket.model,
                bytes=bucket.wire_bytes,
                parameters=bucket.parameters,
                dtype=bucket.dtype,
                hook=bucket.hook,
                collective_ms=collective,
                wait_ms=wait,
                transfer_ms=transfer,
                algbw_gbps=algbw,
                busbw_gbps=None if algbw is None else algbw * factor,
                effective_busbw_gbps=None if effective is None else effective * factor,
                skew_ms=skew,
                last_arriver=arriver,
                last_arriver_pct=share,
            )
        )
    return tuple(found)


def _bandwidth(size: int | None, time_ms: float | None) -> float | None:
    if size is None or time_ms is None:
        return None
    return known(metrics.bandwidth_gbps(float(size), np.float64(time_ms)))


def _usual(last: Column) -> tuple[int | None, float | None]:
    """The rank that comes last most often, and in how many percent of the steps."""
    told = last[last >= 0].astype(np.int64)
    if not len(told):
        return None, None
    counts = np.bincount(told)
    return int(counts.argmax()), 100.0 * float(counts.max()) / len(told)


def _overhead(reducer: Reducer) -> Overhead:
    present = [m for m in reducer.members if m.hello is not None]
    beats = [m.progress for m in present if m.progress is not None]
    return Overhead(
        budget_pct=max((m.hello.budget_pct for m in present if m.hello is not None), default=None),
        measured_pct=max((beat.cost_pct for beat in beats), default=None),
        us_per_step=max((beat.cost_us for beat in beats), default=None),
        detail_every=max((beat.detail_every for beat in beats), default=None),
        failures=sum(beat.failures for beat in beats),
    )


def _focus(reducer: Reducer, rank: int) -> RankSteps:
    steps = reducer.figures.steps
    slots = steps.slots()
    points: Column = reducer.history.end - len(slots) + np.arange(len(slots))
    waits: dict[str, Column] = {
        name: np.full(len(slots), np.nan, np.float32) for name in ("wait", "transfer", "lateness")
    }
    window = reducer.figures.detail
    if window is not None:
        theirs = window.group.recent(len(slots))
        at = window.group.of("point", theirs)
        _, here, there = np.intersect1d(points, at, return_indices=True)
        for name, column in waits.items():
            column[here] = window.ranks.of(name, theirs[there])[rank]
    return RankSteps(
        rank=rank,
        step=steps.group.of("number", slots),
        loss=steps.ranks.of("loss", slots)[rank],
        **{f"{name}_ms": steps.ranks.of(name, slots)[rank] for name in ("step", *PHASES)},
        **{f"{name}_ms": column for name, column in waits.items()},
    )
