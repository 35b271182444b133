"""The steps that a frame's figures are computed from, since when a rank is slow in them, and what it costs.

`select_steps` decides whether the flag by own times or the one by arrivals counts.

Usually these are the window of the last complete steps. Where a rank has become slow within the window, they
are the steps from then on, and where one has recovered likewise: medians over steps before and after would
describe neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.figures import place_excess
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import DetailMedians, number_or_none
from ddptop.analysis.steps.windows import OWN_STEPS, PLACES
from ddptop.analysis.straggler import (
    agreement,
    arrival_rules,
    causes,
    cpu_waits,
    flagged,
    own_time_rules,
    uneven_work,
)
from ddptop.analysis.straggler.shared_rules import is_clearly_last, onsets
from ddptop.frames.frame import Straggler, Suspect
from ddptop.frames.statistics import LEAST_BLOCK, interval_of_median, mean, median, quantile

if TYPE_CHECKING:
    from ddptop.analysis.figures import CpuSuspect, Figures, StepFlag, Unevenness
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow, StepWindow
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import OwnPlace, StepPhase

RECENT = (4, 8, 12, 16)
"""Numbers of newest detailed steps in which a suspect is searched: for many ranks four steps are enough, for
two ranks twelve (`shared_rules.CHANCE`)."""

BEFORE_SHARE, AFTER_SHARE = 0.25, 0.75
"""A rank became slow at a step when it is late in at most BEFORE_SHARE of the steps before and in at least
AFTER_SHARE of those after."""


class WhatIf(NamedTuple):
    """The median step in ms if each step had been shorter by what it loses; None: unknown."""

    no_straggler_ms: float | None = None
    """If the flagged ranks, or the last arriver where none is flagged, had arrived with the others."""
    no_exposed_comm_ms: float | None = None
    """If all communication had been hidden behind compute."""
    both_ms: float | None = None
    """Both."""
    no_straggler_low_ms: float | None = None
    """Intervals of 95 % of the three; None where they come from detailed steps."""
    no_straggler_high_ms: float | None = None
    no_exposed_comm_low_ms: float | None = None
    no_exposed_comm_high_ms: float | None = None
    both_low_ms: float | None = None
    both_high_ms: float | None = None


class FrameSteps(NamedTuple):
    """The steps that a frame shows, and its straggler. Slots are oldest first."""

    steps: Indices
    """Slots of the StepWindow."""
    detail: DetailMedians
    """Over the detailed ones among these steps."""
    straggler: Straggler | None
    suspect: Suspect | None
    """None while a rank is flagged."""
    what_if: WhatIf


def select_steps(figures: Figures, end: int) -> FrameSteps:
    """The steps of a frame when the history has `end` points."""
    flags = figures.flags
    if figures.steps.has_own and (flags.flag is not None or not flags.blind):
        return _from_every_step(figures)
    steps, window = figures.steps.slots(), figures.detail
    if window is None:
        return FrameSteps(steps, DetailMedians(None, np.arange(0), figures.world), None, None, WhatIf())
    points = figures.steps.group.of("point", steps)
    slots = window.since(int(points[0])) if len(steps) else np.arange(0)
    straggler = suspect = None
    if len(slots):
        evaluated = window.evaluated(end)
        straggler = flagged.straggler(window, evaluated)
        suspect = _suspect(window, evaluated) if straggler is None else None
    late = suspect if straggler is None or straggler.pattern != "persistent" else straggler
    if late is not None:
        lateness = DetailMedians(window, slots, figures.world).lateness_of(late.rank, slots)
        first = late_since(lateness)
        if first:
            slots = slots[first:]
            steps = steps[points >= int(window.group.of("point", slots[:1])[0])]
    detail = DetailMedians(window, slots, figures.world)
    if straggler is not None:
        straggler = flagged.straggler(window, slots) or straggler
    return _with_cost(figures, FrameSteps(steps, detail, straggler, suspect, WhatIf()))


def late_since(lateness: Column) -> int:
    """Index of the first step since which a rank is as late as now; 0: it was in all steps.

    `lateness`: (n,) of one rank, oldest first.
    """
    level = float(median(lateness[-arrival_rules.LEVEL_STEPS :]))
    if not level > 0:
        return 0
    first = int(onsets(lateness[None], arrival_rules.THRESHOLDS)[0])
    late = np.nan_to_num(lateness) > level / 2
    clear = first > 0 and late[:first].mean() <= BEFORE_SHARE and late[first:].mean() >= AFTER_SHARE
    return first if clear and len(late) - first >= RECENT[0] else 0


def _suspect(window: DetailWindow, slots: Indices) -> Suspect | None:
    """The rank that clearly comes last in the newest detailed steps, which are too few to flag it."""
    suspects = [_suspect_in(scope, slots) for scope in window.scopes.values() if not scope.clock_free]
    return max(
        (suspect for suspect in suspects if suspect is not None),
        key=lambda suspect: suspect.lateness_ms,
        default=None,
    )


def _suspect_in(window: ScopeWindow, slots: Indices) -> Suspect | None:
    detailed = window.with_detail(slots)
    for steps in RECENT:
        newest = detailed[-steps:]
        last = window.group.of("last", newest)
        if len(newest) < steps or not (last >= 0).any():
            return None
        counts = np.bincount(last[last >= 0].astype(np.int64), minlength=len(window.members))
        rank, count = int(counts.argmax()), int(counts.max())
        if not is_clearly_last(count, steps, len(window.members)):
            continue
        lateness = window.ranks.of("lateness", newest)[rank]
        late_ms, low_ms = float(median(lateness)), float(quantile(lateness, 0.25))
        bound_ms = float(window.bound_ms(newest)[rank])
        gain = np.where(last == rank, window.group.of("recoverable", newest), 0.0)
        gain_ms = float(median(gain))
        cost_pct = 100 * float(median(formulas.share(gain, window.group.of("step", newest))))
        worth = gain_ms >= arrival_rules.FLAG_MS and cost_pct >= arrival_rules.FLAG_PCT
        if worth and low_ms > max(bound_ms, arrival_rules.SPREAD_SHARE * late_ms):
            return Suspect(window.scope.ranks[rank], late_ms, bound_ms, count, steps)
    return None


def _with_cost(figures: Figures, found: FrameSteps) -> FrameSteps:
    """`found` with the what-if figures, and with the flagged rank's cost over the same steps."""
    detail, straggler = found.detail, found.straggler
    window = detail.window
    if window is None or not detail.enough:
        return found
    gain, hidden, gain_of_both = (
        window.group.of(name, detail.slots) for name in ("recoverable", "hidden", "both")
    )
    own_gain = (
        _flagged_gain(window, figures.world, straggler, detail.slots) if straggler is not None else None
    )
    if straggler is not None and own_gain is not None and straggler.pattern != "rotating":
        gain = own_gain
        gain_of_both = np.fmax(gain_of_both, gain + hidden if straggler.ranks else gain)
    step: Column = figures.steps.group.of("step", found.steps)
    p50 = number_or_none(median(step))

    def without(gain: Column) -> float | None:
        share = formulas.share(gain, window.group.of("step", detail.slots))
        points = window.group.of("point", detail.slots)[~np.isnan(share)]
        if not len(points):
            return None
        near = _nearest(points, figures.steps.group.of("point", found.steps).astype(np.int64))
        return number_or_none(median(step * (1 - np.clip(share[~np.isnan(share)], 0.0, 1.0)[near])))

    what_if = WhatIf(without(gain), without(hidden), without(np.fmax(gain_of_both, np.fmax(gain, hidden))))
    if detail.clock_free:
        what_if = WhatIf(None, what_if.no_exposed_comm_ms, None)
    even_ms = what_if.no_straggler_ms
    steady = straggler is not None and own_gain is not None and straggler.pattern != "intermittent"
    if straggler is not None and steady and p50 and even_ms is not None:
        cost_pct = 100 * (1 - even_ms / p50)
        straggler = replace(straggler, cost_pct=cost_pct) if cost_pct >= arrival_rules.KEEP_PCT else None
    return found._replace(straggler=straggler, what_if=what_if)


