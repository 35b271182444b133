"""Builds a frame from the state, with medians over the steps that it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import numpy as np

from ddptop.analysis.health.alerts import alerts
from ddptop.analysis.health.links import explained_by_link
from ddptop.analysis.ledger.rare import rare_straggler
from ddptop.analysis.rank_columns import phase_names, reported_columns
from ddptop.analysis.ranks import group_state
from ddptop.analysis.stall.at_exit import ended_stall
from ddptop.analysis.stall.current import current_stall, rank_states, stall_diagnosis
from ddptop.analysis.stall.rank_position import deaths
from ddptop.analysis.stall.start import position_in_start, start_of
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import number_or_none
from ddptop.analysis.straggler.cost import select_steps
from ddptop.analysis.straggler.late_in_group import straggler_in_group
from ddptop.analysis.to_frame.activity import epoch_progress, long_step, past_activities
from ddptop.analysis.to_frame.cpus import cpu_shortage, cpu_wait_pct
from ddptop.analysis.to_frame.hosts import clocks_at, host_figures
from ddptop.analysis.to_frame.ledger import ledger_at
from ddptop.analysis.to_frame.process_groups import process_groups
from ddptop.analysis.to_frame.sampled_stacks import sampled_stacks
from ddptop.analysis.to_frame.tables import (
    bucket_figures,
    gpu_facts,
    heat,
    logged,
    make_ranks,
    rank_steps,
    with_reasons,
)
from ddptop.analysis.to_frame.timeline import timeline
from ddptop.frames.buckets import all_reduces, wire_bytes
from ddptop.frames.detail import HeatRequest, TimelineRequest, parse_request
from ddptop.frames.figures import GROUP_FIGURES, RANK_FIGURES, Ranks, figures_shown
from ddptop.frames.frame import Clocks, Frame, GroupFigures, RunInfo
from ddptop.frames.history import RankSteps
from ddptop.frames.numbers import percent
from ddptop.frames.overhead import Overhead
from ddptop.frames.phrases import blamed
from ddptop.frames.stall import gravest_ranks
from ddptop.frames.statistics import interpolated_quantile, median
from ddptop.frames.training_kind import times_waiting
from ddptop.protocol.limits import MUTE_AFTER
from ddptop.protocol.machine import OwnCost, Usage
from ddptop.protocol.messages import Progress
from ddptop.protocol.vocabulary import SHARDED, TrainingKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.analysis.straggler.cost import FrameSteps
    from ddptop.analysis.to_frame.activity import LongStep
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Alert, BucketFigures, Straggler
    from ddptop.frames.ledger import Ledger
    from ddptop.protocol.messages import Scalar
    from ddptop.protocol.vocabulary import FrameSource, RankStatus, RunOutcome

CARD_OWN = ("torch", "script", "argv", "training")
"""Entries of a rank's card that are fields of their own in a frame."""

EXPOSED_OF_RANKS = tuple(name for name, figure in RANK_FIGURES.items() if figure.is_exposed)
"""Columns of `Ranks` that are unknown where waiting is not timed: 0 would say that nobody waits."""
EXPOSED_OF_GROUP: dict[str, Any] = dict.fromkeys(figure.name for figure in GROUP_FIGURES if figure.is_exposed)
"""Fields of `GroupFigures` that are unknown there: None."""
EXPOSED_IN_MAPS = tuple(
    how.key for figure, how in figures_shown(lambda figure: figure.heat) if figure.is_exposed
)
"""Figures of a heat map that are unknown there."""
EXPOSED_IN_STEPS = ("wait_ms", "transfer_ms")
"""Columns of `RankSteps` that are unknown there."""


