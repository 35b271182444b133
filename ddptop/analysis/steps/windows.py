"""The last steps as rings of columns, (ranks, steps): all complete steps, and those with bucket detail.

A `StepWindow` holds the wall time, phases and own times of every step. A `DetailWindow` holds what bucket
detail adds, and in it a `ScopeWindow` for each process group holds arrivals and buckets.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.clock_check import contradiction_phrase, usual_pair
from ddptop.analysis.steps.own_times import OWN_COLUMNS, PART_COLUMNS, PHASES, PLACES, WHOLE_PHASES
from ddptop.frames.detail import count_map_steps
from ddptop.frames.numbers import fixed
from ddptop.frames.rings import Ring
from ddptop.frames.statistics import mean, median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.steps.groups import Flagged, Scope
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.messages import Bucket
    from ddptop.protocol.vocabulary import OwnPlace

STEP_COLUMNS = ("step", *PHASES)
OWN_STEPS, BATCH = 256, 4096
"""Steps whose own times are kept for the rules, and most steps added at once: so many more are kept, because
the rules are applied to each of these steps after all are added. numpy's cost is by call: with 128 steps a
step of two ranks took 13 us more, with 512 5 us, with 1,024 two, with 2,048 one."""

BATCH_CELLS = 2**19
"""Steps are added at once until they have so many integers: their arrays take some 10 MB."""

ROW_INTEGERS = 24
"""Integers in a row without bucket detail."""

RANKS_AT_ONCE = 1024
"""Ranks whose pauses are averaged together."""


class StepWindow:
    """Wall time, phases and own times of the last complete steps of every rank, without shadow blocks.

    The window is the last `size` steps (`slots`). Earlier steps are kept for heat maps and for the rules over
    own times (`recent`). Both give slots of the same kind: a slot stands for the same step in every function
    here. Times are in ms, NaN where unknown: a row without `OwnTime` (ddptop 0.1.0), a rank that had joined
    early, or a place that needs the last gradient, in steps where that is unknown.
    """

    def __init__(self, world: int, size: int) -> None:
        self._shown = count_map_steps(world, size)
        at_once = min(BATCH, BATCH_CELLS // (max(1, world) * ROW_INTEGERS) + 1)
        kept = self._shown + (at_once if self._shown >= OWN_STEPS else 0)
        self.ranks = Ring((*STEP_COLUMNS, "loss"), (world,), kept)
        scalars = ("number", "step", "end", "exposed_wait", "exposed_transfer", "point")
        self.group = Ring(scalars, (), max(self._shown, OWN_STEPS) + BATCH, wide=True)
        self.own_times = Ring(OWN_COLUMNS, (world,), max(size, OWN_STEPS) + at_once)
        self.own_parts = Ring(PART_COLUMNS, (world,), kept, like=(self.ranks, WHOLE_PHASES))
        self._size = size
        self.world = world

    def add(
        self, numbers: Column, end_s: Column, columns: Column, loss: Column, scalars: tuple[Column, ...]
    ) -> None:
        """Add n steps: `numbers` and `end_s` (n,), `columns` (wall and PHASES, n, ranks) in ms, `loss`
        (n, ranks), `scalars` (n,) each: exposed wait and transfer, means over ranks; point of the history."""
        self.ranks.add(np.concatenate([columns, loss[None]], dtype=np.float32, casting="same_kind"))
        self.group.add(np.stack([numbers, median(columns[0]), end_s, *scalars]))

    def add_own(self, own: Column | None, parts: Column | None) -> None:
        """Add the own times of the steps just added, (OWN_COLUMNS, n, ranks) and (PART_COLUMNS, n, ranks).

        None: no row has any. Before the first that has, the rings take no memory."""
        for ring, values in ((self.own_times, own), (self.own_parts, parts)):
            if values is not None:
                ring.pass_over(self.ranks.count - ring.count - values.shape[1])  # slots are those of `ranks`
                ring.add(values)
            elif self.has_own:
                ring.pass_over(self.ranks.count - ring.count)

    def slots(self) -> Indices:
        """All steps in the window, oldest first."""
        return self.ranks.recent(self._size)

    @property
    def has_own(self) -> bool:
        """Whether any step so far had own times; False throughout for a recording of 0.1.0."""
        return self.own_parts.count > 0

    def for_maps(self, steps: int) -> Indices:
        """Slots of the newest steps for a heat map, at most so many, oldest first."""
        return self.ranks.recent(min(steps, self._shown))

    def recent(self, steps: int) -> Indices:
        """Slots of the newest steps, at most OWN_STEPS of them, oldest first."""
        return self.group.recent(min(steps, OWN_STEPS))

    def wall(self, slots: Indices) -> Column:
        """(n,) median over ranks of the step's wall time."""
        return self.group.of("step", slots)

    def own(self, slots: Indices, ranks: Indices | None = None) -> Column:
        """(ranks, n) own time: wall - exposed communication - what was waited in other collectives; of all or
        some ranks.

        NaN where the last gradient is unknown."""
        return self.own_times.known("own", slots, ranks)

    def excess(self, slots: Indices, ranks: Indices | None = None) -> Column:
        """(ranks, n) own time - median over the other ranks of the same process group; of all or some ranks.

        Where a rank's last gradient is unknown, it is compared with the others without backward: then `own`
        is NaN and the excess is not."""
        return self.own_times.known("excess", slots, ranks)

    def work(self, slots: Indices, ranks: Indices | None = None) -> Column:
        """(ranks, n) own time - what of it was waited for a CPU, where that is known of all ranks."""
        return np.asarray(self.own(slots, ranks) - np.nan_to_num(self.place("cpu", slots, ranks)))

    def work_excess(self, slots: Indices, ranks: Indices | None = None) -> Column:
        """(ranks, n) as `excess`, of `work`: who is slow by itself, and not for want of a CPU."""
        return self.own_times.known("work_excess", slots, ranks)

    def unknown(self, own: Column, slots: Indices, ranks: Indices | None = None) -> Mask | None:
        """(ranks, n) whether a rank took part whose last gradient is unknown; None: all of `own` is known."""
        blank = np.isnan(own)
        return np.asarray(blank & ~np.isnan(self.excess(slots, ranks))) if blank.any() else None

    def exposed(self, slots: Indices) -> Column:
        """(ranks, n) exposed communication: end of backward - last gradient. Kept like `place`."""
        return self.own_parts.known("exposed", slots)

    def exposed_wait(self, slots: Indices) -> Column:
        """(ranks, n) exposed communication - transfer of the step, which is the least of its process group.

        NaN in steps in which a rank of the group does not know its own. Kept like `place`."""
        return self.own_parts.known("exposed_wait", slots)

    def elements(self, slots: Indices, ranks: Indices) -> Column:
        """(ranks, n) elements of the inputs of the step's forwards, of some ranks. Kept like `place`."""
        return self.own_parts.known("elements", slots, ranks)

    def waited(self, slots: Indices) -> Column:
        """(ranks, n) waited in collectives other than DDP's all-reduces, in all phases: the script's own and
        broadcasts of buffers. Kept like `place`."""
        return np.asarray(
            self.own_parts.known("waited", slots) + np.nan_to_num(self.own_parts.known("buffers", slots))
        )

    def place(self, name: OwnPlace, slots: Indices, ranks: Indices | None = None) -> Column:
        """(ranks, n) own time in one place; `cpu`, `gc`: of all of it, what was waited for a CPU, paused.

        With more than 512 ranks fewer steps are kept than OWN_STEPS, at least those of the window; NaN in
        the earlier ones."""
        return self.own_parts.known(name, slots, ranks)

    def own_medians(self, slots: Indices, phases: Mapping[str, Column]) -> dict[str, Column]:
        """(ranks,) medians over steps of the window of what frames show of OWN_COLUMNS and PART_COLUMNS; of
        `gc` means. `phases`: medians of the phases, which are those of own time too where nothing was waited
        in collectives but DDP's: that saves a fourth of the work."""
        waited = any(self.own_parts.of(name, slots).any() for name in ("waited", "buffers"))  # also of NaN
        pauses = self.own_parts.of("gc", slots)
        known_columns = (
            {} if waited else {"waited": np.zeros(self.world), **{n: phases[n] for n in WHOLE_PHASES}}
        )
        known_columns["gc"] = np.zeros(self.world)
        if pauses.any():
            # As float64 the pauses of all ranks would take too much memory.
            for begin in range(0, self.world, RANKS_AT_ONCE):
                ranks = slice(begin, begin + RANKS_AT_ONCE)
                known_columns["gc"][ranks] = mean(pauses[ranks].astype(np.float64))
        parts = tuple(name for name in PART_COLUMNS if name not in (*known_columns, "cpu", "elements"))
        return (
            self.own_times.medians(OWN_COLUMNS[:2], slots)
            | self.own_parts.medians(parts, slots)
            | known_columns
        )

    def part(self, name: str, slots: Indices) -> Column:
        """(ranks, n) one of PART_COLUMNS. Kept like `place`."""
        return self.own_parts.known(name, slots)

    def places(self, slots: Indices, ranks: Indices | None = None) -> dict[OwnPlace, Column]:
        """`place` for all of PLACES: they add up to `own`."""
        return {name: self.place(name, slots, ranks) for name in PLACES}


