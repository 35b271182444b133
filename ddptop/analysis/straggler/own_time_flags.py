"""The flag of every step: applies the rules over own times, and keeps which ranks are flagged since when."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.figures import StepFlag, place_excess
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.analysis.straggler import own_time_rules, uneven_work
from ddptop.analysis.straggler.causes import STEADY
from ddptop.analysis.straggler.cpu_waits import CpuWaits, throttled
from ddptop.analysis.straggler.shared_rules import onsets
from ddptop.frames.statistics import certainty, median

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddptop.analysis.figures import StepFlags
    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.analysis.straggler.own_time_rules import Late
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import OwnPlace, Pattern

SWITCH = 2.0
"""While a rank is flagged, another one is flagged instead when its excess is this many times as large."""

SUM_STEPS = OWN_STEPS - own_time_rules.EVERY
"""Steps of the running sums: those that leave them are still kept."""

SUM_EVALUATIONS = SUM_STEPS // own_time_rules.EVERY
"""Newest evaluations whose pauses for garbage collection are summed."""


TOGETHER = 64
"""Evaluations whose windows are searched at once: their arrays stay in the processor's cache."""


class _LatestRanks(NamedTuple):
    """The member with the largest excess in each of n steps that follow each other."""

    row: Indices
    """(n,) which member it is."""
    gain: Column
    """(n,) by how much its excess stands out (`own_time_rules.outstanding`)."""
    first: int
    """Slot of the first of these steps."""

    def until(self, slot: int) -> tuple[Indices, Column]:
        """`row` and `gain` of the newest steps up to a slot."""
        stop = slot + 1 - self.first
        newest = slice(max(0, stop - own_time_rules.SLOW_CORE_STEPS), stop)
        return self.row[newest], self.gain[newest]

    def followed_by(self, excess: Column, slot: int) -> _LatestRanks:
        """The newest of these steps before a slot, and those from it on, of this `excess`, (members, n)."""
        (row, gain), (next_row, next_gain) = self.until(slot - 1), own_time_rules.outstanding(excess)
        first = slot - len(row)
        return _LatestRanks(np.concatenate([row, next_row]), np.concatenate([gain, next_gain]), first)


class _Evaluations(NamedTuple):
    """Which of n steps each of k evaluations takes: those since the one before it."""

    begins: Indices
    """(k,) index of the first."""
    stop: int
    """Index after the last one's."""

    def sum(self, values: Column) -> Column:
        """(k, ...) sums of values (..., n)."""
        return np.asarray(np.add.reduceat(values[..., : self.stop], self.begins, axis=-1).T)


class _Added(NamedTuple):
    """Figures of steps that were added at once, for one process group: for all of them together they take
    hardly longer than for those between two evaluations.

    k evaluations are due in these steps (`_Evaluations`)."""

    stop: int
    """Slot after the last step."""
    ends: list[int]
    """(k,) slots of the steps after which the rules are evaluated."""
    n_steps: list[int]
    """(k,) how many steps each evaluation takes."""
    wall_ms: list[float]
    """(k,) how long these took."""
    large_ms: Column
    """(k, members) the sum of large excesses over SUM_STEPS steps up to each evaluation."""
    paused_ms: Column
    """(k or more, members) in pauses for garbage collection, of these evaluations and of SUM_EVALUATIONS less
    one before them; (k or more, 1) 0 in a group for which places are not searched."""
    cpu_ms: Column
    """(k, members) waited for a CPU longer than the median of the others."""
    knows_cpu: list[bool]
    """(k,) whether that is known of any step."""
    wall: Column
    """(n,) ms of these steps and of those before them that are judged with them, from slot `first` on."""
    first: int
    latest: _LatestRanks
    """Figures of these steps and of some before them."""
    may_rotate: list[bool]
    """(k,) `own_time_rules.may_rotate`."""
    sizes_vary: bool
    """`uneven_work.sizes_vary` of these steps and those judged with them."""
    may_have_pattern: list[bool]
    """(k,) whether a member may be late now and then, or in turn with others."""
    often: dict[OwnPlace | None, Mask]
    """(k, members) by place (None: own time as a whole) which members are late in most of the newest steps at
    each evaluation; without places in which no member is: mostly all."""

    def wall_of(self, slots: range) -> Column:
        """(n,) ms of some steps."""
        return self.wall[slots.start - self.first : slots.stop - self.first]

    def paused_until(self, number: int) -> Column:
        """(SUM_EVALUATIONS or less, members) `paused_ms` of the newest evaluations up to one of these."""
        stop = len(self.paused_ms) - len(self.ends) + number + 1
        return self.paused_ms[max(0, stop - SUM_EVALUATIONS) : stop]