def _flagged_gain(window: DetailWindow, world: int, straggler: Straggler, slots: Indices) -> Column | None:
    """(n,) ms that each detailed step would have saved without the flagged ranks' lateness.

    None where their process group does not contain all ranks, because the steps of the others differ, and
    where all ranks are flagged, because none is left to compare them with.
    """
    flag = window.flagged
    assert flag is not None
    ranks = tuple(flag.scope.ranks.index(rank) for rank in straggler.ranks or (straggler.rank,))
    if len(flag.scope.ranks) < world or len(set(ranks)) >= world:
        return None
    return arrival_rules.ms_saved_by_arrival(window.scopes[flag.scope], slots, ranks)[1]


def _nearest(at: Column, points: Indices) -> Indices:
    """(points,) index of the element of `at` that is nearest to each point; both are ascending."""
    after = np.minimum(np.searchsorted(at, points), len(at) - 1)
    before = np.maximum(after - 1, 0)
    return np.where(points - at[before] <= np.abs(at[after] - points), before, after)


def _from_every_step(figures: Figures) -> FrameSteps:
    """The steps of a frame, its straggler and its what-if, from every step's own times."""
    all_steps, window, flags = figures.steps, figures.detail, figures.flags
    steps, flag, found = all_steps.slots(), flags.flag, None
    first = 0 if flag is None or flag.pattern != "persistent" else flag.since
    if flag is None:
        found = _own_suspect(figures)
        first = flags.recovered(all_steps, steps) if found is None else found[0]
    steps = steps[steps >= first] if first <= steps[-1] else steps
    point = int(all_steps.group.of("point", steps[:1])[0])
    slots = np.arange(0) if window is None else window.since(point)
    shown = FrameSteps(steps, DetailMedians(window, slots, figures.world), None, None, WhatIf())
    if flag is None:
        suspect = None if found is None else found[1]
        suspected = () if suspect is None else (suspect.rank,)
        return shown._replace(
            suspect=suspect,
            what_if=what_if(all_steps, steps, suspected, flags.members, before=figures.unevenness),
        )
    judged = steps
    if flag.pattern != "persistent":
        judged = np.arange(max(flag.since, all_steps.group.count - OWN_STEPS), all_steps.group.count)
    ranks = () if flag.pattern == "rotating" else flag.ranks
    straggler = figures_of(all_steps, flag, judged)
    turns, place = flag.pattern == "rotating", straggler.place
    transfer_ms = slow_transfer(all_steps, steps, flag) if place == "cpu" else None
    gained = what_if(all_steps, steps, ranks, flag.members, place, rotating=turns, transfer_ms=transfer_ms)
    p50, even_ms = float(median(all_steps.wall(steps))), gained.no_straggler_ms
    if flag.pattern == "intermittent":
        gain = flagged.own_gain(all_steps, judged, ranks, flag.members, place)
        gain = gain if transfer_ms is None else gain + slow_transfer(all_steps, judged, flag)
        cost_pct = 100 * float(mean(gain))
        wall_ms = float(mean(all_steps.wall(judged)))
        cost_pct = cost_pct / wall_ms if wall_ms > 0 else 0.0
    else:
        cost_pct = 0.0 if even_ms is None or not p50 else max(0.0, 100 * (1 - even_ms / p50))
    straggler = replace(
        straggler,
        place=shown_place(all_steps, judged, straggler),
        cost_pct=cost_pct,
        pattern="rotating" if flags.rotates(int(steps[-1])) else flag.pattern,
        disagrees=agreement.arrivals_disagree(figures, int(steps[-1])),
    )
    return shown._replace(straggler=straggler, what_if=gained)


