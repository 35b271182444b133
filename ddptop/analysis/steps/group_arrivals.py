"""Who comes late to the collectives of a process group, from windows of the ranks' flight recorders.

Each rank reports when it launched which collectives (`ddptop.protocol.arrivals`). Those of the same group and
number are one collective. Of each step the deciding one counts, in which the launches are furthest apart: so
each step is one row of a `ScopeWindow`, which the rules for bucket arrivals judge.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.groups import Scope
from ddptop.analysis.steps.windows import BUCKET_COLUMNS, ScopeWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.frames.columns import Column
    from ddptop.protocol.arrivals import Arrivals, CollectiveKind

    Integers = NDArray[np.int64]

KEPT_STEPS = 128
"""Steps of a group in its window."""

MOST_WAITING, MOST_WAITING_CELLS = 8192, 1 << 20
"""Collectives of a rank that are kept for others that have not reported theirs: at most, and of all ranks of
a group together."""

MOST_GROUPS = 1024
"""Process groups of a run; a rank of a large mesh is in a dozen, each with ranks of its own."""

OUT_OF_ORDER = 4
"""A rank whose numbers fall back by more has made the group anew: threads that launch at once swap some."""

MS, NS_PER_US = 1e6, 1000


class _Launches(NamedTuple):
    """Consecutive collectives of a group on one rank, that are not paired yet."""

    first: int
    launched_ns: Integers
    steps: Integers
    kinds: tuple[CollectiveKind, ...]
    of_kind: Integers
    bound_ns: int

    @property
    def stop(self) -> int:
        return self.first + len(self.launched_ns)

    @classmethod
    def of_message(cls, message: Arrivals) -> _Launches:
        """Raises ValueError where the lists are not of one length."""
        columns = (message.launched_us, message.steps, message.of_kind)
        launched_us, steps, of_kind = (np.array(column, np.int64) for column in columns)
        if not len(launched_us) == len(steps) == len(of_kind):
            raise ValueError("arrivals of different lengths")
        launched_ns = message.base_ns + NS_PER_US * launched_us
        steps = message.first_step + steps
        return cls(message.first, launched_ns, steps, message.kinds, of_kind, message.bound_ns)

    def since(self, number: int) -> _Launches:
        """The launches from this number on."""
        skipped = max(0, number - self.first)
        columns = (self.launched_ns[skipped:], self.steps[skipped:])
        return _Launches(self.first + skipped, *columns, self.kinds, self.of_kind[skipped:], self.bound_ns)

    def followed_by(self, later: _Launches, most: int) -> _Launches:
        """These launches and the later ones, the newest `most` of them. Only the later ones where some
        between are unknown."""
        if later.first != self.stop:
            return later
        # Those that have no collective any more are dropped: sizes may be others in every step.
        used = (self.kinds[number] for number in np.unique(self.of_kind) if number < len(self.kinds))
        kinds = tuple(dict.fromkeys([*used, *later.kinds]))
        both = _Launches(
            self.first,
            np.concatenate([self.launched_ns, later.launched_ns]),
            np.concatenate([self.steps, later.steps]),
            kinds,
            np.concatenate([self._renumber_kinds(kinds), later._renumber_kinds(kinds)]),
            max(self.bound_ns, later.bound_ns),
        )
        return both.since(both.stop - most)

    def _renumber_kinds(self, kinds: tuple[CollectiveKind, ...]) -> Integers:
        """`of_kind` as numbers of these kinds; of what is none of them a number beyond."""
        places = {kind: place for place, kind in enumerate(kinds)}
        new_numbers = [*(places.get(kind, len(kinds)) for kind in self.kinds), len(kinds)]
        return np.array(new_numbers, np.int64)[np.minimum(self.of_kind, len(self.kinds))]


class _Reached(NamedTuple):
    """How far a rank has come in a group."""

    life: int
    """As `_life` of the group."""
    stop: int
    """The number after its newest collective."""
    newest_ns: int
    """When it launched that."""


class GroupCollectives:
    """The collectives of one process group, as far as all of its ranks have reported them."""

    def __init__(self, scope: Scope, description: str, backend: str, *, several_hosts: bool) -> None:
        self.scope = scope
        self.description = description
        self.backend = backend
        self.window = ScopeWindow(scope, KEPT_STEPS, -1, (), before=0, several_hosts=several_hosts)
        self.kinds: Counter[CollectiveKind] = Counter()
        """Kinds of the collectives that were last paired."""
        self.n_paired_steps = 0
        """Steps of these."""
        self.seen = 0
        """Collectives that were compared so far."""
        self.first: int | None = None
        """Number of the first of them."""
        self.last = 0
        self.newest_ns = 0
        """When the newest were reported, on the collector's clock."""
        self.flagged: int | None = None
        """The rank that is late, by its place in the group."""
        self.flagged_ns = 0
        """Since when."""
        self._place = {rank: place for place, rank in enumerate(scope.ranks)}
        self.waiting: dict[int, _Launches] = {}
        """By place of the rank."""
        self._life = 0
        """How often the group was destroyed and made anew: its collectives count from 1 then."""
        self._reached: dict[int, _Reached] = {}
        """By place of the rank."""
        self._most_waiting = max(64, min(MOST_WAITING, MOST_WAITING_CELLS // len(scope.ranks)))

    @property
    def seen_pct(self) -> float | None:
        """Share of the collectives since the first that were compared; None: none was."""
        return None if self.first is None else 100 * self.seen / (self.last - self.first + 1)

    def take(self, rank: int, launches: _Launches, compare: Callable[[Scope], Comparison]) -> bool:
        """A rank has reported some; returns whether steps were added to the window."""
        place = self._place[rank]
        if not self._is_of_this_life(place, launches):
            return False
        before = self.waiting.get(place)
        launches = launches.since(self.last + 1)
        if not len(launches.launched_ns):
            return False
        if before is not None:
            launches = before.followed_by(launches, self._most_waiting)
        self.waiting[place] = launches
        if len(self.waiting) < len(self.scope.ranks):
            return False
        first = max(waiting.first for waiting in self.waiting.values())
        stop = min(waiting.stop for waiting in self.waiting.values())
        if stop <= first:
            return False
        of_ranks = [self.waiting[place].since(first) for place in range(len(self.scope.ranks))]
        return self._pair(of_ranks, stop - first, compare(self.scope))

    def _is_of_this_life(self, place: int, launches: _Launches) -> bool:
        """Whether these are of the group as it was made last. The first of a later one begin it."""
        if not len(launches.launched_ns):
            return False
        life, stop, newest_ns = self._reached.get(place, _Reached(0, 0, 0))
        life += launches.first < stop - OUT_OF_ORDER and int(launches.launched_ns[0]) > newest_ns
        self._reached[place] = _Reached(life, launches.stop, int(launches.launched_ns[-1]))
        if life > self._life:
            self._life = life
            self.waiting.clear()
            self.first, self.last, self.seen = None, 0, 0
        return life == self._life

    def _pair(self, of_ranks: list[_Launches], count: int, compared: Comparison) -> bool:
        """Compare the first so many collectives of the ranks, but those of the last step: more may follow."""
        first = of_ranks[0].first
        steps = np.max([launches.steps[:count] for launches in of_ranks], axis=0)
        begins = np.concatenate([[0], np.flatnonzero(np.diff(steps) > 0) + 1])
        # A step whose begin is not there may have been decided before.
        begins = begins if first == self.last + 1 and self.first is not None else begins[1:]
        if len(begins) < 2:
            return False
        launched_ns = np.stack([launches.launched_ns[:count] for launches in of_ranks], axis=-1)
        bound_ms = compared.bound_ms(launched_ns[-1]) + max(launches.bound_ns for launches in of_ranks) / MS
        self._add_steps(compared.to_collector(launched_ns), begins, bound_ms)
        compared_from, compared_to = int(begins[0]), int(begins[-1])
        kinds, numbers = of_ranks[0].kinds, of_ranks[0].of_kind[compared_from:compared_to]
        self.kinds = Counter(kinds[number] for number in numbers.tolist() if number < len(kinds))
        self.n_paired_steps = len(begins) - 1
        self.seen += compared_to - compared_from
        self.first = first + compared_from if self.first is None else self.first
        self.last = first + compared_to - 1
        for place, launches in list(self.waiting.items()):
            self.waiting[place] = launches.since(self.last + 1)
        return True

    def _add_steps(self, launched_ns: Integers, begins: Integers, bound_ms: Column) -> None:
        """Add the steps that begin at these collectives, but the last; `launched_ns`: (n, members)."""
        launched_ms = (launched_ns - launched_ns.min()) / MS
        earliest = launched_ms.min(axis=-1)
        skew = launched_ms.max(axis=-1) - earliest
        decisive = [
            begin + int(skew[begin:stop].argmax())
            for begin, stop in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
        ]
        arrival = launched_ms[decisive] - earliest[decisive, None]
        n_steps = len(decisive)
        latest = arrival.max(axis=-1)
        is_last = arrival == latest[:, None]
        clear = (np.count_nonzero(is_last, axis=-1) == 1) & (latest > 0)
        unknown = np.full(n_steps, np.nan)
        group = {
            "step": np.diff(earliest[begins]),
            "last": np.where(clear, is_last.argmax(axis=-1), -1).astype(np.float64),
            "recoverable": formulas.recoverable(arrival),
            "half": latest - formulas.middle_latest(arrival),
            "skew": skew[decisive],
        }
        bounds = np.broadcast_to(bound_ms, arrival.shape)
        ranks = np.stack([formulas.lateness(arrival), arrival, bounds, np.zeros_like(arrival)])
        # No end of a collective is known, so nothing can contradict the clocks.
        scalars = np.stack([*group.values(), unknown, unknown, unknown])
        self.window.add(ranks, scalars, np.empty((len(BUCKET_COLUMNS), n_steps, 0)))
        self.window.compare_clocks(self.window.newest(KEPT_STEPS))


class GroupArrivals:
    """All process groups whose collectives ranks have reported."""

    def __init__(self) -> None:
        self.groups: dict[Scope, GroupCollectives] = {}
        self.late_rank: int | None = None
        """As the event log has it."""
        self.late_since_s = 0.0

    def restart(self) -> None:
        """Forget all: a new group of ranks begins."""
        self.groups.clear()
        self.late_rank = None

    def take(
        self, rank: int, message: Arrivals, world: int, t_ns: int, compare: Callable[[Scope], Comparison]
    ) -> GroupCollectives | None:
        """A rank reports some collectives of a group; returns it where steps were added to its window."""
        scope = Scope(message.group, message.ranks or tuple(range(world)))
        try:
            launches = _Launches.of_message(message)
        except ValueError:
            return None
        is_sound = scope.ranks == tuple(sorted({*scope.ranks})) and scope.ranks[-1] < world
        if rank not in scope.ranks or not is_sound:
            return None
        group = self.groups.get(scope)
        if group is None:
            if len(self.groups) >= MOST_GROUPS:
                return None
            several_hosts = compare(scope).several_hosts
            group = GroupCollectives(scope, message.description, message.backend, several_hosts=several_hosts)
            self.groups[scope] = group
        group.newest_ns = t_ns
        group.backend = message.backend  # a group with two has shown those of one first
        return group if group.take(rank, launches, compare) else None
