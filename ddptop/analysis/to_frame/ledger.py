"""The ledger as a frame has it: the sums of complete steps, and what each rank has been at since its last."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from heapq import nlargest
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ledger.dear_times import NO_SCALES, iterate_explained, scale_dear
from ddptop.analysis.ledger.step_times import STEP_CLASSES, WAIT_PLACES, WAITING
from ddptop.analysis.ledger.sums import NOT_BEGUN, NS_PER_MS, RareWaits, TimeBin, WaitSum
from ddptop.analysis.past_activities import is_evaluating
from ddptop.frames.ledger import LEDGER_CLASSES, MAX_WAITED_FOR, Ledger, LedgerRanks, SkewCost, WaitedFor
from ddptop.protocol.messages import RECORDING_STOPPED, Activity, Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.ledger.dear_times import DearScales
    from ddptop.analysis.ledger.sums import WaitSums
    from ddptop.analysis.stall.diagnosis import Diagnosis
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import LedgerClass

REPLICATES = 400
"""Resampled runs for an interval of 95 %."""

LEAST_BINS = 8
"""With fewer bins of time there is no interval."""


def ledger_at(state: RunState, diagnosis: Diagnosis | None, now_ns: int) -> Ledger | None:
    """The ledger at `now_ns`; None before the first rank has reported, and where not all steps of the run are
    known. `diagnosis`: of the present stall."""
    ledger, world = state.ledger, state.world
    if state.clock is None or not world or not ledger.is_known:
        return None
    n_ranks, n_known = max(world, len(ledger.left_out)), len(ledger.left_out)
    scales = scale_dear(ledger.dear) if ledger.scales_dear else NO_SCALES
    as_usual_ms = ledger.left_out - scales.as_usual_ms(ledger.dear, n_known)
    scale = _scale_of_run(as_usual_ms, ledger.usual_total)
    dear = [(scales.by_kind[kind], times) for kind, times in ledger.dear.items() if kind in scales.by_kind]
    parts = [(scale, ledger.usual), *((of_kind, times.by_class) for of_kind, times in dear)]
    ms = np.zeros((len(LEDGER_CLASSES), n_ranks))
    ms[:, :n_known] = ledger.by_class
    for factor, by_class in parts:
        ms[_STEP_ROWS, :n_known] += factor * by_class
    ms[_ROW["unknown"], :n_known] += ledger.left_out - sum(
        factor * by_class.sum(axis=0) for factor, by_class in parts
    )
    _add_since_last_step(state, ms, diagnosis, now_ns)
    seconds = np.maximum(ms, 0.0) / 1000.0
    elapsed_s = seconds.sum(axis=0)
    columns = {f"{name}_s": column for name, column in zip(LEDGER_CLASSES, seconds, strict=True)}
    until_ns = now_ns if state.ended_ns is None else min(now_ns, state.ended_ns)
    run_s = max(0.0, state.unix_s(until_ns) - state.started_s)
    return Ledger(
        elapsed_s=run_s,
        ranks=LedgerRanks(elapsed_s=elapsed_s, **columns),
        run=_make_skew_cost(
            run_s,
            float(elapsed_s.sum()),
            ledger.n_steps,
            (scale, scales),
            ledger.waits,
            ledger.run_bins,
            rare_waits=ledger.rare_waits,
            is_thinned=state.missing.kept_every > 1,
        ),
        recent=_recent_skew_cost(state, n_ranks),
        scaled_s=float(sum(factor * by_class.sum() for factor, by_class in parts)) / 1000.0,
    )


def _recent_skew_cost(state: RunState, n_ranks: int) -> SkewCost:
    """What ranks lost by waiting for each other in the last minutes."""
    ledger, recent = state.ledger, TimeBin(0)
    for time_bin in ledger.recent_bins:
        recent.add(time_bin)
    scales = scale_dear(recent.dear) if ledger.scales_dear else NO_SCALES
    return _make_skew_cost(
        recent.total_ms / 1000.0 / n_ranks,
        recent.total_ms / 1000.0,
        int(recent.n_steps),
        (recent.scale(scales), scales),
        recent.waits,
        # In a short run the bins of the run are the finer ones.
        ledger.run_bins if recent.n_steps >= ledger.n_steps else [*ledger.recent_bins],
        rare_waits=ledger.rare_waits,
        is_thinned=state.missing.kept_every > 1,
    )


_ROW: dict[LedgerClass, int] = {name: row for row, name in enumerate(LEDGER_CLASSES)}
_STEP_ROWS = np.array([_ROW[name] for name in STEP_CLASSES])


def _scale_of_run(left_out_ms: Column, usual_ms: Column) -> float:
    """Seconds to add to each second in steps of usual length, for the steps that were left out, (ranks,) ms
    each. One number for all ranks: so what was waited for a rank remains what the others waited."""
    some = usual_ms > 0
    return float((left_out_ms[some] / usual_ms[some]).min(initial=np.inf)) if some.any() else 0.0


def _make_skew_cost(
    over_s: float,
    rank_seconds: float,
    steps: int,
    all_scales: tuple[float, DearScales],
    waits: WaitSums,
    bins: Sequence[TimeBin],
    *,
    rare_waits: RareWaits,
    is_thinned: bool,
) -> SkewCost:
    """What waiting cost within `over_s`. `rank_seconds`: of all ranks together in that time. `all_scales`: of
    steps of usual length, and of dear ones. `is_thinned`: the recording has not all steps."""
    scale, scales = all_scales
    whole_ms = {key: wait.rank_ms(scale, scales.by_kind) for key, wait in waits.items()}
    waited_s = sum(whole_ms.values()) / 1000.0
    largest = nlargest(MAX_WAITED_FOR, whole_ms.items(), key=lambda item: item[1])
    lost_pct = 100 * waited_s / rank_seconds if rank_seconds > 0 and steps else None
    dear_ms: defaultdict[int, float] = defaultdict(float)
    if rare_waits.of_same_length:
        for wait in waits.values():
            for power, dear in wait.dear.items():
                dear_ms[power] += dear.rank_ms(scales.by_kind)
    else:  # of the listed ones, those that are alike
        for key, _ in largest:
            dear_ms[0] += waits[key].dearest(scales.by_kind, rare_waits).rank_ms(scales.by_kind)
    low_pct, high_pct = _interval(bins, scales, lost_pct)
    return SkewCost(
        over_s=over_s,
        rank_seconds=waited_s,
        lost_pct=lost_pct,
        low_pct=low_pct,
        high_pct=high_pct,
        steps=steps,
        # Steps that are left out last as long as others. A recording that is thinned keeps the dear ones.
        recorded_steps=steps if is_thinned else round(steps / (1 + scale)),
        waited_for=tuple(
            _make_waited_for(key, waits[key], ms, scales.by_kind, rank_seconds, dear_ms, rare_waits)
            for key, ms in largest
            if ms > 0
        ),
    )


def _make_waited_for(
    key: int,
    wait: WaitSum,
    ms: float,
    scales: Mapping[int, float],
    rank_seconds: float,
    dear_ms: Mapping[int, float],
    rare_waits: RareWaits,
) -> WaitedFor:
    """`dear_ms`: waited in dear steps for any rank, by the power of two of the longest wait."""
    rank, place = divmod(key, len(WAIT_PLACES))
    dear, least = wait.dearest(scales, rare_waits), wait.alike_power(scales, rare_waits)
    own_ms = dear.rank_ms(scales)
    others_ms = rare_waits.sum_compared(dear_ms, least) - own_ms
    return WaitedFor(
        rank=rank,
        place=WAIT_PLACES[place],
        rank_seconds=ms / 1000.0,
        share_pct=100 * ms / 1000.0 / rank_seconds if rank_seconds > 0 else 0.0,
        steps=wait.n_steps,
        longest_s=wait.longest_ms / 1000.0,
        longest_step=wait.longest_step,
        dear_steps=tuple(dear.steps),
        dear_s=dear.longest_ms / 1000.0 / max(1, dear.n_steps),
        n_dear=dear.n_steps,
        n_dear_in_all=round(dear.n_steps_in_all(scales)),
        dear_rank_seconds=own_ms / 1000.0,
        is_main=rare_waits.are_main(own_ms, max(0.0, others_ms)),
        dear_since_s=dear.since_s,
        n_witnessed=dear.n_witnessed,
    )


def _interval(
    bins: Sequence[TimeBin], scales: DearScales, lost_pct: float | None
) -> tuple[float | None, float | None]:
    """Interval of 95 % of the share that is lost, by bootstrap over bins of time: blocks of steps."""
    if lost_pct is None or len(bins) < LEAST_BINS:
        return None, None
    columns = np.array([(time_bin.waited_ms(scales), time_bin.total_ms) for time_bin in bins])
    draws = _draws(len(bins))
    waited, total = (draws @ columns.T[:, :, None])[..., 0]
    waited_ms, total_ms = columns[:, 0].sum(), columns[:, 1].sum()
    dear = [time_bin.dear for time_bin in bins]
    for left_out, recorded, waiting in iterate_explained(dear, scales, WAITING):
        # Which recorded dear steps a draw has decides how those that were left out are divided.
        waited = waited + draws @ left_out * (draws @ waiting) / np.maximum(draws @ recorded, 1e-9)
        waited_ms += left_out.sum() * waiting.sum() / recorded.sum()
    shares = waited / np.maximum(total, 1e-9)
    whole = waited_ms / max(total_ms, 1e-9)
    low, high = np.quantile(shares, (0.025, 0.975)) / whole if whole > 0 else (1.0, 1.0)
    return lost_pct * float(low), min(100.0, lost_pct * float(high))


@lru_cache(maxsize=4)
def _draws(n: int) -> Column:
    """(REPLICATES, n) how often each bin is drawn, always the same: a replay shows the same."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=REPLICATES).astype(np.float64)