class _Group:
    """What is kept of one process group between evaluations, so that these cost little with many ranks."""

    def __init__(self, members: Indices, slot: int) -> None:
        """`slot`: of the first step of which the group counts."""
        self.members = members
        self.first = slot
        self.cpu_waits = CpuWaits(members)
        self._added: _Added | None = None
        self._number = 0
        """Number of the present evaluation among those that are due in the added steps."""
        self._late: dict[int, StepFlag] = {}
        """By slot, what `find_persistent` returns at the evaluations in the added steps up to slot
        `_late_until`, of steps since `_late_from`."""
        self._late_from = self._late_until = -1

    @property
    def added(self) -> _Added:
        """The steps that were added last."""
        assert self._added is not None
        return self._added

    @property
    def large_ms(self) -> Column:
        """(members,) of this evaluation, as in `_Added`."""
        return np.asarray(self.added.large_ms[self._number])

    @property
    def paused_ms(self) -> Column:
        """(evaluations, members) of this evaluation and those before it, as in `_Added`."""
        return self.added.paused_until(self._number)

    @property
    def may_have_pattern(self) -> bool:
        """Whether a member may be late now and then, or in turn with others, at this evaluation."""
        return self.added.may_have_pattern[self._number]

    @property
    def may_rotate(self) -> bool:
        """Whether ranks may be late in turn at this evaluation."""
        return self.added.may_rotate[self._number]

    def take(self, steps: StepWindow, fresh: range, slots: Indices) -> None:
        """Steps that are new since the last evaluation. `slots`: as in `StepFlagging.evaluate`."""
        if self._added is None or fresh.stop > self._added.stop:
            self._added, self._number = self._make_added(steps, fresh.start, slots), 0
            self._late_from = -1
        else:
            self._number += 1
        added, number = self._added, self._number
        if added.knows_cpu[number]:
            self.cpu_waits.take(added.cpu_ms[number], added.wall_ms[number], added.n_steps[number])

    def find_persistent(self, steps: StepWindow, slot: int, begin: int) -> StepFlag | None:
        """The members that are late in most steps from slot `begin` on, at the evaluation after a slot whose
        steps were taken.

        This is found for TOGETHER evaluations that are due in the added steps at once, as a matrix of the
        candidates at each and their newest steps: numpy's cost is by call."""
        begin = max(self.first, begin)
        if self._late_from != begin or slot > self._late_until:
            next_ones = slice(self._number, self._number + TOGETHER)
            ends = np.array(self.added.ends[next_ones])
            often = {place: late[next_ones] for place, late in self.added.often.items()}
            self._late = persistent_flags(steps, self.members, ends, often, begin)
            self._late_from, self._late_until = begin, int(ends[-1])
        return self._late.get(slot)

    def _make_added(self, steps: StepWindow, begin: int, ends: Indices) -> _Added:
        """The figures of the steps from slot `begin` on, which are evaluated after the slots `ends`."""
        slots, members = np.arange(begin, steps.ranks.count), self.members
        rows = None if len(members) == steps.world else members  # all are not copied
        evaluations = _Evaluations(np.concatenate([[0], ends[:-1] + 1 - begin]), int(ends[-1]) + 1 - begin)
        excess, first = steps.work_excess(slots, rows), max(0, begin + 1 - OWN_STEPS)
        wall = steps.wall(np.arange(first, slots[-1] + 1))
        step_ms = wall[begin - first :]
        if self._added is None:
            latest = _LatestRanks(*own_time_rules.outstanding(excess), begin)
        else:
            latest = self._added.latest.followed_by(excess, begin)
        over_cpu = place_excess(steps, "cpu", slots, rows)
        is_known: Mask = ~np.isnan(over_cpu)
        large_ms = self._sum_large(
            evaluations.sum(_large_excess(excess, step_ms) - self._leaving_ms(steps, slots, rows))
        )
        paused_ms = self._sum_pauses(steps, slots, rows, evaluations)
        may_rotate = own_time_rules.may_rotate(latest.gain, ends - latest.first)
        judged = np.arange(max(0, begin - own_time_rules.ROTATING_STEPS), slots[-1] + 1)
        sizes_vary = uneven_work.sizes_vary(steps, judged, members)
        may_have_pattern = may_rotate | sizes_vary | _have_pauses(paused_ms, len(ends)) | large_ms.any(axis=1)
        return _Added(
            stop=int(slots[-1]) + 1,
            ends=ends.tolist(),
            n_steps=(ends + 1 - begin - evaluations.begins).tolist(),
            wall_ms=evaluations.sum(step_ms).tolist(),
            large_ms=large_ms,
            paused_ms=paused_ms,
            cpu_ms=evaluations.sum(np.where(is_known, over_cpu, 0.0)),
            knows_cpu=np.logical_or.reduceat(
                np.any(is_known, axis=0)[: evaluations.stop], evaluations.begins
            ).tolist(),
            wall=wall,
            first=first,
            latest=latest,
            may_rotate=may_rotate.tolist(),
            sizes_vary=sizes_vary,
            may_have_pattern=may_have_pattern.tolist(),
            often=self._late_often(steps, ends, rows),
        )

    def _sum_large(self, added_ms: Column) -> Column:
        """`_Added.large_ms`, from what each evaluation adds to it."""
        if self._added is not None:
            added_ms[0] += self._added.large_ms[-1]
        return np.cumsum(added_ms, axis=0)

    def _sum_pauses(
        self, steps: StepWindow, slots: Indices, rows: Indices | None, evaluations: _Evaluations
    ) -> Column:
        """`_Added.paused_ms`, of these evaluations."""
        paused_ms = np.zeros((len(evaluations.begins), 1))
        if len(self.members) <= own_time_rules.PLACE_RANKS:
            paused_ms = evaluations.sum(np.nan_to_num(steps.place("gc", slots, rows)))
        if self._added is None:
            return paused_ms
        return np.concatenate([self._added.paused_ms[1 - SUM_EVALUATIONS :], paused_ms])

    def _leaving_ms(self, steps: StepWindow, slots: Indices, rows: Indices | None) -> Column:
        """(members, n) large excesses of the step that leaves the running sums with each of these steps."""
        large_ms, leaving = np.zeros((len(self.members), len(slots))), slots - SUM_STEPS
        leaving = leaving[leaving >= self.first]
        if len(leaving):
            large_ms[:, -len(leaving) :] = _large_excess(
                steps.work_excess(leaving, rows), steps.wall(leaving)
            )
        return large_ms

    def _late_often(
        self, steps: StepWindow, ends: Indices, rows: Indices | None
    ) -> dict[OwnPlace | None, Mask]:
        """`_Added.often`, of the evaluations after these slots."""
        n_early = int(np.searchsorted(ends, own_time_rules.NEWEST - 1))  # before there are so many steps
        ends = ends[n_early:]
        if not len(ends):
            return {}
        slots = np.arange(ends[0] + 1 - own_time_rules.NEWEST, ends[-1] + 1)
        windows = (ends - ends[0])[:, None] + np.arange(own_time_rules.NEWEST)
        least = own_time_rules.least_excess(steps.wall(slots)[windows])
        excess = steps.work_excess(slots, rows)
        often: dict[OwnPlace | None, Mask] = {None: own_time_rules.late_often(excess, least, windows)}
        if len(self.members) <= own_time_rules.PLACE_RANKS:
            for place in STEADY:
                own_ms = steps.place(place, slots, rows)
                # No excess is larger than what the ranks differ by, and in most places they hardly differ.
                apart_ms = np.fmax.reduce(own_ms, axis=0) - np.fmin.reduce(own_ms, axis=0)
                if own_time_rules.may_be_late_often(apart_ms[None], least, windows).any():
                    over = formulas.more_than_others(own_ms.T).T
                    often[place] = own_time_rules.late_often(over, least, windows)
        none_late = np.zeros((n_early, len(self.members)), bool)
        return {place: np.concatenate([none_late, late]) for place, late in often.items() if late.any()}