WAITS = ("collective", "wait", "transfer", "exposed", "exposed_wait")
PARTS = ("part_data", "part_forward", "part_backward", "part_optimizer", "part_other")
"""The phases of detailed steps, backward without exposed communication: the cause is found in them."""
FREE = ("free_wait", "free_transfer", "free_exposed_wait", "free_self")
"""The clock-free fallback of these columns; kept where there are several hosts."""
DETAIL_SCALARS = ("point", "step", "overlap", "busbw", "free_busbw", "recoverable", "hidden", "both")
SCOPE_COLUMNS = ("lateness", "arrival", "bound", "spread")
WRONG_CLOCKS = ("wrong_clock", "other_clock")
SCOPE_SCALARS = ("step", "last", "recoverable", "half", "skew", "contradiction", *WRONG_CLOCKS)
BUCKET_COLUMNS = (
    "collective",
    "wait",
    "transfer",
    "skew",
    "last",
    "spread",
    "free_wait",
    "free_transfer",
    "launches",
)

FEW_DETAILED, DETAILED_BACK = 8, 32
"""Least detailed steps for a median. Where the window has fewer, so many of any age are used."""

MANY_RANKS, NEEDED = 1024, 64
"""Ranks from which on only NEEDED detailed steps are kept, as many as the rules over arrivals need, until the
window has more, or a group has no detail in some: with 4,096 ranks and detail in every eighth, it saves 11
MB."""