def build(
    state: RunState,
    now_ns: int,
    *,
    cursor: int,
    focus: int | None,
    source: FrameSource,
    recording: str | None,
    gpus: bool,
    hosts: bool,
) -> Frame:
    """The frame at `now_ns`. Arguments as in `Reducer.frame`."""
    shown = select_steps(state.figures, state.history.end)
    outcome: RunOutcome = state.run.state if state.run is not None else "live"
    states = rank_states(state, now_ns)
    diagnosis, kept = stall_diagnosis(state, states, now_ns), state.stall_at_end()
    ledger = ledger_at(state, diagnosis, now_ns)
    straggler = _choose_straggler(state, shown, ledger)
    run = _run_info(state, now_ns, group_state(states, outcome, stalled=diagnosis is not None), recording)
    of_steps = _figures_of_steps(state, shown, states, focus, now_ns)
    if not times_waiting(run.training):
        of_steps = of_steps.without_waiting()
    ranks, group = of_steps.ranks, of_steps.group
    if straggler is not None and straggler.group and run.training in SHARDED:
        ranks = ranks.without_excess()  # own times contain the waiting for the late rank
    stall = ended_stall(state, kept) if kept is not None else current_stall(state, diagnosis, now_ns)
    dead = deaths(state, now_ns)
    clocks = clocks_at(state, sorted(state.presence.hellos.of_hosts), now_ns)
    grave = gravest_ranks(ranks.state, stall, dead)
    live = outcome == "live" and diagnosis is None and kept is None
    long = long_step(state, group.step_ms_p50, now_ns) if live else None
    group = _with_rate_of(long, group)
    return Frame(
        source="simulated" if state.run is not None and state.run.simulated else source,
        unix_s=state.unix_s(now_ns),
        run=run,
        group=group,
        ranks=ranks,
        buckets=of_steps.buckets,
        straggler=with_reasons(straggler, state),
        suspect=shown.suspect,
        alerts=alerts(state, states, straggler, diagnosis, now_ns),
        events=state.log.all(),
        overhead=_overhead_figures(state),
        history=state.history.since(cursor),
        focus=of_steps.focus,
        records=int(state.table.records.sum()),
        lost_records=int(state.table.lost_records.sum()),
        stall=stall,
        deaths=dead,
        logged=logged(state, focus),
        gpus=gpu_facts(state) if gpus else (),
        clocks=_clock_offsets(clocks),
        hosts=host_figures(state, ranks, grave, straggler, clocks, now_ns) if hosts else (),
        ledger=ledger,
        activities=() if long is None else long.activities,
        past_activities=past_activities(state),
        progress=epoch_progress(state, group.steps_per_s if live and long is None else None),
        sampled=sampled_stacks(state, straggler),
        process_groups=process_groups(state),
        start=start_of(state),
    )


def _clock_offsets(clocks: Mapping[str, Clocks]) -> tuple[Clocks, ...]:
    """The clock of each host, compared with the collector's. A single host has one clock, so no offset."""
    if len(clocks) == 1:
        return (Clocks(next(iter(clocks)), 0.0, 0.0, 0.0),)
    return tuple(clocks.values())


def with_reports(state: RunState, frame: Frame, now_ns: int, *, cursor: int) -> Frame:
    """The figures of an earlier frame of the same run and ranks, with what they have reported by `now_ns`.

    The history ends with the last step that is evaluated, which may come before the newest complete one."""
    unix_s = state.unix_s(now_ns)
    columns: dict[str, Any] = reported_columns(state.table, state.presence.hellos, now_ns)
    live = frame.run.state == "live"
    long = long_step(state, frame.group.step_ms_p50, now_ns) if live else None
    ranks = replace(frame.ranks, phase=phase_names(state.table), **columns)
    return replace(
        frame,
        unix_s=unix_s,
        run=replace(frame.run, elapsed_s=frame.run.elapsed_s + unix_s - frame.unix_s),
        group=_with_rate_of(long, replace(frame.group, step=state.complete_step)),
        ranks=ranks,
        history=state.history.since(cursor),
        records=int(ranks.records.sum()),
        lost_records=int(ranks.lost_records.sum()),
        activities=() if long is None else long.activities,
        past_activities=past_activities(state),
        progress=epoch_progress(state, frame.group.steps_per_s if live and long is None else None),
    )


def _with_rate_of(long: LongStep | None, group: GroupFigures) -> GroupFigures:
    """`group` with the rate of a long step: no step has ended for so long, and the rate of those before it
    would be wrong."""
    if long is None or group.steps_per_s is None:
        return group
    return replace(group, steps_per_s=min(group.steps_per_s, 1 / long.lasts_s))


