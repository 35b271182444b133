"""What is known of the ranks and their processes as numbers: one column holds a number of all of them.

This is the state itself. A `RankState` and a `RankSession` hold what comes rarely, as objects (HELLO, BYE,
exits, evidence); their numbers are views on these columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ddptop.analysis.steps.pairing import begins_of_runs, stable_order
from ddptop.protocol.limits import NS
from ddptop.protocol.message_run import FIELD_TYPES, RANK_READINGS
from ddptop.protocol.messages import NAMES, Progress

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.analysis.steps.clocks import Interruptions
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.message_run import Readings
    from ddptop.protocol.messages import Message

    Integers = NDArray[np.int64]

HEARTBEAT_S = 0.5
"""Period of PROGRESS. A loaded machine may be late with one or two; three in a row are shown."""
STALE_S = 3 * HEARTBEAT_S

UNKNOWN = -1
"""Stands for None in a column."""
NO_DELAY = -(2**62)
"""The clock of the rank's host was not compared with the collector's."""


class _Columns:
    """Columns of integers, all of the same length."""

    INITIAL: ClassVar[dict[str, int]]
    """By name of a column, its value in a row of which nothing is known."""

    def __init__(self, size: int = 0) -> None:
        self._resize(size)

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(getattr(self, next(iter(self.INITIAL))))

    def _resize(self, size: int) -> None:
        for name, value in self.INITIAL.items():
            column, before = np.full(size, value, np.int64), getattr(self, name, np.empty(0, np.int64))
            kept = min(size, len(before))
            column[:kept] = before[:kept]
            setattr(self, name, column)

    def clear(self, row: int) -> None:
        """Forget what is known of a row."""
        for name, value in self.INITIAL.items():
            getattr(self, name)[row] = value


class RankTable(_Columns):
    """The ranks. Every column is (ranks,)."""

    INITIAL: ClassVar = {
        **dict.fromkeys(("records", "lost_records", "session", "heard_ns", "seen_ns", "moved_ns"), 0),
        **dict.fromkeys(("own_ns", "delay_ns", "stood_ns", "step", "launched_ns", "declared", "joined"), 0),
        **dict.fromkeys(("micro_steps", "bad_loss_step", "finite_loss_step"), UNKNOWN),
    }
    records: Integers
    """Rows of steps that have arrived."""
    lost_records: Integers
    session: Integers
    """The rank's present process; 0: none."""
    heard_ns: Integers
    """When its newest message arrived."""
    seen_ns: Integers
    """When its host's agent last read its process: it exists, which does not mean that it works."""
    moved_ns: Integers
    """When its step last changed, by its own clock where known; not when the message about it arrived."""
    own_ns: Integers
    """The newest reading of its own clock that it has sent."""
    delay_ns: Integers
    """Least time from a reading of its own clock to its arrival: its clock is behind by at most this."""
    stood_ns: Integers
    """How long its step had not changed at that reading."""
    step: Integers
    launched_ns: Integers
    """When a heartbeat first told of its newest collective."""
    declared: Integers
    """Number of the user's own phases that it is in (`ddptop.phase`): in these a step may take any time."""
    joined: Integers
    """1: in its newest step it had run out of inputs and only answered the others' collectives (`join`)."""
    micro_steps: Integers
    """Backward passes in its newest step that had inputs."""
    bad_loss_step: Integers
    """First of the consecutive steps with NaN or infinite losses up to now."""
    finite_loss_step: Integers
    """The newest step whose loss is known and finite: the last one before `bad_loss_step`, where that is."""

    def __init__(self, world: int = 0) -> None:
        super().__init__(world)
        self.newest: dict[type[Message], NewestReadings] = {
            kind: NewestReadings(kind, world) for kind in RANK_READINGS
        }
        """The newest reading of each kind, of every rank."""

    def resize(self, world: int) -> None:
        """There are so many ranks from here on."""
        self._resize(world)
        for newest in self.newest.values():
            newest.resize(world)

    def forget_process(self, rank: int) -> None:
        """A rank has another process, or none: of the one before only the counts of rows stay."""
        counts = self.records[rank], self.lost_records[rank]
        self.clear(rank)
        self.records[rank], self.lost_records[rank] = counts
        for newest in self.newest.values():
            newest.is_known[rank] = False

    def ranks_with_bad_loss(self) -> list[int]:
        """The ranks whose last known loss was NaN or infinite."""
        ranks: list[int] = np.flatnonzero(self.bad_loss_step != UNKNOWN).tolist()
        return ranks

    def newest_values(self, kind: type[Message], name: str) -> Column:
        """(ranks,) a number of the newest reading of a kind; NaN: none has come."""
        newest = self.newest[kind]
        return np.where(newest.is_known, newest.field(name), np.nan)

    def note_launches(self, ranks: Integers, sequences: Integers, t_ns: Integers) -> None:
        """Note which heartbeats, (n,) in order of arrival, tell of a new collective. To be called before they
        are the newest ones."""
        order = stable_order(ranks)
        of_rank, sequence = ranks[order], sequences[order]
        before = self.newest[Progress].field("sequence")[of_rank]
        before[~self.newest[Progress].is_known[of_rank]] = UNKNOWN
        follows = np.flatnonzero(of_rank[1:] == of_rank[:-1]) + 1
        before[follows] = sequence[follows - 1]
        new = sequence > before
        self.launched_ns[of_rank[new]] = t_ns[order][new]  # of each rank the last one stays

    def read_clocks(self, readings: Integers, interruptions: Interruptions) -> None:
        """Take readings of the ranks' own clocks, (6, n): rank, place in the order of arrival, when it
        arrived, the clock, the step that the rank was in then (UNKNOWN: it is not said), and the delay that
        the clock of its host gives, or NO_DELAY.

        Time without a reading in which the collector did not run either does not count into `stood_ns`: the
        whole machine may have been stopped.
        """
        if not readings.shape[1]:
            return
        rank, place = readings[:2]
        if not (rank[1:] > rank[:-1]).all():  # several of a rank, or not in the order of the ranks
            order = stable_order(place)
            readings = readings[:, order[stable_order(rank[order])]]
        begins = begins_of_runs(readings[0])
        counts = np.concatenate([begins[1:], [readings.shape[1]]]) - begins
        ranks = readings[0, begins]
        columns = self.own_ns, self.delay_ns, self.stood_ns, self.step, self.moved_ns
        own, delay, stood, step, moved = (column[ranks] for column in columns)
        for number in range(int(counts.max())):  # the first reading of each rank, the second, ...
            r = np.flatnonzero(counts > number) if number else slice(None)
            t_ns, own_ns, in_step, of_host = readings[2:, begins[r] + number]
            least = np.minimum(np.where(of_host == NO_DELAY, delay[r], of_host), t_ns - own_ns)
            passed = own_ns - own[r]
            later = passed > 0
            for i in np.flatnonzero(passed > int(STALE_S * NS)).tolist():
                here_ns, since_ns = int(own_ns[i] + least[i]), int(passed[i])
                passed[i] -= interruptions.within(here_ns - since_ns, here_ns)
            moves = in_step > step[r]
            stood[r] = np.where(moves, 0, stood[r] + np.maximum(passed, 0))
            # A HELLO to a new collector has a later time than steps that the sender kept and sends after it.
            own[r] = np.where(later | moves, own_ns, own[r])
            step[r] = np.maximum(in_step, step[r])
            moved[r] = np.where(moves, own_ns + least, moved[r])
            delay[r] = least
        for column, values in zip(columns, (own, delay, stood, step, moved), strict=True):
            column[ranks] = values