def _own_suspect(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank is clearly late, and the suspect."""
    steps = figures.steps
    newest = steps.recent(own_time_rules.NEWEST)
    for members in figures.flags.groups:
        excess = steps.work_excess(newest, members)
        if (result := own_time_rules.suspect(excess, steps.wall(newest))) is not None:
            late, last = result
            over = excess[late.ranks[0], late.first :]
            bound_ms = ERRORS * own_time_rules.error_of_median(over)
            rank = int(members[late.ranks[0]])
            return int(newest[late.first]), Suspect(
                rank, late.level_ms, bound_ms, last, len(over), basis="every_step"
            )
    return _find_cpu_wait(figures) or _last_in_most(figures)


LAST_SHARE = 0.9
"""Least share of the newest steps in which a suspect comes last whose excess varies too much to flag it."""


def _last_in_most(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank comes last in nearly all steps, and the suspect: its excess may vary."""
    steps = figures.steps
    slots = steps.recent(own_time_rules.LAST_STEPS)
    if len(slots) < own_time_rules.LAST_STEPS:
        return None
    for members in figures.flags.groups:
        excess = steps.excess(slots, members)
        latest = np.where(np.isnan(excess), -np.inf, excess).argmax(axis=0)
        last = np.bincount(latest[np.isfinite(excess).any(axis=0)], minlength=len(members))
        row = int(last.argmax())
        over = excess[row]
        least_ms = max(own_time_rules.FLAG_MS, own_time_rules.WHOLE_SHARE * float(median(steps.wall(slots))))
        if len(members) > 1 and last[row] >= LAST_SHARE * len(slots) and float(median(over)) >= least_ms:
            bound_ms = ERRORS * own_time_rules.error_of_median(over)
            return int(slots[0]), Suspect(
                int(members[row]),
                float(median(over)),
                bound_ms,
                int(last[row]),
                len(over),
                basis="every_step",
            )
    return None


CPU_LAST_SHARE, EARLY_CPU_LAST_SHARE = 0.75, 0.9
"""Least share of the newest steps in which a suspect that waits for a CPU comes last; in fewer steps than
`cpu_waits` takes, the larger one."""


def _find_cpu_wait(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank waits for a CPU, and the suspect, for less time than flagging takes."""
    sure = figures.flags.cpu_suspect
    suspects = [_cpu_suspect(figures.steps, members, sure) for members in figures.flags.groups]
    return max(
        (suspect for suspect in suspects if suspect is not None),
        key=lambda suspect: suspect[1].lateness_ms,
        default=None,
    )


def _cpu_suspect(steps: StepWindow, members: Indices, sure: CpuSuspect | None) -> tuple[int, Suspect] | None:
    """`_find_cpu_wait` in one process group. `sure`: as the blocks of `cpu_waits` tell, None while there are
    too few of them: then the newest steps alone tell, by a larger share."""
    newest = steps.slots()
    waits = place_excess(steps, "cpu", newest, members)
    if sure is not None and sure.rank not in members:
        return None
    newest_waits = np.nan_to_num(waits[:, -own_time_rules.NEWEST :]).mean(axis=1)
    row = int(newest_waits.argmax() if sure is None else np.flatnonzero(members == sure.rank)[0])
    first = own_time_rules.onset(waits[row])
    slots = newest[first:]
    if len(slots) < own_time_rules.NEWEST:
        return None
    wall_ms = float(steps.wall(slots).sum())
    if sure is None and np.nan_to_num(waits[row, first:]).sum() < cpu_waits.SHARE * wall_ms:
        return None
    excess = steps.excess(slots, members)
    last = int((np.where(np.isnan(excess), -np.inf, excess).argmax(axis=0) == row).sum())
    if last < (EARLY_CPU_LAST_SHARE if sure is None else CPU_LAST_SHARE) * len(slots):
        return None
    over = excess[row]
    return int(slots[0]), Suspect(
        rank=int(members[row]),
        lateness_ms=float(median(over)),
        bound_ms=ERRORS * own_time_rules.error_of_median(over),
        last=last,
        steps=len(slots),
        basis="every_step",
        cause="cpu",
        so_far_s=wall_ms / 1e3 if sure is None else sure.so_far_s,
        needed_s=cpu_waits.needed_s(wall_ms / len(slots)),
    )


ERRORS = 2.0
"""Standard errors in the bound of a median excess: 95 % of errors are smaller."""

COMPARED = 64
"""Most other ranks with which a flagged rank's places are compared: their median is nearly that of all."""


def figures_of(steps: StepWindow, flag: StepFlag, slots: Indices) -> Straggler:
    """The figures of the flagged ranks over these steps, without their cost."""
    members = flag.members
    excess = (steps.excess if flag.place == "cpu" else steps.work_excess)(slots, members)
    late, is_last = _late_in(flag, steps, slots, excess)
    rows = np.flatnonzero(np.isin(members, flag.ranks))
    other_rows = np.delete(np.arange(len(members)), rows)
    if len(other_rows) > COMPARED:
        other_rows = other_rows[np.linspace(0, len(other_rows) - 1, COMPARED).astype(np.int64)]
    persistent = flag.pattern == "persistent"
    compared = np.concatenate([rows, other_rows]) if flag.pattern != "rotating" else np.arange(len(members))
    late_rows, at = late[compared], members[compared]
    first = int(np.flatnonzero(at == flag.rank)[0])

    def over(values: Column, rank: bool = False) -> Column:
        """How much `values` of compared ranks are above the median of those that are not late: for the
        flagged rank (`rank`), else for each late (rank, step)."""
        # Those that are always late come first: without them nothing is to be left out.
        others = values[len(rows) :] if persistent else np.where(late_rows, np.nan, values)
        usual = median(others.T)
        return np.asarray(values[first] - usual if rank else (values - usual)[late_rows])

    places = steps.places(slots, at)
    excess_in: dict[OwnPlace, Column] = {name: over(places[name]) for name in PLACES}
    parts: dict[StepPhase, float] = {
        causes.PHASE_OF[name]: float(median(excess_in[name])) for name in PLACES[:4]
    }
    parts["other"] = float(median(over(sum((places[name] for name in PLACES[5:]), places[PLACES[4]]))))
    place = causes.late_place(excess_in)
    if flag.place == "cpu":
        place, places["cpu"] = "cpu", steps.place("cpu", slots, at)
    if place is not None:  # ranks that wait save time elsewhere, for the cores are free: no part of the delay
        lateness = over(places[place], persistent)
    elif persistent:
        lateness = excess[members == flag.rank][0]
        if len(rows) > 1:
            apart = steps.work(slots)
            apart = apart[flag.rank] - median(np.where(late, np.nan, apart[members]).T)
            lateness = np.where(np.isnan(apart), lateness, apart)
    else:
        lateness = excess[late]
    pauses = over(steps.place("gc", slots, at), persistent)
    if place != "cpu" and causes.carried(pauses, lateness):
        place, lateness = "gc", pauses
    sizes = steps.elements(slots, at)
    more_elements, ratio = over(sizes, persistent), None
    if place not in ("cpu", "gc"):
        each_ms = uneven_work.ms_per_element(steps, slots, members)
        if uneven_work.explains(lateness, more_elements, each_ms):
            place = "uneven_work"
            larger = sizes[first] if persistent else sizes[late_rows]
            ratio = number_or_none(median(larger / (larger - more_elements)))
    gain = flagged.own_gain(
        steps, slots[is_last], flag.ranks, members, place, rotating=flag.pattern == "rotating"
    )
    return Straggler(
        rank=flag.rank,
        pattern=flag.pattern,
        lateness_ms=float(median(lateness)),
        bound_ms=ERRORS * own_time_rules.error_of_median(lateness),
        recoverable_ms=number_or_none(median(gain)) or 0.0,
        cost_pct=0.0,
        last_pct=100 * float(is_last.mean()),
        cause=flagged.cause(parts) if place is None else causes.of_place(place),
        parts_ms=parts,
        ranks=flag.ranks if len(flag.ranks) > 1 else (),
        place=place,
        basis="every_step",
        elements_ratio=ratio,
    )


CALM_STEPS, SLOW_TRANSFER, SLOW_TRANSFER_MS = 16, 1.5, 0.3
"""Least steps before the flag that show how long the transfer usually takes; a transfer is slow from this
multiple of that on, and by so much."""


def slow_transfer(steps: StepWindow, slots: Indices, flag: StepFlag) -> Column:
    """(n,) ms by which the transfer of a step takes longer because a rank that waits for a CPU does so in the
    all-reduces as well: none of its own time, but its own doing.

    What it usually takes is the median of the steps before the flag, as far as they are kept, else the 10 %
    quantile of these steps.
    """
    before = np.arange(max(0, flag.since - OWN_STEPS), flag.since)
    before = before[before >= steps.for_maps(OWN_STEPS)[0]]
    calm, transfer = (_transfer(steps, some_slots, flag.members) for some_slots in (before, slots))
    calm = calm[~np.isnan(calm)]
    usual_ms = float(median(calm)) if len(calm) >= CALM_STEPS else float(quantile(transfer, 0.1))
    slow = transfer > max(SLOW_TRANSFER * usual_ms, usual_ms + SLOW_TRANSFER_MS)
    return np.asarray(np.where(slow, transfer - usual_ms, 0.0))


def _transfer(steps: StepWindow, slots: Indices, members: Indices) -> Column:
    """(n,) the transfer of each step: the least exposed communication of these ranks."""
    if not len(slots):
        return np.empty(0)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.fmin.reduce(steps.exposed(slots)[members], axis=0), np.float64)


def shown_place(steps: StepWindow, slots: Indices, straggler: Straggler) -> OwnPlace | None:
    """The place of a straggler as it is shown: what lies before forward is between two steps where no
    DataLoader was seen in these steps, for then nothing parts it from the end of the optimizer."""
    if straggler.place != "before_forward":
        return straggler.place
    if (steps.place("data", slots, np.array([straggler.rank])) > 0).any():  # NaN in steps not kept any more
        return straggler.place
    return "between_steps"


def _late_in(flag: StepFlag, steps: StepWindow, slots: Indices, excess: Column) -> tuple[Mask, Mask]:
    """(members, n) whether a flagged rank counts as late in a step, and (n,) whether one is the latest."""
    largest = np.where(np.isnan(excess), -np.inf, excess).argmax(axis=0)
    is_last = np.isin(flag.members[largest], flag.ranks)
    late: Mask = np.zeros(excess.shape, bool)
    if flag.pattern == "persistent":
        late[np.isin(flag.members, flag.ranks)] = True
    elif flag.pattern == "intermittent":
        is_last = flag.excess(steps, slots) > own_time_rules.HALF * flag.level_ms
        late[flag.members == flag.rank] = is_last
    else:
        late[largest, np.arange(len(slots))] = is_last
    return late, is_last


def what_if(
    steps: StepWindow,
    slots: Indices,
    ranks: tuple[int, ...],
    members: Indices,
    place: OwnPlace | None = None,
    *,
    rotating: bool = False,
    before: Unevenness | None = None,
    transfer_ms: Column | None = None,
) -> WhatIf:
    """The median step if `ranks` had worked as the other `members` do, if all communication had been hidden,
    and both, over the same steps; with intervals of 95 % by block bootstrap.

    Without `ranks`: if every rank had worked as the median rank of the step. `place`: where they are late; in
    the others they keep their times. `before`: what the last frame has computed. `transfer_ms`: (n,) by how
    much `ranks` make the transfer of each step longer.
    """
    wall, several = steps.wall(slots), steps.world > 1

    def slowest_and_gain(slots: Indices) -> Column:
        own_ms = steps.own(slots)
        with np.errstate(invalid="ignore"):
            slowest = np.fmax.reduce(own_ms, axis=0)
        unknown = steps.unknown(own_ms, slots)
        slowest = slowest if unknown is None else np.where(unknown.any(axis=0), np.nan, slowest)
        return np.stack([slowest, flagged.own_gain(steps, slots, ranks, members, place, rotating=rotating)])

    if before is None or ranks or place is not None or rotating:
        slowest, gain = slowest_and_gain(slots)
    else:  # then each step's are its own
        slowest, gain = before.of(slots, members, slowest_and_gain)
    if transfer_ms is not None:
        gain = gain + transfer_ms
    # Late ranks draw from the times of the others: those are fewer steps than all ranks' own.
    late = max(1, len(ranks)) if ranks or rotating else 0
    drawn = float(np.sqrt(len(members) / max(1, len(members) - late)))
    step_times: list[float | None] = []
    intervals: list[float | None] = []
    for values, wider in ((wall - gain, drawn), (slowest, 1.0), (slowest - gain, drawn)):
        values = values[~np.isnan(values)]
        enough = len(values) >= LEAST_BLOCK and several
        step_times.append(float(median(values)) if enough else None)
        intervals += interval_of_median(values, wider) if enough else (None, None)
    return WhatIf(*step_times, *intervals)
