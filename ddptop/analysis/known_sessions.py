"""The processes that messages are taken of in columns, and what is known of their ranks.

The ranks themselves are written when something reads them: `KnownSessions.write`.
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ddptop.analysis.ranks import ABSENT, STALE_S
from ddptop.analysis.steps.pairing import stable_order
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import Readings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.rank_columns import ReportColumns
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Message

    Integers = NDArray[np.int64]

CLOCK_FIELDS = ("own_ns", "delay_ns", "stood_ns", "step", "moved_ns", "heard_ns")
_CLOCK = attrgetter(*CLOCK_FIELDS)
NO_DELAY = -(2**62)
_NO_OVERFLOW = 2.0**62
MOST_RUNS = 8
"""Runs whose readings are held until the ranks are read: each has some hundred kilobytes."""


Offsets: TypeAlias = "tuple[Sequence[int], Sequence[str], Integers]"
"""Of n CLOCKs: places, hosts, and (3, n) time, offset and drift."""


class KnownSessions:
    """All sessions, and what is known of their ranks, as columns; true until a message is taken alone."""

    def __init__(self, state: RunState) -> None:
        self.numbers = np.array(sorted(state.sessions), np.int64)
        """(sessions,) ascending; likewise below."""
        self.sessions = [state.sessions[number] for number in self.numbers.tolist()]
        self.rank = np.array([session.rank for session in self.sessions], np.int64)
        self.next_step = np.array([session.next_step for session in self.sessions], np.int64)
        ranks, numbers = state.ranks, self.rank.tolist()
        self.ranks: list[RankState] = [ranks[rank] if rank < len(ranks) else ABSENT for rank in numbers]
        pairs = zip(self.ranks, self.numbers.tolist(), strict=True)
        current = [one is not ABSENT and one.session == number for one, number in pairs]
        self.current = np.array(current, bool)
        """Whether it is its rank's process."""
        usual = [not one.joined and one.bye is None for one in self.ranks]
        self.present = self.current & np.array(usual, bool)
        """Whether it is its rank's process, and messages of it may be usual."""
        self.bad_loss = np.array([one.bad_loss_step is not None for one in self.ranks], bool)
        """Whether the last loss of its rank was NaN or infinite."""
        self._of_rank = np.zeros(int(self.rank.max(initial=-1)) + 2, np.int64)
        """By rank one of its sessions, its present one if it has any; the last is of no rank."""
        self._of_rank[self.rank] = np.arange(len(self.rank))
        self._of_rank[self.rank[self.current]] = np.flatnonzero(self.current)
        self.begun = np.array([session.begun for session in self.sessions], bool)
        self.rows = np.zeros(len(self.sessions), np.int64)
        """Rows since the last `write`."""
        self._counted = self.rows.copy()
        """Those of them that are in the columns."""
        self.micro_steps = np.zeros(len(self.sessions), np.int64)
        """0: not known."""
        self.clocks: Integers | None = None
        """(fields of _CLOCK, ranks); None: to be read again."""
        self.beats: Beats | None = None
        self._newest: dict[type[Message], _Newest] = {}
        self._layouts: dict[int, Integers] = {}
        self._changed = self._fresh = False
        """Whether there are rows since the last `write`, and anything since the last `write_columns`."""
        self._moved: NDArray[np.bool_] | None = None
        """(ranks,) whose `clocks` differ from the rank's."""
        self.seen_ns: Integers | None = None
        """(ranks,) `RankState.seen_ns`; None: to be read again."""

    def find(self, ranks: Integers, numbers: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """(n,) of which session each of these numbers is, and whether it is any. `ranks`: which the messages
        name."""
        if not len(self.numbers):
            return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), bool)
        which = self._of_rank[np.clip(ranks, -1, len(self._of_rank) - 1)]
        found = self.numbers[which] == numbers
        if found.all():
            return which, found
        which = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        return which, np.asarray(self.numbers[which] == numbers)

    def layouts(self, generation: int) -> Integers:
        """(sessions,) number of the layout of a generation; -1: not reported."""
        found = self._layouts.get(generation)
        if found is None:
            each = [session.layouts.get(generation, -1) for session in self.sessions]
            found = self._layouts[generation] = np.array(each, np.int64)
        return found

    def take_newest(self, readings: Readings, which: Integers, t_ns: Integers) -> None:
        """Readings of present processes: of which session each is, and when it arrived."""
        newest = self._newest.get(readings.kind)
        if newest is None:
            newest = self._newest[readings.kind] = _Newest(len(self.sessions))
        # Of each session the last one stays.
        newest.part[which], newest.at[which] = len(newest.readings), np.arange(len(which))
        newest.arrived_ns[which] = t_ns
        newest.readings.append(readings)
        self._fresh = True

    def take_rows(self, which: Integers, first: Integers, count: Integers, micro_steps: Integers) -> None:
        """STEPS messages that follow each other in every session: whose, first step, rows, micro steps."""
        firsts = np.full(len(self.rows), -1)
        firsts[which[::-1]] = np.arange(len(which))[::-1]
        seen = np.flatnonzero(firsts >= 0)
        at = firsts[seen]
        self.rows += np.bincount(which, count, len(self.rows)).astype(np.int64)
        self.rows[seen] += first[at] - self.next_step[seen]  # before the tail
        self.next_step[which] = first + count  # of each the last one stays; likewise below
        last = np.zeros(len(self.sessions), np.int64)
        last[which] = micro_steps
        self.micro_steps = np.where(last, last, self.micro_steps)
        self.begun[seen] = self._changed = self._fresh = True

    def take_clocks(self, clocks: Integers, ranks: Integers) -> None:
        """New values of `clocks`, for these ranks."""
        if self._moved is None:
            self._moved = np.zeros(clocks.shape[1], bool)
        self._moved[ranks] = self._fresh = True
        self.clocks = clocks

    def hear(self, state: RunState, ranks: Integers, t_ns: Integers) -> None:
        """Something that these ranks have sent arrived then."""
        moved = clocks_of(state.ranks) if self.clocks is None else self.clocks
        np.maximum.at(moved[-1], ranks, t_ns)
        self.take_clocks(moved, ranks)

    def read_clocks(self, parts: list[Integers], state: RunState) -> None:
        """`RankState.read_clock` and `moved_to` of many readings, (6, n) each part: rank, place, when it
        arrived, the rank's own clock, its step, and the delay that its host's clock gives."""
        readings = np.concatenate(parts, axis=1)
        if not readings.shape[1]:
            return
        rank, place = readings[:2]
        order = stable_order(place)
        order = order[stable_order(rank[order])]
        begins = np.flatnonzero(np.diff(rank[order], prepend=-1))
        numbers = rank[order[begins]]
        if self.clocks is None:
            self.clocks = clocks_of(state.ranks)
        now = self.clocks[:, numbers]
        own, delay, stood, step, moved, arrived = now
        counts = np.diff(begins, append=len(order))
        for at in range(int(counts.max())):
            r = np.flatnonzero(counts > at) if at else slice(None)  # ranks with more than so many readings
            t_ns, own_ns, in_step, of_host = readings[2:, order[begins[r] + at]]
            arrived[r] = np.maximum(arrived[r], t_ns)
            d = np.minimum(np.where(of_host == NO_DELAY, delay[r], of_host), t_ns - own_ns)
            passed = own_ns - own[r]
            later = passed > 0
            for i in np.flatnonzero(passed > int(STALE_S * NS)).tolist():
                here_ns, since_ns = int(own_ns[i] + d[i]), int(passed[i])
                passed[i] -= state.interruptions.within(here_ns - since_ns, here_ns)
            moves = in_step > step[r]
            stood[r] = np.where(moves, 0, stood[r] + np.maximum(passed, 0))
            own[r] = np.where(later | moves, own_ns, own[r])
            step[r] = np.maximum(in_step, step[r])
            moved[r] = np.where(moves, own_ns + d, moved[r])
            delay[r] = d
        self.clocks[:, numbers] = now
        self.take_clocks(self.clocks, numbers)

    def latest(self, state: RunState) -> dict[str, Integers] | None:
        """(ranks,) when each last moved, was heard and was seen; None where the ranks are to be read."""
        if self.clocks is None:
            return None
        if self.seen_ns is None:
            self.seen_ns = np.array([one.seen_ns for one in state.ranks], np.int64)
        if Usage in self._newest:
            newest = self._newest[Usage]
            read = newest.part >= 0
            self.seen_ns[self.rank[read]] = newest.arrived_ns[read]
        moved, heard = (self.clocks[CLOCK_FIELDS.index(name)] for name in ("moved_ns", "heard_ns"))
        return {"moved_ns": moved, "heard_ns": heard, "seen_ns": self.seen_ns}

    def write_columns(self, state: RunState) -> bool:
        """Put what was taken since the last call into the columns of `state`. Returns whether sessions or
        ranks are to be written too."""
        if self._fresh:
            self._put(state.reports)
            self._fresh = False
        return self._changed or self._moved is not None or bool(self._newest)

    def _put(self, reports: ReportColumns) -> None:
        if self._changed:
            fresh = self.rows - self._counted
            seen = np.flatnonzero(fresh)
            reports.add_rows(self.rank[seen], fresh[seen], self.micro_steps[seen])
            self._counted[:] = self.rows
        if self._moved is not None and self.clocks is not None:
            moved = slice(None) if self._moved.all() else np.flatnonzero(self._moved)
            for name, column in zip(CLOCK_FIELDS, self.clocks, strict=True):
                reports.put(name, moved, column[moved])
        for kind, newest in self._newest.items():
            for readings, sessions in newest.parts(newest.put):
                ranks = self.rank[sessions]
                reports.take(readings, newest.at[sessions], ranks)
                if kind is Usage:
                    reports.put("seen_ns", ranks, newest.arrived_ns[sessions])
                    if self.seen_ns is not None:
                        self.seen_ns[ranks] = newest.arrived_ns[sessions]
            newest.join()

    def write(self, state: RunState) -> None:
        """Put what was taken since the last call into the sessions and ranks, and into the columns."""
        if not self.write_columns(state):
            return
        if self._changed:
            self._changed = False
            seen = np.flatnonzero(self.rows)
            columns = (column[seen].tolist() for column in (self.next_step, self.rows, self.micro_steps))
            for n, following, rows, micro_steps in zip(seen.tolist(), *columns, strict=True):
                session, one = self.sessions[n], self.ranks[n]
                session.begun, session.next_step = True, following
                one.records += rows
                one.micro_steps = micro_steps or one.micro_steps
            self.rows[:] = self._counted[:] = 0
        if self._moved is not None and self.clocks is not None:
            moved = np.flatnonzero(self._moved)
            for rank, values in zip(moved.tolist(), self.clocks[:, moved].T.tolist(), strict=True):
                one = state.ranks[rank]
                one.own_ns, one.delay_ns, one.stood_ns, one.step, one.moved_ns, one.heard_ns = values
            self._moved = None
        for kind, newest in self._newest.items():
            for readings, sessions in newest.parts(0):
                placed = [*zip(repeat(readings), newest.at[sessions].tolist())]
                for n, message in zip(sessions.tolist(), placed, strict=True):
                    self.ranks[n].readings[kind] = message
                state.reports.note(kind, self.rank[sessions], placed)
            if kind is Usage:
                read = np.flatnonzero(newest.part >= 0)
                for n, t_ns in zip(read.tolist(), newest.arrived_ns[read].tolist(), strict=True):
                    self.ranks[n].seen_ns = t_ns
        self._newest.clear()

    def write_readings(self, rank: int) -> None:
        """Put the newest readings of one rank into it."""
        for n in np.flatnonzero(self.rank == rank).tolist():
            for kind, newest in self._newest.items():
                if newest.part[n] >= 0:
                    self.ranks[n].readings[kind] = (newest.readings[newest.part[n]], int(newest.at[n]))