def active_alerts(state: RunState, now_ns: int) -> tuple[Alert, ...]:
    """The alerts of the frame at `now_ns`, without the rest of it."""
    states = rank_states(state, now_ns)
    straggler = present_straggler(state)
    return alerts(state, states, straggler, stall_diagnosis(state, states, now_ns), now_ns)


def present_straggler(state: RunState) -> Straggler | None:
    """The straggler of the frame, without the rest of it."""
    shown = select_steps(state.figures, state.history.end)
    return _choose_straggler(state, shown, ledger_at(state, None, state.newest_ns))


def _choose_straggler(state: RunState, shown: FrameSteps, ledger: Ledger | None) -> Straggler | None:
    """The straggler of the frame; None: no rank is one.

    The rules for a window of steps may flag a rank, unless a link between hosts explains why it is late. So
    may the sums of the ledger; of two, the one that costs more is shown. Where neither flags a rank, the
    collectives of process groups decide.
    """
    late, rare = shown.straggler, None
    if explained_by_link(state.hosts, late, state.presence.host_names):
        late = None
    if ledger is not None and state.figures.steps.has_own:  # else waits are known of sampled steps only
        rare = rare_straggler(ledger)
    if late is None and rare is None:
        return straggler_in_group(state, state.newest_ns)
    if late is None or rare is None:
        return late or rare
    of_both = late.pattern == "intermittent" and late.rank == rare.rank
    if of_both and late.lateness_ms * RARE_IS_LARGER < rare.lateness_ms:
        return rare if RARE_IS_LARGER * rare.cost_pct > late.cost_pct else late
    return rare if rare.cost_pct > late.cost_pct else late


RARE_IS_LARGER = 4.0
"""A rank that is rarely slow, by much, may be flagged as slow now and then as well: the same steps are in
both flags. That is assumed where its rare lateness is so many times as large. The rare flag is then shown,
unless it costs less than 1 / RARE_IS_LARGER of the other."""


def _run_info(state: RunState, now_ns: int, shown: RankStatus, recording: str | None) -> RunInfo:
    run = state.run
    first = next((hello for hello in state.presence.hellos.hellos if hello is not None), None)
    card: dict[str, Scalar] = dict(state.cards[min(state.cards)]) if state.cards else {}
    torch, script, argv, training = (card.pop(name, None) for name in CARD_OWN)
    until_ns = now_ns if state.ended_ns is None else min(now_ns, state.ended_ns)
    return RunInfo(
        name=run.name if run else "",
        id=run.run_id if run else first.run_id if first is not None else "",
        state=shown,
        started_at=state.started_s,
        elapsed_s=max(0.0, state.unix_s(until_ns) - state.started_s),
        world_size=state.world,
        backend=first.backend if first is not None else None,
        nodes=len(state.presence.hellos.of_hosts),
        script=run.script if run else str(script or ""),
        argv=run.argv if run else tuple(str(argv or "").split()),
        torch=None if torch is None else str(torch),
        exit_code=run.exit_code if run else None,
        recording=recording,
        card=card,
        training=_training_kind(training, has_trained=state.complete_step is not None),
    )


def _training_kind(reported: Scalar, *, has_trained: bool) -> TrainingKind | None:
    """How the ranks train, as they have reported. Without a report it is DDP, once there are steps: earlier
    versions recorded nothing else."""
    kind = next((kind for kind in get_args(TrainingKind) if kind == reported), None)
    return kind if kind is not None else "ddp" if has_trained else None