class NewestReadings:
    """The newest message of one kind of every rank, a column of each field."""

    def __init__(self, kind: type[Message], world: int) -> None:
        self.kind = kind
        self.is_known: Mask = np.zeros(world, bool)
        """(ranks,) whether one has come."""
        self._columns: list[NDArray[Any]] = []
        """(ranks,) each, as FIELD_TYPES has them; none before the first message: a run without GPUs has no
        readings of them."""

    def resize(self, world: int) -> None:
        """There are so many ranks from here on."""
        kept = min(world, len(self.is_known))
        before, self.is_known = self.is_known, np.zeros(world, bool)
        self.is_known[:kept] = before[:kept]
        for place, column in enumerate(self._columns):
            self._columns[place] = np.zeros(world, column.dtype)
            self._columns[place][:kept] = column[:kept]

    def take(self, readings: Readings, ranks: Indices) -> None:
        """(n,) readings of these ranks; of each rank the last one stays."""
        self._allocate()
        self.is_known[ranks] = True
        for column, values in zip(self._columns, readings.values, strict=True):
            column[ranks] = values

    def field(self, name: str) -> NDArray[Any]:
        """(ranks,) a field, with any value where no message has come."""
        self._allocate()
        return self._columns[NAMES[self.kind].index(name)]

    def sent(self, ranks: Indices) -> dict[str, list[Any]]:
        """What these ranks have sent, by field; None: nothing."""
        self._allocate()
        unknown = np.flatnonzero(~self.is_known[ranks]).tolist()
        fields = {}
        for name, field_type, column in zip(
            NAMES[self.kind], FIELD_TYPES[self.kind], self._columns, strict=True
        ):
            fields[name] = field_type.values(column[ranks])
            for place in unknown:
                fields[name][place] = None
        return fields

    def message(self, rank: int) -> Message | None:
        """The newest one of a rank; None: none has come."""
        if not self.is_known[rank]:
            return None
        return self.kind(*(values[0] for values in self.sent(np.array([rank])).values()))

    def _allocate(self) -> None:
        if not self._columns:
            world = len(self.is_known)
            self._columns = [np.zeros(world, field.dtype) for field in FIELD_TYPES[self.kind]]


