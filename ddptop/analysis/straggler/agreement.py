"""Whether the bucket arrivals agree with the straggler that every step's own times show."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.figures import place_excess
from ddptop.analysis.steps.groups import Flagged
from ddptop.analysis.steps.windows import FEW_DETAILED, SCOPE_COLUMNS, SCOPE_SCALARS
from ddptop.analysis.straggler import arrival_rules, own_time_rules
from ddptop.analysis.straggler.arrival_flags import is_confirmed
from ddptop.frames.statistics import element_at, median, median_of_sorted, quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.figures import Figures, StepFlag, StepVerdict
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow, StepWindow
    from ddptop.frames.columns import Column, Indices, Mask

ON_TIME = 0.5
"""Arrivals contradict a flagged rank when it arrives earlier than this share of its excess in four of five
detailed steps."""


def _waited_elsewhere(steps: StepWindow, flag: StepFlag, slot: int) -> bool:
    """Whether the other ranks wait for the flagged one in collectives of the script's own.

    Then it is slow, and all ranks' buckets arrive on time."""
    is_flagged = np.zeros(steps.world, bool)
    is_flagged[[*flag.ranks]] = True
    other_ranks = flag.members[~is_flagged[flag.members]]
    waited = steps.waited(np.arange(max(0, slot + 1 - own_time_rules.NEWEST), slot + 1))[other_ranks]
    return bool(float(median(waited.ravel())) >= ON_TIME * flag.level_ms)


def _waits_for_cpu(steps: StepWindow, late: Flagged, slot: int) -> bool:
    """Whether the rank that arrives late has waited for a CPU: then it is not slow by itself."""
    slots, members = (
        np.arange(max(0, slot + 1 - own_time_rules.KEEP_STEPS), slot + 1),
        np.array(late.scope.ranks),
    )
    waited = place_excess(steps, "cpu", slots, members)[late.rank]
    return bool(float(median(waited)) >= ON_TIME * late.lateness_ms)


def _another_is_late(
    steps: StepWindow, detail: DetailWindow, slots: Indices, ranks: tuple[int, ...], slot: int
) -> bool:
    """Whether the arrivals in these detailed steps flag a rank that is none of `ranks`, and that is slow by
    itself. `slot`: of the newest step."""
    for scope in detail.scopes.values() if len(slots) >= arrival_rules.FLAG_STEPS else ():
        if scope.clock_free:
            continue
        detailed = scope.with_detail(slots)
        few = len(detailed) < arrival_rules.FLAG_STEPS
        if few or scope.most_lost_pct(detailed) < arrival_rules.FLAG_PCT:
            continue
        measured = arrival_rules.measure(scope, detailed)
        if measured is None or not arrival_rules.meets_flag_threshold(measured):
            continue
        late = Flagged(scope.scope, measured.ranks[0], "persistent", measured.cost_ms, measured.lateness_ms)
        if late.global_rank in ranks or _waits_for_cpu(steps, late, slot):
            continue
        if is_confirmed(detail, late, slots):
            return True
    return False


def _point(steps: StepWindow, slot: int) -> int:
    """The point of a step in the history; at least that, where it is not kept any more."""
    oldest = int(steps.slots()[0])
    return int(steps.group.of("point", np.array([max(slot, oldest)]))[0]) - max(0, oldest - slot)


def arrivals_disagree(figures: Figures, slot: int) -> bool:
    """Whether the bucket arrivals contradict the verdict at a step with certainty, since it last changed.

    They do when they flag another rank, or show the flagged one on time. `slot`: of the step. Of a rank that
    is slow now and then they are no proof: another one may arrive a little late in the steps between.
    """
    window, (since, flag, blind) = figures.detail, figures.flags.at(slot)
    if window is None or window.clock_free or blind or (flag is not None and flag.pattern == "intermittent"):
        return False
    slots = window.since(_point(figures.steps, since))
    if _another_is_late(figures.steps, window, slots, () if flag is None else flag.ranks, slot):
        return True
    if flag is None or flag.pattern != "persistent":
        return False
    for scope in window.scopes.values():
        if flag.rank not in scope.scope.ranks or scope.clock_free:
            continue
        rank, detailed = scope.scope.ranks.index(flag.rank), scope.with_detail(slots)
        lateness = scope.ranks.of("lateness", detailed)[rank]
        if len(detailed) >= FEW_DETAILED and not np.isnan(lateness).all():
            latest_ms = float(quantile(lateness, LATEST)) + float(scope.bound_ms(detailed)[rank])
            is_on_time = latest_ms < ON_TIME * flag.level_ms
            return is_on_time and not _waited_elsewhere(figures.steps, flag, slot)
    return False


LATEST = 0.8
"""The flagged rank is on time if this share of its lateness, and the clocks' bound, are below ON_TIME."""


