"""What the ranks do while a step lasts far longer than usual, and how far they are in their DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np

from ddptop.analysis.health.hosts import host_states
from ddptop.analysis.rank_table import STALE_S
from ddptop.analysis.ranks import PHASE_NAMES
from ddptop.frames.activity import ActivityKind, ActivitySpan, EpochProgress, LongActivity
from ddptop.frames.conditions import SILENT_STATES
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import BATCH_SIZE, Activity, Phase, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.analysis.rank_table import Integers
    from ddptop.analysis.state import RunState

LONG_STEP_NS = NS
"""Below this no step is called long: a person would not notice it."""

LONG_STEPS = 10
"""In median steps, how long a step must last to be called long."""

_KINDS: Mapping[int, ActivityKind] = {
    Activity.EVALUATE: "evaluate",
    Activity.SAVE: "save",
    Activity.BEFORE_FORWARD: "before_forward",
    Activity.BEFORE_BACKWARD: "before_backward",
    Activity.BEFORE_OPTIMIZER: "before_optimizer",
    Activity.AFTER_OPTIMIZER: "after_optimizer",
}

_SAID: frozenset[ActivityKind] = frozenset(("declared", "evaluate", "save"))
"""What a rank has said that it does holds also while it sends nothing: a save may hold the interpreter."""

_ORDER: Mapping[str, int] = {kind: place for place, kind in enumerate(get_args(ActivityKind))}


class LongStep(NamedTuple):
    """A step that lasts much longer than usual."""

    activities: tuple[LongActivity, ...]
    """What the ranks do in it, those first that the others wait for."""
    lasts_s: float
    """For how long all running ranks have been in it."""


def long_step(state: RunState, median_step_ms: float | None, now_ns: int) -> LongStep | None:
    """The step that the ranks are in, if it is long; None: steps go on as usual.

    A step is long by the clocks of the ranks that report, so that late messages make none.
    """
    table = state.table
    running = np.flatnonzero(state.presence.running & table.newest[Progress].is_known)
    if (
        state.complete_step is None
        or median_step_ms is None
        or not len(running)
        or len(running) < np.count_nonzero(state.presence.running)
    ):
        return None
    limit_ns = max(LONG_STEP_NS, LONG_STEPS * median_step_ms * 1e6)
    # At most so long, by any clock: mostly it is not, and the ranks need not be looked at one by one.
    unheard_ns = np.maximum(0, now_ns - table.heard_ns[running])
    if (table.stood_ns[running] + unheard_ns).min() < limit_ns:
        return None
    silent_ns = _silent_ns(state, running, now_ns)
    stands_ns = _stands_ns(state, running, silent_ns)
    if stands_ns < limit_ns:
        return None
    beats = table.newest[Progress]
    activity, phase, since_ns = (beats.field(name) for name in ("activity", "phase", "since_ns"))
    ranks_of: dict[tuple[ActivityKind, str], list[int]] = {}
    for rank, silence_ns in zip(running.tolist(), silent_ns.tolist(), strict=True):
        kind = _activity_kind(int(activity[rank]), int(phase[rank]), bool(table.declared[rank]))
        if silence_ns:
            kind = "stopped" if state.ranks[rank].stopped else kind if kind in _SAID else "silent"
        ranks_of.setdefault((kind, _activity_name(state, rank, kind, int(activity[rank]))), []).append(rank)
    here_ns = np.where(since_ns > 0, since_ns + table.delay_ns, table.moved_ns)
    begin_ns = {"stopped": table.heard_ns, "silent": table.heard_ns}
    activities = [
        LongActivity(kind, name, tuple(ranks), state.unix_s(int(begin_ns.get(kind, here_ns)[ranks].min())))
        for (kind, name), ranks in sorted(ranks_of.items(), key=lambda item: _ORDER[item[0][0]])
    ]
    return LongStep(tuple(activities), stands_ns / NS)


def _silent_ns(state: RunState, running: Integers, now_ns: int) -> Integers:
    """For how long each of these ranks has sent nothing; 0: it reports as usual.

    Of one that is stopped any time counts, of others that after which their state is stale, unless nothing
    arrives from their host: then the state of the run says so."""
    silent_ns = np.zeros(len(running), np.int64)
    heard_ns = state.table.heard_ns[running]
    for index in range(len(running)):
        silence_ns = state.interruptions.silence_ns(int(heard_ns[index]), now_ns)
        if silence_ns > STALE_S * NS or state.ranks[running[index]].stopped:
            silent_ns[index] = silence_ns
    if silent_ns.any():
        hosts = host_states(state, now_ns)
        for index in np.flatnonzero(silent_ns).tolist():
            if hosts.get(state.ranks[running[index]].host) in SILENT_STATES:
                silent_ns[index] = 0
    return silent_ns


def _stands_ns(state: RunState, running: Integers, silent_ns: Integers) -> int:
    """For how long all these ranks have been in their steps, by their own clocks; of those that send nothing,
    as long as others show that no step ends, or a signal has stopped them, also by the collector's."""
    reports = silent_ns == 0
    stopped = [state.ranks[rank].stopped for rank in running[~reports].tolist()]
    if not (reports.any() or all(stopped)):
        return 0
    return int((state.table.stood_ns[running] + silent_ns).min())