def _have_pauses(paused_ms: Column, n_evaluations: int) -> Mask:
    """(n_evaluations,) whether there was a pause in the newest SUM_EVALUATIONS, up to each of these.

    `paused_ms`: as of `_Added`."""
    n_paused = np.concatenate([np.zeros(SUM_EVALUATIONS), paused_ms.any(axis=1).cumsum()])
    return np.asarray(
        n_paused[-n_evaluations:] > n_paused[-n_evaluations - SUM_EVALUATIONS : -SUM_EVALUATIONS]
    )


def _large_excess(excess: Column, wall: Column) -> Column:
    least = np.maximum(own_time_rules.LARGE_MS, own_time_rules.LARGE_SHARE * wall)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(excess > least, excess, 0.0), np.float64)


def _excess_in_places(steps: StepWindow, slots: Indices, members: Indices) -> Column:
    """(STEADY, members, n) of each place."""
    own_ms = np.stack([steps.place(place, slots)[members] for place in STEADY])
    return np.asarray(formulas.more_than_others(own_ms.swapaxes(1, 2)).swapaxes(1, 2), np.float64)


_level_ms = attrgetter("level_ms")

_NO_EXCESS: tuple[object, Mapping[int, int], own_time_rules.NewestExcess] = (
    None,
    {},
    own_time_rules.NewestExcess((), (), ()),
)


