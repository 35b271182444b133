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

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import DetailMedians, number_or_none
from ddptop.analysis.steps.own_times import PLACES
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.analysis.straggler import (
    agreement,
    arrival_flags,
    arrival_rules,
    causes,
    own_time_rules,
    suspects,
    uneven_work,
)
from ddptop.analysis.straggler.shared_rules import latest_ranks, onsets
from ddptop.frames.frame import Straggler, Suspect
from ddptop.frames.statistics import LEAST_BLOCK, interval_of_median, mean, median, quantile

if TYPE_CHECKING:
    from ddptop.analysis.figures import Figures, StepFlag, Unevenness
    from ddptop.analysis.steps.windows import DetailWindow, StepWindow
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import OwnPlace, StepPhase

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
        straggler = arrival_flags.find_straggler(window, evaluated)
        suspect = suspects.by_arrivals(window, evaluated) if straggler is None else None
    late = suspect if straggler is None or straggler.pattern != "persistent" else straggler
    if late is not None:
        lateness = DetailMedians(window, slots, figures.world).lateness_of(np.array([late.rank]), slots)[0]
        first = late_since(lateness)
        if first:
            slots = slots[first:]
            steps = steps[points >= int(window.group.of("point", slots[:1])[0])]
    detail = DetailMedians(window, slots, figures.world)
    if straggler is not None:
        straggler = arrival_flags.find_straggler(window, slots) or straggler
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
    return first if clear and len(late) - first >= suspects.RECENT[0] else 0


def _with_cost(figures: Figures, shown: FrameSteps) -> FrameSteps:
    """`shown` with the what-if figures, and with the flagged rank's cost over the same steps."""
    detail, straggler = shown.detail, shown.straggler
    window = detail.window
    if window is None or not detail.enough:
        return shown
    gain, hidden, gain_of_both = (
        window.group.of(name, detail.slots) for name in ("recoverable", "hidden", "both")
    )
    own_gain = (
        _flagged_gain(window, figures.world, straggler, detail.slots) if straggler is not None else None
    )
    if straggler is not None and own_gain is not None and straggler.pattern != "rotating":
        gain = own_gain
        gain_of_both = np.fmax(gain_of_both, gain + hidden if straggler.ranks else gain)
    step: Column = figures.steps.group.of("step", shown.steps)
    p50 = number_or_none(median(step))

    def step_ms_without(saved_ms: Column) -> float | None:
        share = formulas.share(saved_ms, window.group.of("step", detail.slots))
        points = window.group.of("point", detail.slots)[~np.isnan(share)]
        if not len(points):
            return None
        near = _nearest(points, figures.steps.group.of("point", shown.steps).astype(np.int64))
        return number_or_none(median(step * (1 - np.clip(share[~np.isnan(share)], 0.0, 1.0)[near])))

    most_saved_ms = np.fmax(gain_of_both, np.fmax(gain, hidden))
    what_if = WhatIf(step_ms_without(gain), step_ms_without(hidden), step_ms_without(most_saved_ms))
    if detail.clock_free:
        what_if = WhatIf(None, what_if.no_exposed_comm_ms, None)
    even_ms = what_if.no_straggler_ms
    steady = straggler is not None and own_gain is not None and straggler.pattern != "intermittent"
    if straggler is not None and steady and p50 and even_ms is not None:
        cost_pct = 100 * (1 - even_ms / p50)
        straggler = replace(straggler, cost_pct=cost_pct) if cost_pct >= arrival_rules.KEEP_PCT else None
    return shown._replace(straggler=straggler, what_if=what_if)


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
    steps, flag, suspect_since = all_steps.slots(), flags.flag, None
    first = 0 if flag is None or flag.pattern != "persistent" else flag.since
    if flag is None:
        suspect_since = suspects.by_own_time(figures)
        first = flags.recovered(all_steps, steps) if suspect_since is None else suspect_since[0]
    steps = steps[steps >= first] if first <= steps[-1] else steps
    point = int(all_steps.group.of("point", steps[:1])[0])
    slots = np.arange(0) if window is None else window.since(point)
    shown = FrameSteps(steps, DetailMedians(window, slots, figures.world), None, None, WhatIf())
    if flag is None:
        suspect = None if suspect_since is None else suspect_since[1]
        suspected = () if suspect is None else (suspect.rank,)
        return shown._replace(
            suspect=suspect,
            what_if=compute_what_if(all_steps, steps, suspected, flags.members, before=figures.unevenness),
        )
    return _with_flagged(figures, shown, flag)


