"""What is known of a run from its complete steps alone: the steps, and what is flagged from them."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.health.overhead import RecordedSteps, ShadowCost
from ddptop.analysis.health.pace import Pace
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.excess_minutes import ExcessMinutes
from ddptop.analysis.steps.kept import KeptSteps
from ddptop.analysis.steps.turns import OptimizerTurns
from ddptop.analysis.steps.windows import BATCH, MOVES, StepWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.analysis.steps.windows import DetailWindow
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.vocabulary import OwnPlace, Pattern


def place_excess(steps: StepWindow, place: OwnPlace, slots: Indices, members: Indices | None) -> Column:
    """(members, n) own time in one place less the median over the other members. `members` None: all."""
    values = steps.place(place, slots)
    return np.asarray(
        formulas.more_than_others((values if members is None else values[members]).T).T, np.float64
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
    place: OwnPlace | None = None
    """Where the rule found it; None: in own time as a whole, without what was waited for a CPU."""

    @property
    def rank(self) -> int:
        """The main straggler."""
        return self.ranks[0]

    def led_by(self, rank: int) -> StepFlag:
        """The flag with this rank first: of two equally late ones the main straggler stays the same."""
        if self.ranks[0] == rank:  # usually
            return self
        order = sorted(self.ranks, key=lambda late_rank: late_rank != rank)
        return self._replace(ranks=tuple(order) if rank in order else self.ranks)

    def excess(self, steps: StepWindow, slots: Indices) -> Column:
        """(n,) excess of the main straggler in the flag's place."""
        if self.place is None:
            return np.asarray(steps.work_excess(slots, np.array(self.ranks[:1]))[0], np.float64)
        main = int(np.flatnonzero(self.members == self.rank)[0])
        return np.asarray(place_excess(steps, self.place, slots, self.members)[main], np.float64)


class StepVerdict(NamedTuple):
    """What the own times of every step say, until the next change."""

    since: int
    """Slot of the evaluation that changed it."""
    flag: StepFlag | None
    """As it was then."""
    blind: bool
    """`StepFlags.blind`."""


class CpuSuspect(NamedTuple):
    """A rank that waits for a CPU longer than the others, for too short a time to flag it."""

    rank: int
    so_far_s: float
    """Time for which it has."""


CHANGES = BATCH
"""Changes of the flag that are kept, and readings of a quota: more than there are in the steps that are added
at once, which ask for those at each of them."""

MOVES_WITHIN = 512
"""The straggler is rotating when the flag changed MOVES times within this many steps."""


USED_UP_PCT = 20.0
"""Least share of the periods of a CPU quota, in a second, in which it must be used up: two of ten.
With one of ten a busy machine's other processes delayed the rank far more than its quota did."""


class StepFlags:
    """What is flagged from every step's own times."""

    def __init__(self) -> None:
        self.flag: StepFlag | None = None
        self.changes: deque[StepVerdict] = deque([StepVerdict(0, None, False)], maxlen=CHANGES)
        """The newest changes of rank, pattern or `blind`."""
        self.blind = False
        """The last gradient is unknown in most of the newest steps, and so own time in backward."""
        self.disagrees = False
        """Whether the last evaluation of the arrivals contradicted the flag."""
        self.newest = -1
        """Number of the newest step."""
        self.cpu_suspect: CpuSuspect | None = None
        """None also while a rank is flagged."""
        self.groups: Sequence[Indices] = ()
        """The ranks that are compared with each other."""
        self.moves: deque[int] = deque(maxlen=MOVES)
        """Slots at which the flag of a persistent straggler went from one rank to another."""
        self.throttled: dict[int, deque[float]] = {}
        """By rank, the newest readings of its process in which its CPU quota was used up: seconds since the
        run started."""

    def note_throttled(self, rank: int, throttled_pct: float | None, time_s: float) -> None:
        """A reading of a rank's process."""
        if throttled_pct is not None and throttled_pct >= USED_UP_PCT:
            self.throttled.setdefault(rank, deque(maxlen=CHANGES)).append(time_s)

    @property
    def members(self) -> Indices:
        """The ranks of the first group."""
        return self.groups[0] if self.groups else np.arange(0)

    def at(self, slot: int) -> StepVerdict:
        """The verdict at a step."""
        return next((verdict for verdict in reversed(self.changes) if verdict.since <= slot), self.changes[0])

    def note(self, slot: int) -> None:
        """Keep the verdict of this step if it differs from the one before."""
        flag, before = self.flag, self.changes[-1]
        is_same = flag is before.flag or (
            flag is not None
            and before.flag is not None
            and (flag.rank, flag.pattern) == (before.flag.rank, before.flag.pattern)
        )
        if not is_same or self.blind != before.blind:
            self.changes.append(StepVerdict(slot, flag, self.blind))

    def recovered(self, steps: StepWindow, slots: Indices) -> int:
        """The slot from which on the last persistent straggler, flagged within these slots, is not late any
        more; 0: there was none, or it is as late as before in steps that take longer.

        From there to the end, the sum of how far its excess is below half of that with which it was flagged
        is greatest (CUSUM)."""
        spells = [(before.flag, after.since) for before, after in pairwise(self.changes) if before.flag]
        flag, ended = spells[-1] if spells and self.flag is None else (None, 0)
        if flag is None or flag.pattern != "persistent" or ended < slots[0]:
            return 0
        after = slots[slots >= flag.since]
        over = np.clip(np.nan_to_num(flag.excess(steps, after)), 0.0, flag.level_ms)
        sums = np.cumsum((flag.level_ms / 2 - over)[::-1])[::-1]
        return min(int(after[sums.argmax()]), ended) if sums.max() > 0 else 0

    def rotates(self, slot: int) -> bool:
        """Whether the flag of a persistent straggler went from rank to rank lately."""
        return len(self.moves) == MOVES and slot - self.moves[0] <= MOVES_WITHIN