class SessionTable(_Columns):
    """The processes of ranks that messages may come from. A row that is free has rank UNKNOWN."""

    INITIAL: ClassVar = {
        "rank": UNKNOWN,
        "number": 0,
        "next_step": 0,
        "begun": 0,
        "generation": -1,
        "layout": -1,
    }
    rank: Integers
    number: Integers
    """Its session."""
    next_step: Integers
    """How many of its steps have arrived or are missing."""
    begun: Integers
    """1: some have arrived."""
    generation: Integers
    """Generation of the newest layout that it has reported; -1: none."""
    layout: Integers
    """Number of that layout's content."""

    def add(self, rank: int, number: int) -> int:
        """Returns the row of a new session."""
        free = np.flatnonzero(self.rank == UNKNOWN)
        if not len(free):
            free = np.array([self.size])
            self._resize(max(8, 2 * self.size))
        row = int(free[0])
        self.rank[row], self.number[row] = rank, number
        return row


class _CellName:
    """The name of a number of a `RankState` or `RankSession`, which stands in the table."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name


class Cell(_CellName):
    """A number of a `RankState` or `RankSession`."""

    def __get__(self, entry: Any, owner: type) -> int:
        value: int = getattr(entry.table, self._name).item(entry.row)
        return value

    def __set__(self, entry: Any, value: int) -> None:
        getattr(entry.table, self._name)[entry.row] = value


class CellOrNone(_CellName):
    """A number of a `RankState` that may be None: then it is UNKNOWN in the table."""

    def __get__(self, entry: Any, owner: type) -> int | None:
        value: int = getattr(entry.table, self._name).item(entry.row)
        return None if value == UNKNOWN else value

    def __set__(self, entry: Any, value: int | None) -> None:
        getattr(entry.table, self._name)[entry.row] = UNKNOWN if value is None else value