LONG = 1024
"""Detailed steps whose last arriver is kept: an intermittent straggler shows only in many steps."""
LONG_SCALARS = ("last", "recoverable", "step")
"""SCOPE_SCALARS that are kept so long, beside the largest bound of any rank."""

MOVES = 3
"""Changes of the flagged rank that are kept: this many in a short time are a rotating straggler."""


class ScopeWindow:
    """One process group: arrivals and buckets of one layout. Its slots are those of the `DetailWindow`."""

    def __init__(
        self,
        scope: Scope,
        size: int,
        layout: int,
        buckets: tuple[Bucket, ...],
        *,
        before: int,
        several_hosts: bool,
        first: int | None = None,
    ) -> None:
        """`before`: detailed steps that the run had before this group was seen; `first`: see `Ring`."""
        self.scope = scope
        self.layout = layout
        self.buckets = buckets
        """Replaced when more is known of the same buckets."""
        members = len(scope.ranks)
        self.members = np.array(scope.ranks)
        self.factor = formulas.bus_factor(members)
        self.ranks = Ring(SCOPE_COLUMNS, (members,), size, first=first)
        self.group = Ring(SCOPE_SCALARS, (), size, wide=True)
        self.bucket = Ring(BUCKET_COLUMNS, (len(buckets),), size)
        self.long = Ring((*LONG_SCALARS, "bound"), (), LONG)
        for ring in (self.ranks, self.group, self.bucket):
            ring.count = before
        self.measured: dict[tuple[bytes, int | None], Any] = {}
        """By slots and rank, what `arrival_rules.measure` has found, until another step is added."""
        self.several_hosts = several_hosts
        self.clock_free = several_hosts
        """Whether the clocks are too inaccurate to compare the arrivals; decided at each evaluation."""
        self.contradicted = False
        """Whether the collectives contradict the clocks."""
        self.wrong_clocks: tuple[int, ...] = ()
        """A rank of the host, or of the two hosts, whose clocks they contradict."""
        self.contradiction_ms = 0.0
        """By how much: the median of the steps."""
        self.skew_ms: float | None = None
        """Median skew over which the clocks were compared; None: they were not."""
        self.compared_bound_ms: float | None = None
        """Bound with which the clocks were compared; None: the clock of a host is not known."""

    def add(self, ranks: Column, group: Column, bucket: Column) -> None:
        """Add n steps, (columns, n, ...) for each ring."""
        self.measured.clear()
        self.ranks.add(ranks)
        self.group.add(group)
        self.bucket.add(bucket)
        scalars = [group[SCOPE_SCALARS.index(name)] for name in LONG_SCALARS]
        largest_bound = np.fmax.reduce(ranks[SCOPE_COLUMNS.index("bound")], axis=-1)
        self.long.add(np.stack([*scalars, largest_bound]))

    def pass_over(self, steps: int) -> None:
        """Steps in which this group has no bucket detail."""
        self.measured.clear()
        for ring in (self.ranks, self.group, self.bucket):
            ring.pass_over(steps)

    def with_detail(self, slots: Indices) -> Indices:
        """The slots in which this group has bucket detail."""
        return np.asarray(slots[~np.isnan(self.group.of("last", slots))])

    def newest(self, steps: int) -> Indices:
        """Slots of the newest steps in which it has bucket detail, oldest first."""
        return self.with_detail(self.ranks.recent(self.ranks.count))[-steps:]

    def compare_clocks(self, slots: Indices) -> None:
        """Decide over these steps whether the clocks are accurate enough to compare the arrivals."""
        if not self.several_hosts or not len(slots := self.with_detail(slots)):
            return
        bound = float(self.bound_ms(slots).max())
        skew = float(median(self.group.of("skew", slots)))
        early = float(median(self.group.of("contradiction", slots)))
        self.contradicted = early > bound
        self.skew_ms, self.contradiction_ms = skew, early
        self.compared_bound_ms = None if np.isnan(bound) else bound
        self.wrong_clocks = ()
        if self.contradicted:
            pair = usual_pair(np.stack([self.group.of(name, slots) for name in WRONG_CLOCKS]))
            self.wrong_clocks = tuple(sorted({self.scope.ranks[rank_index] for rank_index in pair or ()}))
        self.clock_free = self.contradicted or not skew > bound

    def clock_reason(self, host_names: Sequence[str]) -> str | None:
        """Why arrivals cannot be compared: `the clocks' bound of ±30.1 ms is wider than the skew of 20.0 ms`.
        None: no steps were evaluated yet. `host_names`: by rank."""
        bound_ms, skew_ms = self.compared_bound_ms, self.skew_ms
        if skew_ms is None:
            return None
        if bound_ms is None:
            return "the clocks of some hosts have not been compared yet"
        if self.contradicted:
            names = [host_names[rank] for rank in self.wrong_clocks]
            return contradiction_phrase(names, self.contradiction_ms, bound_ms)
        return f"the clocks' bound of ±{fixed(bound_ms)} ms is wider than the skew of {fixed(skew_ms)} ms"

    def bound_ms(self, slots: Indices) -> Column:
        """(members,) the largest bound in those of these steps that are kept; NaN: clocks not compared."""
        slots = slots[slots >= self.ranks.oldest]
        if not len(slots):
            return np.full(len(self.members), np.nan)
        return np.asarray(np.fmax.reduce(self.ranks.of("bound", slots), axis=-1), np.float64)

    def most_lost_pct(self, slots: Indices) -> float:
        """Percent of the median step that late ranks can have cost at most in these steps, which have bucket
        detail; infinite: not known. Of many ranks it takes a hundredth of the time of measuring them."""
        step, *lost = (self.group.of(name, slots) for name in ("step", "recoverable", "half"))
        without = step - np.maximum(*lost)
        if not len(slots) or np.isnan(without).any() or np.isnan(self.ranks.of("arrival", slots)).any():
            return float("inf")  # medians leave out steps in which a gain is not known
        as_it_ran = float(median(step))
        return 100 * (as_it_ran - float(median(without))) / as_it_ran if as_it_ran > 0 else 0.0