def _group_figures(state: RunState, shown: FrameSteps, buckets: Sequence[BucketFigures]) -> GroupFigures:
    figures, slots, detail = state.figures, shown.steps, shown.detail
    number, step, end = (figures.steps.group.of(name, slots) for name in ("number", "step", "end"))
    p50 = number_or_none(median(step)) if len(step) else None
    span = float(end[-1] - end[0]) if len(end) > 1 else 0.0
    loss = np.where(figures.has_loss, figures.loss, np.nan)
    finite = np.isfinite(loss).any()
    collective, wait, transfer = (detail.over_ranks(name) for name in ("collective", "wait", "transfer"))
    reduced = all_reduces(buckets)
    return GroupFigures(
        step=state.complete_step,
        steps_per_s=float(number[-1] - number[0]) / span if span > 0 else None,
        step_ms_p50=p50,
        step_ms_p95=number_or_none(interpolated_quantile(step, 0.95)) if len(step) else None,
        loss_mean=number_or_none(figures.loss[figures.has_loss].mean()) if figures.has_loss.any() else None,
        loss_min=number_or_none(np.nanmin(loss)) if finite else None,
        loss_max=number_or_none(np.nanmax(loss)) if finite else None,
        loss_min_rank=int(np.nanargmin(loss)) if finite else None,
        loss_max_rank=int(np.nanargmax(loss)) if finite else None,
        collective_ms=collective,
        wait_ms=wait,
        transfer_ms=transfer,
        overlap_pct=detail.group("overlap"),
        busbw_gbps=detail.group("busbw"),
        **shown.what_if._asdict(),
        bound_ms=_largest_bound(detail.bound),
        transfer_bound_ms=_largest_bound(detail.transfer_bound),
        clock_free=detail.clock_free,
        **(_clock_reason(state) if detail.clock_free else {}),
        incarnation=state.incarnation,
        window_steps=len(slots),
        all_reduces=reduced,
        wire_bytes=None if reduced is None else wire_bytes(buckets),
        late_no_sync=figures.late_no_sync,
        loss_as_given=figures.loss_as_given,
        optimizers_in_turn=figures.turns.optimizers,
        loss_of_other=figures.turns.loss_of_other if figures.turns.optimizers else None,
        cpu_wait_pct=cpu_wait_pct(figures.steps, slots),
        cpu_shortage=cpu_shortage(state) if state.world > 1 else "",
        **_exposed_figures(figures.steps, shown),
    )


_Columns = TypeVar("_Columns", Ranks, RankSteps)


def _forget_columns(table: _Columns, names: Sequence[str]) -> _Columns:
    """The table in which nothing is known of some columns."""
    return replace(table, **{name: np.full_like(getattr(table, name), np.nan) for name in names})


class _FiguresOfSteps(NamedTuple):
    """What a frame has of the steps that it shows."""

    ranks: Ranks
    group: GroupFigures
    buckets: tuple[BucketFigures, ...]
    focus: RankSteps | None

    def without_waiting(self) -> _FiguresOfSteps:
        """Without exposed communication and its parts, which nothing has timed."""
        return self._replace(
            ranks=_forget_columns(self.ranks, EXPOSED_OF_RANKS),
            group=replace(self.group, **EXPOSED_OF_GROUP),
            focus=None if self.focus is None else _forget_columns(self.focus, EXPOSED_IN_STEPS),
        )


def _figures_of_steps(
    state: RunState, shown: FrameSteps, states: Sequence[RankStatus], focus: int | None, now_ns: int
) -> _FiguresOfSteps:
    buckets, steps_of_focus = bucket_figures(state, shown.detail), None
    if focus is not None and 0 <= focus < state.figures.world:
        steps_of_focus = rank_steps(state, shown.detail, focus)
    return _FiguresOfSteps(
        ranks=make_ranks(state, states, shown, now_ns),
        group=_group_figures(state, shown, buckets),
        buckets=buckets,
        focus=steps_of_focus,
    )


def _clock_reason(state: RunState) -> dict[str, Any]:
    """Why the arrivals of the first process group whose clocks are too inaccurate are not compared."""
    window = state.figures.detail
    scopes = [] if window is None else [scope for scope in window.scopes.values() if scope.clock_free]
    if not scopes:
        return {}
    return {
        "clock_reason": scopes[0].clock_reason(state.presence.host_names),
        "clocks_contradict": scopes[0].contradicted,
    }