class Unevenness:
    """Figures of single steps that a frame has computed: the next one shows nearly the same steps."""

    def __init__(self) -> None:
        self.members: Indices | None = None
        """The ranks that are compared."""
        self.slots: Indices = np.arange(0)
        """The steps, without a gap."""
        self.values: Column = np.empty((2, 0))

    def of(self, slots: Indices, members: Indices, compute: Callable[[Indices], Column]) -> Column:
        """(2, n) values of these steps; `compute` makes those that are new."""
        first = int(slots[0]) if len(slots) else 0
        n_old = first - (int(self.slots[0]) if len(self.slots) else 0)
        if self.members is not members or not 0 <= n_old <= len(self.slots):
            n_old, self.slots, self.values = 0, slots[:0], self.values[:, :0]
        known_values = self.values[:, n_old : n_old + len(slots)]
        fresh = slots[known_values.shape[1] :]
        if len(fresh):
            known_values = np.concatenate([known_values, compute(fresh)], axis=1)
        self.members, self.slots, self.values = members, slots, known_values
        return known_values


class Figures:
    """What is known from complete steps alone. After a restart it begins anew; the history continues."""

    def __init__(self, world: int, size: int) -> None:
        """`size`: steps of the window."""
        self.world = world
        self.size = size
        self.steps = StepWindow(world, size)
        self.minutes = ExcessMinutes(world)
        self.detail: DetailWindow | None = None
        """The last detailed steps; None before the first."""
        self.kept = KeptSteps()
        """The last detailed steps as they were reported, for timelines."""
        self.loss: Column = np.full(world, np.nan)
        """Each rank's last known loss among complete steps."""
        self.has_loss: Mask = np.zeros(world, bool)
        """Ranks that have reported a loss, which may be NaN."""
        self.unevenness = Unevenness()
        self.flags = StepFlags()
        """What is flagged from every step's own times."""
        self.straggler: int | None = None
        self.straggler_logged: tuple[str, int | None] = ("", None)
        """As the event log has it: in words, and the rank; None: no rank is to blame."""
        self.straggler_since_s = 0.0
        self.shadow_cost = ShadowCost()
        """What the recorder costs, from the steps in which it stood aside."""
        self.recorded_steps = RecordedSteps()
        self.pace = Pace()
        self.turns = OptimizerTurns()
        self.loss_as_given = 0
        """As in the frame's `GroupFigures`."""
        self.late_no_sync = False
        """Whether a rank's newest steps have `Flag.LATE_NO_SYNC`."""
        self.contradicted = False
        """Whether the collectives contradict the hosts' clocks by more than their bound."""

    def even(self, slots: Indices) -> Mask:
        """(n,) whether it is known that no rank was flagged at each of these steps."""
        if not self.steps.has_own or self.straggler is not None:
            return np.zeros(len(slots), bool)
        changes = self.flags.changes
        is_even = np.array([verdict.flag is None and not verdict.blind for verdict in changes], bool)
        newest = np.searchsorted([verdict.since for verdict in changes], slots, side="right") - 1
        return np.asarray(is_even[np.maximum(newest, 0)])