class DetailWindow:
    """The detailed steps with the same bucket layouts. When DDP rebuilds its buckets a new window begins."""

    def __init__(
        self, world: int, size: int, *, several_hosts: bool, version: int = -1, newest: int = -1
    ) -> None:
        """`version`: of the process groups; `newest`: number of the newest detailed step so far."""
        self.several_hosts = several_hosts
        self.version = version
        self.newest = newest
        columns = (*WAITS, "self", *PARTS, *(FREE if several_hosts else ()))
        self._first = NEEDED if world >= MANY_RANKS else size
        """How many detailed steps of each rank are kept."""
        self.ranks = Ring(columns, (world,), size, first=self._first)
        self.group = Ring(DETAIL_SCALARS, (), size, wide=True)
        self.scopes: dict[Scope, ScopeWindow] = {}
        self.best_self = np.full(world, np.nan)
        """(ranks,) each rank's least median self time so far, over DETAILED_BACK steps at a time."""
        self.figures: dict[tuple[str, bytes, tuple[bool, ...]], Any] = {}
        """Figures over some of the steps (`DetailMedians`), until another one is added."""
        self.flagged: Flagged | None = None
        self.last_flagged: Flagged | None = None
        """The last rank that was flagged; stays when it no longer is."""
        self.moves: deque[int] = deque(maxlen=MOVES)
        """Detailed steps at which the flag went from one rank to another."""
        self._size = size

    @property
    def count(self) -> int:
        """Detailed steps since the layouts were made."""
        return self.group.count

    @property
    def clock_free(self) -> bool:
        """Whether wait and transfer are the clock-free fallback."""
        return self.several_hosts and any(window.clock_free for window in self.scopes.values())

    def scope(
        self, scope: Scope, layout: int, buckets: tuple[Bucket, ...], *, several_hosts: bool
    ) -> ScopeWindow:
        """The window of a process group, which begins with its first detailed step."""
        if scope not in self.scopes:
            kept = {"before": self.count, "first": self._first}
            window = ScopeWindow(scope, self._size, layout, buckets, several_hosts=several_hosts, **kept)
            self.scopes[scope] = window
        self.scopes[scope].buckets = buckets
        return self.scopes[scope]

    def add(
        self, ranks: Column, group: Column, scopes: Mapping[Scope, tuple[Column, Column, Column]]
    ) -> None:
        """Add n steps, (columns, n, ...) for each ring; `scopes`: those of process groups with detail.

        The steps of one call may end at a multiple of DETAILED_BACK, where `best_self` is updated, but must
        not go past it.
        """
        self.figures.clear()
        if self._first < self._size:
            within = len(self.since(int(group[0, -1]) + 1 - self._size)) + group.shape[1]
            if within > self._first or self.scopes.keys() - scopes.keys():
                self._first = self._size
                for ring in (self.ranks, *(scope_window.ranks for scope_window in self.scopes.values())):
                    ring.hold(self._size)
        self.ranks.add(ranks)
        self.group.add(group)
        for scope, window in self.scopes.items():
            if scope in scopes:
                window.add(*scopes[scope])
            else:
                window.pass_over(group.shape[1])
        if self.count % DETAILED_BACK == 0:
            name = "free_self" if self.clock_free else "self"
            self_ms = self.ranks.medians((name,), self.ranks.recent(DETAILED_BACK))[name]
            self.best_self = np.fmin(self.best_self, self_ms)

    def evaluated(self, end: int) -> Indices:
        """Slots of the steps over which ranks are evaluated when the history has `end` points; oldest first.

        Where few steps of the window have detail, earlier ones are included: flagging takes many steps.
        """
        within = self.since(end - self._size)
        return within if len(within) >= FEW_DETAILED else self.group.recent(DETAILED_BACK)

    def since(self, point: int) -> Indices:
        """Slots of the steps from a history point on, oldest first; at most those of the window."""
        slots = self.ranks.recent(self._size)
        return np.asarray(slots[self.group.of("point", slots) >= point])