def past_activities(state: RunState) -> tuple[ActivitySpan, ...]:
    """When any rank evaluated or saved, as far as heartbeats were read."""
    spans = [
        ActivitySpan(span.kind, state.unix_s(span.begin_ns), state.unix_s(span.end_ns))
        for span in state.past_activities.of_run
    ]
    return tuple(sorted(spans, key=lambda span: span.since_s))


def _activity_kind(activity: int, phase: int, declared: bool) -> ActivityKind:
    """What a rank does, by its newest heartbeat; before this was sent, by its phase alone."""
    if activity >= Activity.WAIT:
        return "wait"
    if declared:
        return "declared"
    if activity in _KINDS:
        return _KINDS[activity]
    return PHASE_NAMES.get(phase) or "other" if phase != Phase.EVALUATE else "evaluate"


def _activity_name(state: RunState, rank: int, kind: ActivityKind, activity: int) -> str:
    if kind == "declared":
        return state.ranks[rank].phase_name or "a declared phase"
    if kind == "wait" and activity in list(Activity) and activity != Activity.WAIT:
        return Activity(activity).name.lower()
    return ""


def epoch_progress(state: RunState, steps_per_s: float | None) -> EpochProgress | None:
    """How far the lowest rank is that trains on a DataLoader; None: no rank does, or it is not known.

    None as well for ranks that have finished: their last heartbeat came before their last batch.
    `steps_per_s`: None where no steps are made now.
    """
    if (state.run is not None and state.run.state == "finished") or not state.presence.running.any():
        return None
    epochs = state.table.newest_values(Progress, "epoch")
    ranks = np.flatnonzero(epochs >= 0)
    if not len(ranks):
        return None
    rank = int(ranks[0])
    beat = state.ranks[rank].progress
    assert beat is not None
    batches = beat.batches if beat.batches >= beat.batch else None
    per_step = state.batch_pace.per_step or max(1, int(state.table.micro_steps[rank]))
    left_s = samples_per_s = None
    if steps_per_s:
        if batches is not None:
            left_s = (batches - beat.batch) / per_step / steps_per_s
        if (samples := _samples_of_all_ranks(state)) is not None:
            samples_per_s = samples * per_step * steps_per_s
    return EpochProgress(beat.epoch, max(0, beat.batch), batches, left_s, samples_per_s)


def _samples_of_all_ranks(state: RunState) -> int | None:
    """Samples in one full batch of every rank; None: not known of all."""
    sizes = [card.get(BATCH_SIZE) for card in state.cards.values()]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    return sum(known) if len(known) == state.world else None
