"""Applies the rules: flags at most one rank over all process groups, and finds its figures and its cause."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps.windows import MOVES, OWN_STEPS, PARTS, PHASES, Flagged
from ddptop.analysis.straggler import every_step, rules
from ddptop.frames.columns import median
from ddptop.frames.frame import Straggler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow, StepWindow
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import Cause, Pattern, StepPhase

OWN_TIME_SHARE = 0.5
"""A rank is flagged only if at least this share of its lateness shows in its own time."""

CAUSE_SHARE = 0.8
"""A phase is the cause when it has at least this share of the excess; else the cause is mixed."""


def excess(detail: DetailWindow, window: ScopeWindow, slots: Indices, late: Mask) -> dict[StepPhase, float]:
    """For each phase the ms that the late ranks take longer than the median of the other ranks of their
    process group, as a median over the steps.

    `late`: (n, ranks) whether a rank counts as late in a step. Late ranks are compared with the others.
    """
    parts: dict[StepPhase, float] = {}
    for phase, name in zip(PHASES, PARTS, strict=True):
        values = detail.ranks.of(name, slots)[window.members].T
        others = median(np.where(late, np.nan, values))
        over = np.where(late, values - others[:, None], np.nan)
        parts[phase] = float(median(over.ravel()))
    return parts


def shows_in_own_time(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, rank: int, straggler: Straggler
) -> bool:
    """Whether the lateness of `rank` (index in the group) shows in its own time: its phases take longer, or
    its part of the collectives does (a slow link).

    Load on a machine that ranks share can make one of them late over a hundred steps although none of its
    phases takes longer (seen with four ranks on two busy cores).
    """
    least = OWN_TIME_SHARE * straggler.lateness_ms
    if sum(ms for ms in straggler.parts_ms.values() if ms > 0) >= least:
        return True
    transfer = detail.ranks.of("exposed", slots) - detail.ranks.of("exposed_wait", slots)
    values = transfer[window.members].T
    over = values[:, rank] - median(np.delete(values, rank, axis=1))
    return bool(median(over) >= least)


def cause(parts: dict[StepPhase, float]) -> Cause | None:
    """The phase with at least CAUSE_SHARE of the excess, else `mixed`; None: there is no excess."""
    over = {phase: ms for phase, ms in parts.items() if ms > 0}
    if not over:
        return None
    largest = max(over, key=lambda phase: over[phase])
    return largest if over[largest] >= CAUSE_SHARE * sum(over.values()) else "mixed"


FADED = 0.25
"""A rank whose lateness has decreased to this share of that when it was flagged must meet the flag thresholds
again. Otherwise noise alone would keep it flagged."""

SWITCH = 2.0
"""While a rank is flagged, another one is flagged instead when its excess is this many times as large."""

SUM_STEPS = OWN_STEPS - every_step.EVERY
"""Steps of the running sums: those that leave them are still kept."""

CHANGES = 64
"""Changes of the flag that are kept: more than the steps of a batch have."""

MOVES_WITHIN = 512
"""The straggler is rotating when the flag changed MOVES times within this many detailed steps."""


def evaluate_flag(detail: DetailWindow, slots: Indices) -> None:
    """Evaluate the rules over these detailed steps and flag the rank that costs most, or none.

    The rank flagged so far stays flagged while the rules still find it."""
    before = detail.flagged
    found = [flag for window in detail.scopes.values() if (flag := _in(detail, window, slots)) is not None]
    kept = [flag for flag in found if before is not None and flag[:2] == before[:2]]
    detail.flagged = kept[0] if kept else max(found, key=lambda flag: flag.cost_ms, default=None)
    if detail.flagged is None or not _is_confirmed(detail, slots):
        detail.flagged = None
        return
    if detail.last_flagged is not None and detail.last_flagged[:2] != detail.flagged[:2]:
        detail.moves.append(detail.count)
    detail.last_flagged = detail.flagged


def _in(detail: DetailWindow, window: ScopeWindow, slots: Indices) -> Flagged | None:
    """The rank to flag in one process group; None: no rank."""
    if window.clock_free:
        return None
    held = detail.flagged if detail.flagged is not None and detail.flagged.scope == window.scope else None
    rank = None if held is None else held.rank
    measured = rules.persistent(window, slots, rank if held is None or held.pattern == "persistent" else None)
    if measured is None:
        measured = rules.by_phase(detail, window)
    if measured is not None:
        faded = held is not None and measured.lateness_ms < FADED * held.lateness_ms
        first = held is None or held.rank != measured.ranks[0] or rules.meets_flag_threshold(measured)
        if first or not faded:
            lateness_ms = measured.lateness_ms if held is None or first else held.lateness_ms
            return Flagged(window.scope, measured.ranks[0], "persistent", measured.cost_ms, lateness_ms)
    others: tuple[tuple[Pattern, rules.LatePattern | None], ...] = (
        ("intermittent", rules.intermittent(window)),
        ("rotating", rules.rotating(window, rank)),
    )
    for pattern, found in others:
        if found is not None:
            return Flagged(window.scope, found.ranks[0], pattern, found.cost_ms, found.recoverable_ms)
    return None


def _is_confirmed(detail: DetailWindow, slots: Indices) -> bool:
    """Whether the lateness of the flagged rank shows in its own time as well."""
    flag = detail.flagged
    assert flag is not None
    window, newest = detail.scopes[flag.scope], detail.group.recent(rules.NEWEST)
    for steps in (newest, slots):
        found = straggler(detail, steps)
        if found is not None and shows_in_own_time(detail, window, steps, flag.rank, found):
            return True
    return False


def straggler(detail: DetailWindow, slots: Indices) -> Straggler | None:
    """The figures of the flagged rank over these steps, with the cause; None when they no longer meet the
    thresholds, or no rank is flagged."""
    flag = detail.flagged
    window = None if flag is None else detail.scopes.get(flag.scope)
    if flag is None or window is None or not len(slots):
        return None
    if flag.pattern == "persistent":
        return _persistent(detail, window, slots, flag)
    if flag.pattern == "intermittent":
        found = rules.intermittent(window)
    else:
        found = rules.rotating(window, flag.rank)
    return None if found is None else _of_pattern(detail, window, slots, flag, found)


def _persistent(detail: DetailWindow, window: ScopeWindow, slots: Indices, flag: Flagged) -> Straggler | None:
    result = rules.measure_while_late(window, slots, flag.rank)
    if result is None:
        return None
    measured, slots = result
    slots = window.with_detail(slots)
    # For one rank all steps count; for several, each counts in the steps in which it is late.
    late: Mask = np.zeros((len(slots), len(window.members)), bool)
    late[:, list(measured.ranks)] = True
    if len(measured.ranks) > 1:
        lateness = window.ranks.of("lateness", slots).T[:, list(measured.ranks)]
        late[:, list(measured.ranks)] = lateness > measured.bound_ms
    parts = excess(detail, window, slots, late)
    rotates = len(detail.moves) == MOVES and detail.count - detail.moves[0] <= MOVES_WITHIN
    return Straggler(
        rank=flag.global_rank,
        pattern="rotating" if rotates else "persistent",
        lateness_ms=measured.lateness_ms,
        bound_ms=measured.bound_ms,
        recoverable_ms=measured.recoverable_ms,
        cost_pct=measured.cost_pct,
        last_pct=100 * measured.share,
        cause=cause(parts),
        parts_ms=parts,
        ranks=tuple(window.scope.ranks[rank] for rank in measured.ranks) if len(measured.ranks) > 1 else (),
    )


def _of_pattern(
    detail: DetailWindow, window: ScopeWindow, slots: Indices, flag: Flagged, found: rules.LatePattern
) -> Straggler:
    """An intermittent or rotating straggler: lateness and cause over the late steps only."""
    last = window.group.of("last", slots)
    clear = (window.group.of("recoverable", slots) > found.clear_ms) & np.isin(last, found.ranks)
    late = clear[:, None] & (last[:, None] == np.arange(len(window.members)))
    lateness = window.ranks.of("lateness", slots).T[late]
    parts = excess(detail, window, slots, late) if late.any() else {}
    ranks = tuple(window.scope.ranks[rank] for rank in found.ranks)
    return Straggler(
        rank=flag.global_rank,
        pattern=flag.pattern,
        lateness_ms=float(median(lateness)) if len(lateness) else found.recoverable_ms,
        bound_ms=float(window.bound_ms(slots)[flag.rank]),
        recoverable_ms=found.recoverable_ms,
        cost_pct=found.cost_pct,
        last_pct=100 * found.share,
        cause=cause(parts),
        parts_ms=parts,
        ranks=ranks if len(ranks) > 1 else (),
    )


class StepFlag(NamedTuple):
    """The ranks flagged from every step, and since when. Slots are those of the `StepWindow`."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    pattern: Pattern
    since: int
    """Slot of the first late step."""
    level_ms: float
    """Median excess with which it was flagged."""
    members: Indices
    """Ranks of its process group, those compared with each other."""

    @property
    def rank(self) -> int:
        """The main straggler."""
        return self.ranks[0]