def _add_since_last_step(state: RunState, ms: Column, diagnosis: Diagnosis | None, now_ns: int) -> None:
    """Add the time of each rank from its last complete step, or from the launch, to the end of the run or to
    now: also after its process ended, so that all ranks together have ranks times the run."""
    world = state.world
    end_ns = np.full(world, NOT_BEGUN)
    n_known = min(world, len(state.ledger.end_ns))
    end_ns[:n_known] = state.ledger.end_ns[:n_known]
    if state.ended_ns is not None:
        now_ns = min(now_ns, state.ended_ns)
    until_ns = _since_launch_ns(state, now_ns)
    since_ns = np.maximum(end_ns, 0)
    open_ms = np.maximum(until_ns - since_ns, 0) / NS_PER_MS
    stalled_ms = np.zeros(world)
    if diagnosis is not None:
        begin_ns = np.maximum(since_ns, _since_launch_ns(state, diagnosis.since_ns))
        there_until_ns = np.full(world, until_ns)
        for rank in state.presence.ended:
            there_until_ns[rank] = min(until_ns, _since_launch_ns(state, _end_ns(state, rank, now_ns)))
        stalled_ms = np.clip((there_until_ns - begin_ns) / NS_PER_MS, 0.0, open_ms)
    ms[_ROW["stalled"], :world] += stalled_ms
    classes = _present_classes(state, end_ns != NOT_BEGUN)
    for row in np.unique(classes).tolist():
        ms[row, :world] += np.where(classes == row, open_ms - stalled_ms, 0.0)
    at_end = np.flatnonzero(classes[:n_known] == _ROW["end"])
    for place, aside_ms in state.ledger.aside_after_last_step(at_end).items():
        moved_ms = np.minimum(aside_ms, ms[_ROW["end"], at_end])
        ms[_ROW["end"], at_end] -= moved_ms
        ms[_ROW[place], at_end] += moved_ms