class StepFlagging:
    """Flags ranks from every step: applies the rules of `own_time_rules` after each EVERY-th step."""

    def __init__(self, flags: StepFlags) -> None:
        """`flags`: where the result goes."""
        self._flags = flags
        self._groups: list[_Group] = []
        self._seen = -1
        self._blind: dict[int, bool] = {}
        """`StepFlags.blind` at the evaluations over the steps that were added last, by their slots."""
        self._patterns_from = 0
        """Patterns are searched from this slot on: the steps of a delay that has ended are none."""
        self._persistent_from = 0
        """Persistent stragglers are searched from this slot on, once a delay in one place has ended: scatter
        elsewhere, which alone flags no rank, would keep a rank flagged as long as these steps are kept."""
        self._last: StepFlag | None = None
        self._ends: Indices = np.arange(0)
        """Slots of this evaluation and the next ones over steps that are added already."""
        self._newest = _NO_EXCESS
        """For a flagged rank: which one and where, evaluations by their slots, and its excess at each."""

    def evaluate(self, steps: StepWindow, slots: Indices, groups: Sequence[Indices]) -> bool:
        """Evaluate the rules over the steps up to a slot. Returns whether the flagged rank has changed.

        `slots`: this one, and those of the next evaluations over steps that are added already; `groups`: the
        ranks that are compared with each other.
        """
        slot, self._ends = int(slots[0]), slots
        flags = self._flags
        if groups is not flags.groups:
            flags.groups, self._newest = groups, _NO_EXCESS
            self._groups = [_Group(group, self._seen + 1) for group in groups]
        fresh = range(self._seen + 1, slot + 1)
        for group in self._groups:
            group.take(steps, fresh, slots)
        self._seen = slot
        flags.blind = self._is_blind(steps, slot)
        before, flag, last = flags.flag, self._choose_flag(steps, slot), self._last
        if flag is not None and flag.pattern == "persistent" and last and last.rank not in flag.ranks:
            flags.moves.append(slot)
        self._last, flags.flag, flags.cpu_suspect = flag or last, flag, None
        for group in self._groups if flag is None else ():
            flags.cpu_suspect = flags.cpu_suspect or group.cpu_waits.suspect()
        flags.note(slot)
        return (None if before is None else before.rank) != (None if flag is None else flag.rank)

    def _is_blind(self, steps: StepWindow, slot: int) -> bool:
        """Whether in most of the newest steps a rank's last gradient is unknown."""
        if slot not in self._blind:
            ends = self._ends
            slots = np.arange(max(0, slot + 1 - own_time_rules.NEWEST), ends[-1] + 1)
            unknown = steps.unknown(steps.own(slots), slots)
            n_unknown = np.zeros(len(slots) + 1, np.int64)
            if unknown is not None:
                np.cumsum(np.any(unknown, axis=0), out=n_unknown[1:])
            stops = ends + 1 - slots[0]
            begins = np.maximum(stops - own_time_rules.NEWEST, 0)
            is_blind = 2 * (n_unknown[stops] - n_unknown[begins]) > stops - begins
            self._blind = dict(zip(ends.tolist(), is_blind.tolist(), strict=True))
        return self._blind[slot]

    def _choose_flag(self, steps: StepWindow, slot: int) -> StepFlag | None:
        """The flag after this evaluation."""
        flags = self._find_persistent(steps, slot)
        best = max(flags, key=_level_ms) if flags else None
        held_flag = self._flags.flag
        if held_flag is not None and held_flag.pattern == "persistent":
            if self._is_still_late(steps, slot, held_flag):
                again = next((flag for flag in flags if flag.rank in held_flag.ranks), None)
                if (
                    best is None
                    or best.rank in held_flag.ranks
                    or best.level_ms < SWITCH * held_flag.level_ms
                ):
                    if again is None or (again.place is None and held_flag.place is not None):
                        return held_flag
                    return again.led_by(held_flag.rank)
                return best
            self._patterns_from = slot + 1
            if held_flag.place is not None:
                self._persistent_from = slot + 1 - own_time_rules.OVER_STEPS
                best = max(self._find_persistent(steps, slot), key=_level_ms, default=None)
            for group in self._groups:
                group.cpu_waits = CpuWaits(group.members)
        if best is not None:
            return best
        for group in self._groups:
            readings = self._flags.throttled
            by_quota = held_flag.rank if held_flag is not None and held_flag.place == "cpu" else None
            flag = throttled(steps, slot, group.members, readings, by_quota) if readings else None
            flag = flag or group.cpu_waits.flag(steps, slot)
            if flag is not None:
                return flag
            flag = self._find_pattern(group, steps, slot)
            if flag is not None:
                return flag if held_flag is None else flag.led_by(held_flag.rank)
        return None

    def _is_still_late(self, steps: StepWindow, slot: int, flag: StepFlag) -> bool:
        """Whether the flagged rank stays flagged.

        If the newest steps are all since it began, this is found for all evaluations in the added steps."""
        bursts = flag.place == "cpu"
        keep, _ = own_time_rules.newest_steps(bursts=bursts)
        begin = max(0, flag.since, slot + 1 - OWN_STEPS)
        if begin > slot + 1 - keep:
            slots = np.arange(begin, slot + 1)
            over, wall = flag.excess(steps, slots), steps.wall(slots)
            return own_time_rules.still_late(over, wall, flag.level_ms, bursts=bursts)
        of_rank, numbers, newest = self._newest
        if of_rank != (flag.rank, flag.place) or slot not in numbers:
            ends = self._ends
            numbers = {end: number for number, end in enumerate(ends.tolist())}
            slots = np.arange(slot + 1 - keep, ends[-1] + 1)
            windows = ends[:, None] - slots[0] + np.arange(1 - keep, 1)
            over, wall = flag.excess(steps, slots), steps.wall(slots)
            newest = own_time_rules.newest_excess(over[windows], wall[windows], bursts=bursts)
            self._newest = (flag.rank, flag.place), numbers, newest
        return newest.is_late(numbers[slot], flag.level_ms)

    def _find_persistent(self, steps: StepWindow, slot: int) -> list[StepFlag]:
        """The ranks of each process group that are late in most steps."""
        flags = []
        for group in self._groups:
            flag = group.find_persistent(steps, slot, self._persistent_from)
            if flag is not None:
                flags.append(flag)
        return flags

    def _find_pattern(self, group: _Group, steps: StepWindow, slot: int) -> StepFlag | None:
        """An intermittent or rotating straggler of a process group."""
        if not group.may_have_pattern:
            return None
        flag = self._flags.flag
        is_held = flag is not None and flag.rank in group.members
        judged = range(max(self._patterns_from, group.first, slot + 1 - OWN_STEPS), slot + 1)
        if len(judged) < own_time_rules.LEAST_STEPS or len(group.members) < 2:
            return None
        wall = group.added.wall_of(judged)
        slots = np.arange(judged.start, judged.stop)
        for place, rows, over in _places_with_large_excess(group, steps, slots, wall):
            late = own_time_rules.intermittent(over, wall, held=is_held, are_pauses=place == "gc")
            if late is None:
                continue
            hits = slots[over[late.ranks[0]] > own_time_rules.HALF * late.level_ms]
            # A pause has what it waited for a CPU; and work is not late where the others have waited longer.
            total = steps.excess if place in (None, "gc") else steps.work_excess
            excess = total(hits, group.members[rows[list(late.ranks)]])
            if median(excess[0]) >= own_time_rules.AGREES * late.level_ms:
                return _make_flag(late, "intermittent", group, rows, slots, place)
        late = None
        if group.may_rotate:
            turning = is_held and flag is not None and flag.pattern == "rotating"
            last, gain = group.added.latest.until(slot)
            late = own_time_rules.rotating(last, gain, wall, len(group.members), held=turning)
        if late is None and group.added.sizes_vary:
            late = _find_uneven_work(group, steps, slots, is_held)
        if late is None:
            return None
        rotating_flag = _make_flag(late, "rotating", group, np.arange(len(group.members)), slots)
        return rotating_flag if flag is None else rotating_flag.led_by(flag.rank)