class Verdict(NamedTuple):
    """What every step's own times say from one change to the next."""

    since: int
    """Slot of the evaluation that changed it."""
    flag: StepFlag | None
    """As it was then."""
    blind: bool
    """`StepFlags.blind`."""


def _key(flag: StepFlag | None) -> tuple[int, Pattern] | None:
    return None if flag is None else (flag.rank, flag.pattern)


class _Group:
    """What is kept of one process group between evaluations, so that these cost little with many ranks."""

    def __init__(self, members: Indices, slot: int) -> None:
        """`slot`: of the first step of which the group counts."""
        self.members = members
        self.first = slot
        self.large_ms: Column = np.zeros(len(members))
        """By member, the sum of its large excesses over SUM_STEPS steps."""
        self.late: deque[int] = deque(maxlen=every_step.ROTATING_STEPS)
        """Of the newest steps the member with the largest excess, and by how much that stands out."""
        self.gain: deque[float] = deque(maxlen=every_step.ROTATING_STEPS)

    def take(self, steps: StepWindow, fresh: Indices) -> None:
        """Steps that are new since the last evaluation."""
        excess = steps.excess(fresh, self.members)
        self.large_ms += _large_ms(excess, steps.wall(fresh))
        gone = fresh - SUM_STEPS
        gone = gone[gone >= self.first]
        if len(gone):
            self.large_ms -= _large_ms(steps.excess(gone, self.members), steps.wall(gone))
        self.late.extend(np.where(np.isnan(excess), -np.inf, excess).argmax(axis=0).tolist())
        self.gain.extend(every_step.outstanding(excess).tolist())