def _with_flagged(figures: Figures, shown: FrameSteps, flag: StepFlag) -> FrameSteps:
    """`shown` with the straggler that is flagged from every step, what it costs, and the what-if figures."""
    all_steps, flags, steps = figures.steps, figures.flags, shown.steps
    judged = steps
    if flag.pattern != "persistent":
        judged = np.arange(max(flag.since, all_steps.group.count - OWN_STEPS), all_steps.group.count)
    straggler = measure_straggler(all_steps, flag, judged)
    rotating, place = flag.pattern == "rotating", straggler.place
    what_if = compute_what_if(
        all_steps,
        steps,
        () if rotating else flag.ranks,
        flag.members,
        place,
        rotating=rotating,
        extra_transfer_ms=slow_transfer_ms(all_steps, steps, flag) if place == "cpu" else None,
    )
    if flag.pattern == "intermittent":
        cost_pct = _mean_cost_pct(all_steps, judged, flag, place)
    else:
        p50, even_ms = float(median(all_steps.wall(steps))), what_if.no_straggler_ms
        cost_pct = 0.0 if even_ms is None or not p50 else max(0.0, 100 * (1 - even_ms / p50))
    straggler = replace(
        straggler,
        place=shown_place(all_steps, judged, straggler),
        cost_pct=cost_pct,
        pattern="rotating" if flags.rotates(int(steps[-1])) else flag.pattern,
        disagrees=agreement.arrivals_disagree(figures, int(steps[-1])),
    )
    return shown._replace(straggler=straggler, what_if=what_if)


def _mean_cost_pct(steps: StepWindow, slots: Indices, flag: StepFlag, place: OwnPlace | None) -> float:
    """The share of these steps' time that the flagged ranks cost: medians do not show a few late steps."""
    gain = ms_saved_without(steps, slots, flag.ranks, flag.members, place)
    if place == "cpu":
        gain = gain + slow_transfer_ms(steps, slots, flag)
    wall_ms = float(mean(steps.wall(slots)))
    return 100 * float(mean(gain)) / wall_ms if wall_ms > 0 else 0.0


COMPARED = 64
"""Most other ranks with which a flagged rank's places are compared: their median is nearly that of all."""


DRAWN = 8
"""Other ranks whose own times a straggler's are drawn from."""


def ms_saved_by_own_time(
    own: Column, late: Mask, part: Column | None = None, *, rotating: bool = False
) -> Column:
    """(n,) ms by which the slowest rank of each step had been faster had the late ranks worked as the others.

    `own`: (ranks, n) own times. A late rank's k-th longest step gets the k-th longest of as many times of the
    others; so steps that are long for all ranks stay long. `part`: (ranks, n) times in the place that is
    late, when only these are replaced.

    Without late ranks: if all had worked as the median rank of the step, which is what uneven ranks cost.
    `rotating`: the slowest rank of each step is the late one.
    """
    if len(own) < 2 or not own.shape[1]:
        return np.full(own.shape[1], np.nan)
    part, slowest = own if part is None else part, np.fmax.reduce(own, axis=0)
    if rotating:
        slowest_at = latest_ranks(own), np.arange(own.shape[1])
        own, part = (np.concatenate([values, values[slowest_at][None]]) for values in (own, part))
        own[slowest_at] = part[slowest_at] = np.nan
        late = np.arange(len(own)) == len(own) - 1
    other_parts = part[~late]
    few = other_parts[np.linspace(0, len(other_parts) - 1, min(len(other_parts), DRAWN)).astype(np.int64)]
    pool = np.sort(few[~np.isnan(few)])
    if not late.any() or not len(pool):
        return np.asarray(slowest - median(own.T))
    order = part[late].argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    drawn = own[late] - part[late] + pool[((order + 0.5) * len(pool) / own.shape[1]).astype(np.int64)]
    even = np.fmax(np.fmax.reduce(own[~late], axis=0), drawn.max(axis=0))
    return np.asarray(np.clip(slowest - even, 0.0, None))


def ms_saved_without(
    steps: StepWindow,
    slots: Indices,
    ranks: tuple[int, ...],
    members: Indices,
    place: OwnPlace | None = None,
    *,
    rotating: bool = False,
) -> Column:
    """(n,) `ms_saved_by_own_time` of some ranks; without backward where a last gradient is unknown.

    `place`: where they are late, or a cause whose time is known: "cpu", "gc" or "uneven_work".
    """
    if place == "uneven_work":
        gained = uneven_work.ms_saved_if_even(steps, slots, members)
        if not np.isnan(gained).all():
            return gained
        place = None
    own_ms = steps.own(slots, members)
    unknown = steps.unknown(own_ms, slots, members)
    if unknown is not None and unknown.any():
        other_places = [steps.place(name, slots, members) for name in PLACES if name != "backward"]
        own_ms = np.where(unknown.any(axis=0), sum(other_places[1:], other_places[0]), own_ms)
    part = None if place is None else steps.place(place, slots, members)
    return ms_saved_by_own_time(own_ms, np.isin(members, ranks), part, rotating=rotating)