def _places_with_large_excess(
    group: _Group, steps: StepWindow, slots: Indices, wall: Column
) -> Iterator[tuple[OwnPlace | None, Indices, Column]]:
    """Where large excesses cost enough: each place (None: own time as a whole), some members, and their
    excess.

    `wall`: (n,) ms of the steps in these slots.
    """
    worth_ms = own_time_rules.WORTH * float(wall.sum())
    if float(group.large_ms.max()) >= worth_ms:
        rows = np.argsort(-group.large_ms, kind="stable")[: own_time_rules.RIVALS + 1]
        yield None, rows, steps.work_excess(slots, group.members[rows])
        if len(group.members) <= own_time_rules.PLACE_RANKS:
            over = _excess_in_places(steps, slots, group.members[rows])
            least_ms = max(own_time_rules.LARGE_MS, own_time_rules.LARGE_SHARE * float(median(wall)))
            large_ms = np.where(over > least_ms, over, 0.0).sum(axis=-1).max(axis=-1)
            for place in np.flatnonzero(large_ms >= worth_ms).tolist():
                yield STEADY[place], rows, over[place]
    paused_ms = group.paused_ms.sum(axis=0)
    if float(paused_ms.max()) >= worth_ms:
        rows = np.argsort(-paused_ms, kind="stable")[: own_time_rules.RIVALS + 1]
        yield "gc", rows, place_excess(steps, "gc", slots, group.members[rows])