class _Newest:
    """The newest readings of a kind of each session, which are not in its rank yet."""

    def __init__(self, sessions: int) -> None:
        self.readings: list[Readings] = []
        self.part = np.full(sessions, -1)
        """(sessions,) in which of `readings` the newest is; -1: in none."""
        self.at = np.zeros(sessions, np.int64)
        """(sessions,) where in it."""
        self.arrived_ns = np.zeros(sessions, np.int64)
        self.put = 0
        """So many of `readings` are in the columns."""

    def join(self) -> None:
        """All are in the columns. Where they are in many runs, hold a copy of them and not the runs."""
        if len(self.readings) > MOST_RUNS:
            parts = [(readings, sessions, self.at[sessions]) for readings, sessions in self.parts(0)]
            places = np.concatenate([readings.places[at] for readings, _, at in parts])
            columns = zip(
                *([column[at] for column in readings.values] for readings, _, at in parts), strict=True
            )
            values = tuple(np.concatenate(column) for column in columns)
            sessions = np.concatenate([sessions for _, sessions, _ in parts])
            self.readings = [Readings(self.readings[0].kind, places, values)]
            self.part[sessions], self.at[sessions] = 0, np.arange(len(sessions))
        self.put = len(self.readings)

    def parts(self, first: int) -> Iterator[tuple[Readings, Integers]]:
        """From number `first` on: readings, and the sessions whose newest is among them."""
        for number, readings in enumerate(self.readings[first:], first):
            sessions = np.flatnonzero(self.part == number)
            if len(sessions):
                yield readings, sessions