def _exposed_figures(steps: StepWindow, shown: FrameSteps) -> dict[str, Any]:
    """Exposed communication, its parts and its share of the step: medians over steps of means over ranks.

    From every step where the last gradients are known; where in none, from those with bucket detail."""
    slots, detail = shown.steps, shown.detail
    wall, wait_ms, transfer = (
        steps.group.of(name, slots) for name in ("step", "exposed_wait", "exposed_transfer")
    )
    if np.isnan(wait_ms).all():
        exposed, wait = detail.over_ranks("exposed"), detail.over_ranks("exposed_wait")
        step = number_or_none(median(wall)) if len(wall) else None
        return {
            "exposed_comm_ms": exposed,
            "exposed_wait_ms": wait,
            "exposed_transfer_ms": None if exposed is None or wait is None else exposed - wait,
            "exposed_comm_pct": None if exposed is None or not step else 100 * exposed / step,
        }
    return {
        "exposed_comm_ms": number_or_none(median(wait_ms + transfer)),
        "exposed_wait_ms": number_or_none(median(wait_ms)),
        "exposed_transfer_ms": number_or_none(median(transfer)),
        "exposed_comm_pct": number_or_none(median(formulas.share(100 * (wait_ms + transfer), wall))),
    }


def _largest_bound(bounds: Column) -> float | None:
    """The largest bound, which holds for every rank; None: unknown."""
    return number_or_none(np.fmax.reduce(bounds)) if len(bounds) else None


def _largest_of_beats(state: RunState, name: str) -> Any:
    """The largest `name` in the ranks' newest heartbeats, as it was sent; None: no heartbeat has come."""
    column = state.table.newest_values(Progress, name)
    if np.isnan(column).all():
        return None
    return getattr(state.ranks[int(np.nanargmax(column))].progress, name)


def _overhead_figures(state: RunState) -> Overhead:
    failures = state.table.newest_values(Progress, "failures")
    measured = state.figures.shadow_cost.measured
    every_step_pct = _largest_bound(state.table.newest_values(OwnCost, "every_step_pct"))
    if measured is not None and every_step_pct is not None:
        measured = measured.add_every_step(every_step_pct)
    overhead = Overhead(
        budget_pct=state.presence.hellos.budget_pct,
        measured_pct=_largest_of_beats(state, "cost_pct") or None,  # a rank sends 0 until it knows it
        us_per_step=_largest_of_beats(state, "cost_us") or None,
        detail_every=_largest_of_beats(state, "detail_every"),
        failures=int(np.nansum(failures)),
        measured=measured,
        recorded_every=state.figures.recorded_steps.every,
        collector_pct=_largest_bound(state.table.newest_values(Usage, "watcher_pct")),
        every_step_pct=every_step_pct,
    )
    if (failures >= MUTE_AFTER).any():
        reason = f"a rank stopped to record it after {MUTE_AFTER} internal errors"
        return replace(overhead, detail_every=None, detail_reason=reason)
    simulated = state.run is not None and state.run.simulated
    return overhead if simulated else replace(overhead, detail_reason=_detail_reason(overhead))


def _detail_reason(overhead: Overhead) -> str | None:
    """Why not every step has bucket detail: the cost measured in the ranks against their budget."""
    every, budget, cost = overhead.detail_every, overhead.budget_pct, overhead.measured_pct
    if every is None or every == 1 or budget is None or cost is None:
        return None
    if cost > budget:
        return f"ddptop takes {percent(cost)} of the step, its budget is {budget:g}%"
    return f"more would exceed the {budget:g}% budget"


def with_requested(state: RunState, frame: Frame, text: str, now_ns: int) -> Frame:
    """The frame with what `text` requests; unchanged without a valid request."""
    request = parse_request(text)
    if request is None or not state.world:
        return frame
    if isinstance(request, TimelineRequest):
        return replace(frame, timeline=timeline(state, request, next(iter(blamed(frame.straggler)), None)))
    if isinstance(request, HeatRequest):
        shown = heat(state, request)
        if shown and request.figure in EXPOSED_IN_MAPS and not times_waiting(frame.run.training):
            unknown = np.full_like(shown.value, np.nan)
            shown = replace(shown, value=unknown, rank=unknown, low=None, middle=None, high=None)
        return replace(frame, heat=shown)
    return replace(frame, position=position_in_start(state, request.rank, now_ns))