def _large_ms(excess: Column, wall: Column) -> Column:
    least = np.maximum(every_step.LARGE_MS, every_step.LARGE_SHARE * wall)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(excess > least, excess, 0.0).sum(axis=1), np.float64)


class StepFlags:
    """Flags ranks from every step: applies the rules of `every_step` after each EVERY-th step."""

    def __init__(self) -> None:
        self.flag: StepFlag | None = None
        self.changes: deque[Verdict] = deque([Verdict(0, None, False)], maxlen=CHANGES)
        """The newest changes of rank, pattern or `blind`."""
        self.blind = False
        """The last gradient is unknown in most of the newest steps, and so own time in backward."""
        self.disagreements = 0
        """Evaluations of the arrivals that contradicted the flag."""
        self.disagrees = False
        """Whether the last one did."""
        self.newest = -1
        """Number of the newest step."""
        self._groups: list[_Group] = []
        self._seen = -1
        self._patterns_from = 0
        """Patterns are searched from this slot on: the steps of a delay that has ended are none."""
        self._moves: deque[int] = deque(maxlen=MOVES)
        self._last: StepFlag | None = None

    @property
    def groups(self) -> list[Indices]:
        """The ranks that are compared with each other."""
        return [group.members for group in self._groups]

    @property
    def members(self) -> Indices:
        """The ranks of the first group."""
        return self._groups[0].members if self._groups else np.arange(0)

    def at(self, slot: int) -> Verdict:
        """The verdict at a step."""
        return next((one for one in reversed(self.changes) if one.since <= slot), self.changes[0])

    def evaluate(self, steps: StepWindow, slot: int, groups: Sequence[Indices]) -> bool:
        """Evaluate the rules over the steps up to a slot. Returns whether the flagged rank has changed.

        `groups`: the ranks that are compared with each other.
        """
        if len(groups) != len(self._groups) or any(
            len(group) != len(kept.members) or (group != kept.members).any()
            for group, kept in zip(groups, self._groups, strict=True)
        ):
            self._groups = [_Group(group, self._seen + 1) for group in groups]
        fresh = np.arange(self._seen + 1, slot + 1)
        self._seen = slot
        for group in self._groups:
            group.take(steps, fresh)
        newest = np.arange(max(0, slot + 1 - every_step.NEWEST), slot + 1)
        unknown = np.isnan(steps.own(newest)) & ~np.isnan(steps.excess(newest))
        self.blind = bool(unknown.any(axis=0).mean() > 0.5)
        before, self.flag = self.flag, self._next(steps, slot)
        flag, last = self.flag, self._last
        if flag is not None and flag.pattern == "persistent" and last is not None:
            self._moves.extend([slot] * (last.rank not in flag.ranks))
        self._last = flag or last
        said = self.changes[-1]
        if _key(said.flag) != _key(flag) or said.blind != self.blind:
            self.changes.append(Verdict(slot, flag, self.blind))
        return (None if before is None else before.rank) != (None if flag is None else flag.rank)

    def rotates(self, slot: int) -> bool:
        """Whether the flag of a persistent straggler went from rank to rank lately."""
        return len(self._moves) == MOVES and slot - self._moves[0] <= MOVES_WITHIN

    def _next(self, steps: StepWindow, slot: int) -> StepFlag | None:
        """The flag after this evaluation."""
        found = [flag for group in self._groups if (flag := _persistent_in(group, steps, slot)) is not None]
        best = max(found, key=lambda flag: flag.level_ms, default=None)
        held = self.flag
        if held is not None and held.pattern == "persistent":
            slots = np.arange(max(0, held.since, slot + 1 - OWN_STEPS), slot + 1)
            over = steps.excess(slots, np.array(held.ranks[:1]))[0]
            if every_step.still_late(over, steps.wall(slots), held.level_ms):
                again = next((flag for flag in found if flag.rank in held.ranks), None)
                if best is None or best.rank in held.ranks or best.level_ms < SWITCH * held.level_ms:
                    return held if again is None else again
                return best
            self._patterns_from = slot + 1
        if best is not None:
            return best
        for group in self._groups:
            flag = self._pattern_in(group, steps, slot)
            if flag is not None:
                return flag
        return None

    def _pattern_in(self, group: _Group, steps: StepWindow, slot: int) -> StepFlag | None:
        """An intermittent or rotating straggler of a process group."""
        held = self.flag if self.flag is not None and self.flag.rank in group.members else None
        slots = np.arange(max(self._patterns_from, group.first, slot + 1 - OWN_STEPS), slot + 1)
        if len(slots) < every_step.LEAST_STEPS or len(group.members) < 2:
            return None
        wall = steps.wall(slots)
        if float(group.large_ms.max()) >= every_step.WORTH * float(wall.sum()):
            rows = np.argsort(-group.large_ms, kind="stable")[: every_step.RIVALS + 1]
            excess = steps.excess(slots, group.members[rows])
            late = every_step.intermittent(excess, wall, held=held is not None)
            if late is not None:
                return _flag(late, "intermittent", group, rows, slots)
        turns = (np.array(group.late), np.array(group.gain))
        late = every_step.rotating(*turns, wall, len(group.members), held=held is not None)
        return None if late is None else _flag(late, "rotating", group, np.arange(len(group.members)), slots)


def _persistent_in(group: _Group, steps: StepWindow, slot: int) -> StepFlag | None:
    newest = np.arange(max(group.first, slot + 1 - every_step.NEWEST), slot + 1)
    rows = every_step.candidates(steps.excess(newest, group.members), steps.wall(newest))
    if not len(rows):
        return None
    slots = np.arange(max(group.first, slot + 1 - OWN_STEPS), slot + 1)
    excess = steps.excess(slots, group.members[rows])
    late = every_step.persistent(excess, steps.wall(slots), len(group.members))
    return None if late is None else _flag(late, "persistent", group, rows, slots)


def _flag(late: every_step.Late, pattern: Pattern, group: _Group, rows: Indices, slots: Indices) -> StepFlag:
    """`rows`: the members that the rule was given, `slots`: the steps."""
    ranks = tuple(int(group.members[rows[rank]]) for rank in late.ranks)
    return StepFlag(ranks, pattern, int(slots[late.first]), late.excess_ms, group.members)