class Beats:
    """What decides how heartbeats are taken: by session, and the clocks of the hosts by the newest CLOCK."""

    def __init__(self, state: RunState, known: KnownSessions) -> None:
        beats = known.ranks
        self.detail_every = np.nan_to_num(state.intervals()[known.rank])
        self.declared = np.array([one.declared for one in beats], bool)
        numbers: dict[str, int] = {}
        self._host = np.array([numbers.setdefault(one.host, len(numbers)) for one in beats], np.int64)
        self._remote = np.array([state.hosts.is_remote(name) for name in numbers], bool)
        clocks = ((number, state.clocks.of(name)) for name, number in numbers.items())
        each = [(n, -1, one.t_ns, one.offset_ns, one.drift_ppb) for n, one in clocks if one is not None]
        self._clocks: Integers = np.array(each, np.int64).reshape(-1, 5).T
        """(5, n) host, place, and time, offset and drift of a CLOCK."""
        self._compared = {host: number for host, number in numbers.items() if host != state.clocks.own_host}
        """By host with a clock to be compared, its number."""

    def take(self, clocks: Iterable[Offsets]) -> Integers:
        """Take CLOCKs. Returns (5, n) host, place, time, offset and drift of these and the newest of each
        host before, in order."""
        compared = self._compared
        parts = [np.empty((5, 0), np.int64)]
        for places, hosts, says in clocks:
            numbers = [compared.get(host, -1) for host in hosts]
            parts.append(np.concatenate([np.array([numbers, places], np.int64), says]))
        if len(parts) == 1:
            return self._clocks
        columns = np.concatenate(parts, axis=1)
        columns = columns[:, columns[0] >= 0]
        found = np.concatenate([self._clocks, columns], axis=1)
        found = found[:, np.lexsort((found[1], found[0]))]
        last = np.flatnonzero(np.diff(found[0], append=-1))
        self._clocks = found[:, last].copy()
        self._clocks[1] = -1
        return found

    def take_intervals(self, which: Integers, every: Integers) -> bool:
        """Take the sampling intervals in heartbeats; whether any differs from the one before."""
        changed = bool((every != self.detail_every[which]).any())
        self.detail_every[which] = every  # of each the last one stays
        return changed

    def delays(self, which: Integers, places: Integers, own_ns: Integers, clocks: Integers) -> Integers:
        """What the clock of a remote host gives for each heartbeat; NO_DELAY: it was not compared. `clocks`
        as `take` returns them."""
        host, length = self._host[which], int(max(places.max(), clocks[1].max(initial=0))) + 2
        at = np.searchsorted(clocks[0] * length + clocks[1] + 1, host * length + places + 1, side="right") - 1
        if not clocks.shape[1]:
            return np.full(len(which), NO_DELAY)
        of_host, _, t_ns, offset_ns, drift_ppb = clocks[:, at]
        passed = own_ns - t_ns
        if float(np.abs(passed).max()) * float(np.abs(drift_ppb).max()) < _NO_OVERFLOW:
            moved = (drift_ppb * passed).astype(np.float64)
        else:
            moved = np.array([a * b for a, b in zip(drift_ppb.tolist(), passed.tolist(), strict=True)], float)
        delay = offset_ns + np.rint(moved / 1e9).astype(np.int64)
        return np.asarray(np.where(self._remote[host] & (at >= 0) & (of_host == host), delay, NO_DELAY))


def clocks_of(ranks: Sequence[RankState]) -> Integers:
    """(fields of _CLOCK, ranks)"""
    return np.asarray(np.array([*map(_CLOCK, ranks)], np.int64).reshape(-1, len(CLOCK_FIELDS)).T)