class _Beside(NamedTuple):
    """The late ranks of a flag beside those that they are compared with."""

    ranks: Indices
    """(compared,) the ranks; persistent ones first."""
    late: Mask
    """(compared, n) which count as late in a step."""
    main: int
    """Index of the flagged rank."""
    n_persistent: int
    """How many of them are late in all steps; 0: it is another one, or none, in each step."""

    @classmethod
    def of(cls, flag: StepFlag, late: Mask) -> _Beside:
        """`late`: (members, n) of the process group that the flag is about."""
        ranks, n_persistent = flag.members, 0
        if flag.pattern != "rotating":
            is_flagged = np.isin(ranks, flag.ranks)
            rows, other_rows = np.flatnonzero(is_flagged), np.flatnonzero(~is_flagged)
            if len(other_rows) > COMPARED:
                other_rows = other_rows[np.linspace(0, len(other_rows) - 1, COMPARED).astype(np.int64)]
            compared = np.concatenate([rows, other_rows])
            ranks, late = ranks[compared], late[compared]
            n_persistent = len(rows) if flag.pattern == "persistent" else 0
        return cls(ranks, late, int(np.flatnonzero(ranks == flag.rank)[0]), n_persistent)

    def _usual(self, values: Column) -> Column:
        """(n,) the median of the ranks that are not late. `of` puts those that always are first."""
        others = values[self.n_persistent :] if self.n_persistent else np.where(self.late, np.nan, values)
        return np.asarray(median(others.T))

    def excess(self, values: Column) -> Column:
        """By how much `values`, (compared, n), of each late (rank, step) are above those of the others."""
        return np.asarray((values - self._usual(values))[self.late])

    def of_main(self, values: Column) -> Column:
        """`values`, (compared, n), of the flagged rank, where it is persistently late; else of each late
        (rank, step)."""
        return np.asarray(values[self.main] if self.n_persistent else values[self.late])

    def main_excess(self, values: Column) -> Column:
        """`excess` of those that `of_main` takes."""
        return values[self.main] - self._usual(values) if self.n_persistent else self.excess(values)


def measure_straggler(steps: StepWindow, flag: StepFlag, slots: Indices) -> Straggler:
    """The figures of the flagged ranks over these steps, without their cost."""
    excess = (steps.excess if flag.place == "cpu" else steps.work_excess)(slots, flag.members)
    late, is_last = _late_in(flag, steps, slots, excess)
    beside = _Beside.of(flag, late)
    places = steps.places(slots, beside.ranks)
    excess_in: dict[OwnPlace, Column] = {name: beside.excess(places[name]) for name in PLACES}
    parts: dict[StepPhase, float] = {
        causes.PHASE_OF[name]: float(median(excess_in[name])) for name in PLACES[:4]
    }
    parts["other"] = float(
        median(beside.excess(sum((places[name] for name in PLACES[5:]), places[PLACES[4]])))
    )
    place = "cpu" if flag.place == "cpu" else causes.late_place(excess_in)
    if place is None:
        lateness = _excess_everywhere(steps, flag, slots, excess, late)
    else:  # ranks that wait save time elsewhere, for the cores are free: no part of the delay
        lateness = beside.main_excess(
            steps.place("cpu", slots, beside.ranks) if place == "cpu" else places[place]
        )
    ratio = None
    if place != "cpu":
        pauses = beside.main_excess(steps.place("gc", slots, beside.ranks))
        if causes.carried(pauses, lateness):
            place, lateness = "gc", pauses
        else:
            ratio = _elements_ratio(steps, flag, slots, beside, lateness)
            place = place if ratio is None else "uneven_work"
    gain = ms_saved_without(
        steps, slots[is_last], flag.ranks, flag.members, place, rotating=flag.pattern == "rotating"
    )
    return Straggler(
        rank=flag.rank,
        pattern=flag.pattern,
        lateness_ms=float(median(lateness)),
        bound_ms=suspects.ERRORS * own_time_rules.error_of_median(lateness),
        recoverable_ms=number_or_none(median(gain)) or 0.0,
        cost_pct=0.0,
        last_pct=100 * float(is_last.mean()),
        cause=arrival_flags.find_cause(parts) if place is None else causes.of_place(place),
        parts_ms=parts,
        ranks=flag.ranks if len(flag.ranks) > 1 else (),
        place=place,
        basis="every_step",
        elements_ratio=None if ratio is None else number_or_none(ratio),
    )