def _find_uneven_work(group: _Group, steps: StepWindow, slots: Indices, held: bool) -> Late | None:
    """The ranks that are late in turn because their batches differ, where that costs enough."""
    last, _ = group.added.latest.until(int(slots[-1]))
    newest, last = (values[-own_time_rules.ROTATING_STEPS :] for values in (slots, last))
    gain = uneven_work.ms_saved_if_even(steps, newest, group.members)
    if len(last) < own_time_rules.ROTATING_STEPS or len(gain) < len(last) or np.isnan(gain).any():
        return None
    worth = max(own_time_rules.FLAG_MS, own_time_rules.FLAG_SHARE * float(steps.wall(newest).mean()))
    if gain.mean() < (worth * 2 / 3 if held else worth) or certainty(gain) < own_time_rules.ERRORS:
        return None
    counts = np.bincount(last, minlength=len(group.members))
    order = tuple(np.argsort(-counts, kind="stable")[: max(2, int((counts > 0).sum()))].tolist())
    return own_time_rules.Late(order, len(slots) - len(newest), float(median(gain)))


def persistent_flags(
    steps: StepWindow, members: Indices, ends: Indices, often: Mapping[OwnPlace | None, Mask], begin: int
) -> dict[int, StepFlag]:
    """For the evaluations after the slots `ends`, the ranks that are late in most steps from slot `begin` on,
    in own time as a whole or in one place. By slot; without slots at which no rank is.

    `often`: as of `_Added`, of these evaluations.
    """
    if not any(late.any() for late in often.values()):
        return {}
    windows = _Windows(steps, members, ends, begin)
    late = {place: windows.late_in(place, mask) for place, mask in often.items() if place is not None}
    of_whole = often.get(None, np.zeros((len(ends), len(members)), bool))
    whole_flags = windows.late_in(None, _leave_out_decided(of_whole, late, members))
    flag_of_slot: dict[int, StepFlag] = {}
    for number in sorted({number for flags in (whole_flags, *late.values()) for number in flags}):
        slot = int(ends[number])
        whole = whole_flags.get(number)
        in_places = [flags[number] for flags in late.values() if number in flags]
        in_places = [flag for flag in in_places if whole is None or flag.rank in whole.ranks]
        if whole is not None and not in_places and len(members) <= own_time_rules.PLACE_RANKS:
            share = float(formulas.share(whole.level_ms, windows.step_ms(number)))
            if share < own_time_rules.WHOLE_SHARE or (
                share < own_time_rules.SLOW_CORE_SHARE and _is_brief(whole, steps, slot)
            ):
                whole = None
        flag = max(in_places, key=_level_ms, default=whole)
        if flag is not None:
            flag_of_slot[slot] = flag
    return flag_of_slot