def agreements(
    figures: Figures,
    added: tuple[Column, Column],
    points: Column,
    stops: Indices,
    verdicts: Sequence[StepVerdict],
) -> list[bool]:
    """Whether it is certain at each of k evaluations that `arrivals_disagree` finds nothing, of one process
    group on one host. It is found for all of them at once, as a matrix of their steps.

    `added`: the values of n detailed steps for the rings `ranks` and `group` of the group's window, behind
    those that it has; `points`: (n,) their history points. `stops`: (k,) how many of these steps come before
    each evaluation; `verdicts`: (k,) what the own times say then."""
    window = figures.detail
    assert window is not None
    (scope,) = window.scopes.values()
    before = window.ranks.recent(figures.size)
    detailed = _DetailedSteps.of(scope, before, added)
    if not detailed.are_known:
        return [False] * len(stops)
    point_of = {since: _point(figures.steps, since) for since in {verdict.since for verdict in verdicts}}
    since = [point_of[verdict.since] for verdict in verdicts]
    firsts = np.searchsorted(np.hstack([window.group.of("point", before), points]), since)
    places = (len(before) + stops)[:, None] + np.arange(-figures.size, 0)
    is_judged, places = places >= firsts[:, None], np.maximum(places, 0)
    n_judged = is_judged.sum(axis=1)
    ranks, late = scope.scope.ranks, _lateness_of_ranks(detailed, places, is_judged)
    is_clear = late.low > np.maximum(late.bound, arrival_rules.SPREAD_SHARE * late.middle)
    latest = np.where(is_clear, late.middle, -np.inf).argmax(axis=1)
    may_flag = is_clear.any(axis=1) & (n_judged >= arrival_rules.FLAG_STEPS)
    may_flag &= ~detailed.are_cheap(places, is_judged)
    agree = []
    for number, (_, flag, blind) in enumerate(verdicts):
        another = may_flag[number] and (flag is None or ranks[latest[number]] not in flag.ranks)
        on_time = False
        if flag is not None and flag.rank in ranks and n_judged[number] >= FEW_DETAILED:
            row = ranks.index(flag.rank)
            on_time = bool(late.high[number, row] + late.bound[number, row] < ON_TIME * flag.level_ms)
        is_judged_by_arrivals = not blind and (flag is None or flag.pattern != "intermittent")
        agree.append(not (is_judged_by_arrivals and (another or on_time)))
    return agree


class _DetailedSteps(NamedTuple):
    """n steps with bucket detail of a process group, in ms: those that its window has, and added ones."""

    lateness: Column
    """(ranks, n)."""
    bound: Column
    """(ranks, n) of the clocks."""
    step: Column
    """(n,)."""
    faster: Column
    """(n,) the step without the most that can be saved in it."""
    are_known: bool
    """Whether all arrivals and times are known."""

    @classmethod
    def of(cls, scope: ScopeWindow, kept: Indices, added: tuple[Column, Column]) -> _DetailedSteps:
        """`kept`: slots of the window; `added`: as of `agreements`."""
        lateness, arrival, bound = (
            np.hstack([scope.ranks.of(name, kept), added[0][SCOPE_COLUMNS.index(name)].T.astype(np.float32)])
            for name in ("lateness", "arrival", "bound")
        )
        step, recoverable, half = (
            np.hstack([scope.group.of(name, kept), added[1][SCOPE_SCALARS.index(name)]])
            for name in ("step", "recoverable", "half")
        )
        faster = step - np.maximum(recoverable, half)
        are_known = not any(np.isnan(values).any() for values in (lateness, arrival, faster))
        return cls(lateness, bound, step, faster, are_known)

    def are_cheap(self, places: Indices, is_judged: Mask) -> Mask:
        """(k,) whether less can be saved in the steps of an evaluation than a flagged rank costs, as
        `most_lost_pct` finds it. Arguments as of `_lateness_of_ranks`."""
        as_it_ran, without = (
            median(np.where(is_judged, values[places], np.nan)) for values in (self.step, self.faster)
        )
        return np.asarray(100 * (as_it_ran - without) < arrival_rules.FLAG_PCT * as_it_ran)


class _Lateness(NamedTuple):
    """(k, ranks) each rank's lateness over the steps of each of k evaluations."""

    low: Column
    """Its CLEAR_QUARTILE."""
    middle: Column
    """Its median."""
    high: Column
    """Its LATEST."""
    bound: Column
    """The largest bound of the rank's clock."""


def _lateness_of_ranks(detailed: _DetailedSteps, places: Indices, is_judged: Mask) -> _Lateness:
    """`places`, `is_judged`: (k, steps) the steps that each of k evaluations can have, and those that it
    has."""
    lateness, bound = detailed.lateness, detailed.bound
    ordered = np.where(is_judged[:, None], lateness[:, places].swapaxes(0, 1), np.nan)
    bounds = np.broadcast_to(bound[:, -1], ordered.shape[:2])
    if (bound != bound[:, -1:]).any():  # usually it stays the same, as of one clock
        bounds = np.fmax.reduce(
            np.where(is_judged[:, None], bound[:, places].swapaxes(0, 1), np.nan), axis=-1
        )
    ordered.sort(axis=-1)
    rows, counts = ordered.reshape(-1, ordered.shape[-1]), is_judged.sum(axis=1).repeat(ordered.shape[1])
    low, high = (
        element_at(rows, (share * counts).astype(np.int64)).reshape(bounds.shape)
        for share in (arrival_rules.CLEAR_QUARTILE, LATEST)
    )
    return _Lateness(low, median_of_sorted(ordered), high, bounds)