def _excess_everywhere(
    steps: StepWindow, flag: StepFlag, slots: Indices, excess: Column, late: Mask
) -> Column:
    """The excess in own time as a whole, of the flagged rank where it is persistently late, else of each late
    (rank, step).

    `excess`: (members, n) compared with all others; of several late ranks it counts beside those that are not
    late, as far as that is known."""
    if flag.pattern != "persistent":
        return np.asarray(excess[late])
    lateness = excess[flag.members == flag.rank][0]
    if len(flag.ranks) == 1:
        return np.asarray(lateness)
    work = steps.work(slots)
    apart = work[flag.rank] - median(np.where(late, np.nan, work[flag.members]).T)
    return np.asarray(np.where(np.isnan(apart), lateness, apart))


def _elements_ratio(
    steps: StepWindow, flag: StepFlag, slots: Indices, beside: _Beside, lateness: Column
) -> float | None:
    """How many times as many elements the late ranks have as the others, where that explains their lateness;
    None: it does not."""
    sizes = steps.elements(slots, beside.ranks)
    more_elements = beside.main_excess(sizes)
    ms_per_element = uneven_work.ms_per_element(steps, slots, flag.members)
    if not uneven_work.explains(lateness, more_elements, ms_per_element):
        return None
    larger = beside.of_main(sizes)
    return float(median(larger / (larger - more_elements)))


CALM_STEPS, SLOW_TRANSFER, SLOW_TRANSFER_MS = 16, 1.5, 0.3
"""Least steps before the flag that show how long the transfer usually takes; a transfer is slow from this
multiple of that on, and by so much."""


def slow_transfer_ms(steps: StepWindow, slots: Indices, flag: StepFlag) -> Column:
    """(n,) ms by which the transfer of a step takes longer because a rank that waits for a CPU does so in the
    all-reduces as well: none of its own time, but its own doing.

    What it usually takes is the median of the steps before the flag, as far as they are kept, else the 10 %
    quantile of these steps.
    """
    before = np.arange(max(0, flag.since - OWN_STEPS), flag.since)
    before = before[before >= steps.for_maps(OWN_STEPS)[0]]
    calm, transfer = (_transfer_ms(steps, some_slots, flag.members) for some_slots in (before, slots))
    calm = calm[~np.isnan(calm)]
    usual_ms = float(median(calm)) if len(calm) >= CALM_STEPS else float(quantile(transfer, 0.1))
    slow = transfer > max(SLOW_TRANSFER * usual_ms, usual_ms + SLOW_TRANSFER_MS)
    return np.asarray(np.where(slow, transfer - usual_ms, 0.0))


def _transfer_ms(steps: StepWindow, slots: Indices, members: Indices) -> Column:
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
    largest = latest_ranks(excess)
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


def compute_what_if(
    steps: StepWindow,
    slots: Indices,
    ranks: tuple[int, ...],
    members: Indices,
    place: OwnPlace | None = None,
    *,
    rotating: bool = False,
    before: Unevenness | None = None,
    extra_transfer_ms: Column | None = None,
) -> WhatIf:
    """The median step if `ranks` had worked as the other `members` do, if all communication had been hidden,
    and both, over the same steps; with intervals of 95 % by block bootstrap.

    Without `ranks`: if every rank had worked as the median rank of the step. `place`: where they are late; in
    the others they keep their times. `before`: what the last frame has computed.
    `extra_transfer_ms`: (n,) by how much `ranks` make the transfer of each step longer.
    """
    wall, several = steps.wall(slots), steps.world > 1

    def slowest_and_gain(slots: Indices) -> Column:
        own_ms = steps.own(slots)
        with np.errstate(invalid="ignore"):
            slowest = np.fmax.reduce(own_ms, axis=0)
        unknown = steps.unknown(own_ms, slots)
        slowest = slowest if unknown is None else np.where(unknown.any(axis=0), np.nan, slowest)
        return np.stack([slowest, ms_saved_without(steps, slots, ranks, members, place, rotating=rotating)])

    if before is None or ranks or place is not None or rotating:
        slowest, gain = slowest_and_gain(slots)
    else:  # then each step's are its own
        slowest, gain = before.of(slots, members, slowest_and_gain)
    if extra_transfer_ms is not None:
        gain = gain + extra_transfer_ms
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