def _since_launch_ns(state: RunState, t_ns: int) -> int:
    """A moment on the collector's clock as nanoseconds since the run's first message."""
    assert state.clock is not None
    return t_ns - state.clock[1]


def _end_ns(state: RunState, rank: int, now_ns: int) -> int:
    """When the process of a rank that has ended was seen to end."""
    of_rank = state.ranks[rank]
    ends = [at_ns for at_ns in (of_rank.ended_ns, of_rank.gone_ns, of_rank.exit_ns) if at_ns is not None]
    return max(ends, default=now_ns)


def _present_classes(state: RunState, has_steps: Mask) -> Indices:
    """(ranks,) the row of the class of what each rank is at since its last complete step."""
    has_ended = np.zeros(state.world, bool)
    has_ended[[*state.presence.ended]] = True
    if state.run is not None and state.run.state != "live":
        has_ended[:] = True
    restarts = np.zeros(state.world, bool)
    of_ledger = state.ledger.is_restarting()[: state.world]
    restarts[: len(of_ledger)] = of_ledger
    newest = state.table.newest[Progress]
    present: dict[LedgerClass, Mask] = {
        "start": ~has_steps,
        "unknown": _has_unrecorded_steps(state),
        "end": has_ended,
        "restart": restarts,
        "saving": newest.is_known & (newest.field("activity") == int(Activity.SAVE)),
        "phase": state.table.declared > 0,
        "evaluation": newest.is_known & is_evaluating(newest),
    }
    return np.select([*present.values()], [_ROW[name] for name in present], _ROW["unknown"])


def _has_unrecorded_steps(state: RunState) -> Mask:
    """(ranks,) whether the rank has trained on after the disk of the recording took nothing any more."""
    trouble, step = state.missing.recording_trouble, state.complete_step
    if trouble is None or step is None or not trouble[1].startswith(RECORDING_STOPPED):
        return np.zeros(state.world, bool)
    return state.table.step[: state.world] > step + 1