def _leave_out_decided(
    of_whole: Mask, late: Mapping[OwnPlace, Mapping[int, StepFlag]], members: Indices
) -> Mask:
    """`of_whole`, (k, members), without the evaluations in which own time as a whole decides nothing: one
    member alone is late in it often, and that is the one that is late in a place."""
    undecided: Mask = of_whole.copy()
    is_alone = (of_whole.sum(axis=1) == 1).tolist()
    late_rank = members[of_whole.argmax(axis=1)].tolist()
    for number in {number for flags in late.values() for number in flags}:
        ranks = {flags[number].rank for flags in late.values() if number in flags}
        if is_alone[number] and ranks == {late_rank[number]}:
            undecided[number] = False
    return undecided


class _Windows:
    """The newest OWN_STEPS steps at each of several evaluations, side by side."""

    def __init__(self, steps: StepWindow, members: Indices, ends: Indices, begin: int) -> None:
        """`ends`: slots of the evaluations; steps before the slot `begin` are not judged."""
        self._steps, self._members, self._ends = steps, members, ends
        begins = np.maximum(begin, ends + 1 - OWN_STEPS)
        self._enough = ends + 1 - begins >= own_time_rules.NEWEST
        self._first = int(begins.min(initial=0 if not len(ends) else int(ends[0])))
        slots = ends[:, None] + np.arange(1 - OWN_STEPS, 1)
        self._judged = slots >= begins[:, None]
        """(ends, OWN_STEPS) which steps of each window are; others are before it."""
        self._all_judged = bool(self._judged.all())
        self._at = np.maximum(slots - self._first, 0)
        self._wall = steps.wall(self._slots())

    def step_ms(self, number: int) -> float:
        """The median step of an evaluation's window."""
        return float(median(self._windows(self._wall[None], np.array([number]), np.zeros(1, np.int64)))[0])

    def _slots(self) -> Indices:
        return np.arange(self._first, self._ends[-1] + 1) if len(self._ends) else np.arange(0)

    def _windows(self, values: Column, which: Indices, rows: Indices) -> Column:
        """(k, OWN_STEPS) of k rows of (m, n) values the window of an evaluation each, which are numbered
        `which`; NaN where a step is not judged."""
        # As one row: to take along an axis takes twice as long.
        picked = values.ravel().take(self._at[which] + values.shape[1] * rows[:, None])
        return picked if self._all_judged else np.where(self._judged[which], picked, np.nan)

    def late_in(self, place: OwnPlace | None, often: Mask) -> dict[int, StepFlag]:
        """The ranks that are late in own time as a whole (None) or in one place, by number of the evaluation.

        `often`: (ends, members) which are late in most of the newest steps.
        """
        steps, members, slots = self._steps, self._members, self._slots()
        which, rows = np.nonzero(often & self._enough[:, None])
        if not len(which):
            return {}
        late_rows = np.unique(rows)
        row_of = np.searchsorted(late_rows, rows)
        if place is None:
            excess = steps.work_excess(slots, members[late_rows])
        else:
            excess = place_excess(steps, place, slots, members)[late_rows]
        over = self._windows(excess, which, row_of)
        if len(members) > own_time_rules.CANDIDATES:
            few = self._choose_candidates(over, which)
            which, rows, row_of, over = which[few], rows[few], row_of[few], over[few]
        first = onsets(over, own_time_rules.THRESHOLDS)
        wall = self._windows(self._wall[None], which, np.zeros(len(which), np.int64))
        level = own_time_rules.lasting(over, wall, first)
        late_at = np.flatnonzero(~np.isnan(level))
        if not len(late_at):
            return {}
        which, rows, row_of = which[late_at], rows[late_at], row_of[late_at]
        first, level = first[late_at], level[late_at]
        # Where all of own time is compared, the rank has to be late: not that others waited longer for a CPU.
        total = (steps.excess if place is None else steps.work_excess)(slots, members[late_rows])
        agrees = level  # where nothing was waited for a CPU it is the same
        if not np.array_equal(total, excess, equal_nan=True):
            since = np.arange(OWN_STEPS) >= first[:, None]
            agrees = median(np.where(since, self._windows(total, which, row_of), np.nan))
        flag_of_evaluation: dict[int, StepFlag] = {}
        ranks, firsts, levels = members[rows].tolist(), first.tolist(), level.tolist()
        agrees, ends = agrees.tolist(), self._ends[which].tolist()
        for evaluation, numbers in groupby(range(len(which)), key=which.tolist().__getitem__):
            late = own_time_rules.latest_of([*numbers], firsts, levels, len(members))
            main = late.ranks[0]
            if not agrees[main] >= own_time_rules.AGREES * late.level_ms:
                continue
            late_ranks = tuple([ranks[candidate] for candidate in late.ranks])
            begin = ends[main] + 1 - OWN_STEPS + late.first
            flag_of_evaluation[evaluation] = StepFlag(
                late_ranks, "persistent", begin, late.level_ms, members, place
            )
        return flag_of_evaluation

    @staticmethod
    def _choose_candidates(over: Column, which: Indices) -> Mask:
        """(k,) which candidates are considered, at most CANDIDATES at each evaluation."""
        taken: Mask = np.ones(len(which), bool)
        numbers, counts = np.unique(which, return_counts=True)
        for number in numbers[counts > own_time_rules.CANDIDATES].tolist():
            candidates = np.flatnonzero(which == number)
            newest = over[candidates, -own_time_rules.NEWEST :]
            taken[candidates] = False
            taken[candidates[own_time_rules.candidates(newest, np.ones(len(candidates), bool))]] = True
        return taken


def _is_brief(flag: StepFlag, steps: StepWindow, slot: int) -> bool:
    """Whether a rank is slow in several places for so short a time that its core may have been busy."""
    slots = np.arange(flag.since, slot + 1)
    # With the steps between them that were left out, but not with an evaluation: nobody was slow in it.
    n_steps = 1 + float(np.ptp(steps.group.of("number", slots)))
    lasted_s = n_steps * float(median(steps.wall(slots))) / 1000.0
    if len(slots) >= own_time_rules.SLOW_CORE_STEPS or lasted_s >= own_time_rules.SLOW_CORE_S:
        return False
    row = int(np.flatnonzero(flag.members == flag.rank)[0])
    backward, waited = (place_excess(steps, place, slots, flag.members)[row] for place in ("backward", "cpu"))
    return not float(median(backward - np.nan_to_num(waited))) >= own_time_rules.CAUSE_SHARE * flag.level_ms


def _make_flag(
    late: Late, pattern: Pattern, group: _Group, rows: Indices, slots: Indices, place: OwnPlace | None = None
) -> StepFlag:
    """`rows`: the members that the rule was given, `slots`: the steps."""
    ranks = tuple(int(group.members[rows[rank]]) for rank in late.ranks)
    return StepFlag(ranks, pattern, int(slots[late.first]), late.level_ms, group.members, place)
