"""Messages that were read together, in order: STEPS as columns, so that none of them costs an object."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from functools import lru_cache
from itertools import starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from ddptop.protocol.decoding import decode_structs, field_columns
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import HostUsage
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import Clock, Logged, Message, Progress, Received, Replica, Steps
from ddptop.protocol.step_columns import (
    StepColumns,
    StepRows,
    columns_of_messages,
    columns_of_rows,
    steps_of,
    zip_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


READINGS = frozenset({Progress, Clock, HostUsage, Usage, Gpu, Memory, Logged, Replica})
"""Messages, besides STEPS, that may be taken before the steps of ranks that arrived earlier."""


OF_AGENTS = (Clock, HostUsage)
"""Readings of a host, from its agent."""
COLUMNS = (Progress, Memory, Usage, Gpu, *OF_AGENTS)
"""Readings of which only the newest one of each rank or host counts: a run may hold them as columns."""


class Readings(NamedTuple):
    """n messages of one kind, one of COLUMNS."""

    kind: type[Message]
    places: Integers
    """(n,) ascending."""
    values: tuple[NDArray[Any], ...]
    """(n,) each, the fields in their order: integers, floats, or objects where some are None or text."""

    @classmethod
    def decoded(cls, kind: type[Message], places: Integers, bodies: Sequence[bytes]) -> Readings | None:
        """Messages of one of COLUMNS; None where one of them is not valid: each is to be decoded alone."""
        with suppress(ProtocolError):
            columns = field_columns(kind, decode_structs(kind, bodies))
            return cls(kind, places, tuple(map(_column, columns)))
        return None

    def within(self, begin: int, stop: int) -> Readings:
        """Those from place `begin` to before `stop`."""
        part = slice(*np.searchsorted(self.places, (begin, stop)).tolist())
        return self.at(part)

    def at(self, part: slice | Integers) -> Readings:
        """Some of them."""
        return Readings(self.kind, self.places[part], tuple(column[part] for column in self.values))

    def sorted(self) -> Readings:
        """The same with ascending places."""
        ascending = (np.diff(self.places) > 0).all()
        return self if ascending else self.at(np.argsort(self.places, kind="stable"))

    def messages(self) -> Iterator[Message]:
        """All of them as objects."""
        return starmap(self.kind, zip(*(column.tolist() for column in self.values), strict=True))


def _column(values: Sequence[Any]) -> NDArray[Any]:
    """The values of a field, as numbers where all are."""
    types = set(map(type, values))
    if len(types) == 1:
        if (dtype := _DTYPES.get(types.pop())) is not None:
            return np.array(values, dtype)
        if values[0] in (None, "") and values.count(values[0]) == len(values):
            return constant(values[0], len(values))
    return np.fromiter(values, object, len(values))


_DTYPES: dict[type, type] = {int: np.int64, float: np.float64}


@lru_cache(maxsize=64, typed=True)  # of the same few counts again and again
def constant(value: object, count: int) -> NDArray[Any]:
    """(count,) the same object everywhere, which takes no memory."""
    return np.broadcast_to(np.array(value, object), count)


def is_constant(values: NDArray[Any]) -> bool:
    """Whether it was made by `constant`."""
    return values.dtype == object and values.strides == (0,)


Placed = tuple[Readings, int]
"""One of such messages, and where it is among them: a plain tuple, of which there are many."""


def message_of(placed: Placed) -> Message:
    """The message as an object."""
    readings, at = placed
    return readings.kind(*[column.item(at) for column in readings.values])


class StepMessages(NamedTuple):
    """n STEPS messages that were decoded together, (n,) each; fields as in `Steps`."""

    generation: Integers
    first_step: Integers
    base_ns: Integers
    begin: Integers
    """Where in `columns` the rows of each begin."""
    counts: Integers
    columns: StepColumns

    @classmethod
    def decoded(cls, bodies: Sequence[bytes]) -> StepMessages | None:
        """STEPS messages of any version; None where there is none, or one of them is not valid: each is to be
        decoded alone then."""
        with suppress(ProtocolError):
            if not len(bodies):
                return None
            structs = decode_structs(Steps, bodies)
            heads, words = zip_fields(structs)
            if words is None:  # earlier versions sent them in rows
                return cls.of(steps_of(structs))
            generation, first, base_ns = heads
            columns, begins = columns_of_messages(words)
            return cls(generation, first, base_ns, begins, words.rows, columns)
        return None

    @classmethod
    def of(cls, messages: Sequence[Steps]) -> StepMessages:
        """From messages, at least one."""
        columns, begins = columns_of_rows([message.rows for message in messages])
        heads = [
            (message.generation, message.first_step, message.base_ns, begin, len(message.rows))
            for message, begin in zip(messages, begins, strict=True)
        ]
        generation, first, base_ns, begin, counts = np.array(heads, np.int64).T
        return cls(generation, first, base_ns, begin, counts, columns)

    def part(self, messages: slice) -> StepMessages:
        """Some of them."""
        return StepMessages._make([*(column[messages] for column in self[:5]), self.columns])

    def steps(self, at: int) -> Steps:
        """One message."""
        generation, first, base_ns, begin, count = (int(column[at]) for column in self[:5])
        return Steps(generation, first, base_ns, StepRows(self.columns, begin, count))


class MessageRun:
    """Consecutive messages. A *place* is the number of a message in the run."""

    def __init__(
        self,
        heads: Integers,
        places: Integers,
        steps: StepMessages | None,
        others: Sequence[tuple[int, Received]],
        readings: Sequence[Readings] = (),
    ) -> None:
        self.heads = heads
        """(4, size): t_ns, rank, session and seq of every message, as in `Received`."""
        self.places = places
        """(n,) of the messages in `steps`, ascending."""
        self.steps = steps
        self.others = others
        """(place, message) of all others but `readings`, ascending."""
        self.readings = readings
        """At most one of each kind."""
        self._other_places = [place for place, _ in others]
        self._unusual: list[tuple[int, Received]] | None = None

    def __len__(self) -> int:
        return len(self.heads[0])

    @classmethod
    def of(cls, messages: Sequence[Received]) -> MessageRun:
        """From messages."""
        heads = np.array([received[:4] for received in messages], np.int64).reshape(-1, 4).T
        at = [place for place, received in enumerate(messages) if type(received.message) is Steps]
        if not at:
            return cls(heads, np.arange(0), None, [*enumerate(messages)])
        steps = StepMessages.of([cast("Steps", messages[place].message) for place in at])
        columns = set(at)
        others = [item for item in enumerate(messages) if item[0] not in columns]
        return cls(heads, np.array(at, np.int64), steps, others)

    def others_within(self, begin: int, stop: int) -> Sequence[tuple[int, Received]]:
        """(place, message) of those in `others`, from place `begin` to before `stop`."""
        first = bisect_left(self._other_places, begin)
        return self.others[first : bisect_left(self._other_places, stop)]

    def unusual_within(self, begin: int, stop: int) -> Sequence[tuple[int, Received]]:
        """Those of `others_within` that are no READINGS."""
        if self._unusual is None:
            self._unusual = [item for item in self.others if type(item[1].message) not in READINGS]
        first = bisect_left(self._unusual, begin, key=itemgetter(0))
        return self._unusual[first : bisect_left(self._unusual, stop, key=itemgetter(0))]

    def steps_within(self, begin: int, stop: int) -> tuple[int, int]:
        """Of the messages in `steps` the first from place `begin` on, and the first from `stop` on."""
        low, high = np.searchsorted(self.places, (begin, stop)).tolist()
        return low, high

    def received(self, place: int) -> Received:
        """The message at a place."""
        at = bisect_left(self._other_places, place)
        if at < len(self.others) and self._other_places[at] == place:
            return self.others[at][1]
        t_ns, rank, session, seq = self.heads[:, place].tolist()
        for one in self.readings:
            at = bisect_left(one.places, place)
            if at < len(one.places) and one.places[at] == place:
                return Received(t_ns, rank, session, seq, message_of((one, at)))
        assert self.steps is not None
        message = self.steps.steps(int(np.searchsorted(self.places, place)))
        return Received(t_ns, rank, session, seq, message)


_encode = msgspec.msgpack.Encoder().encode


class EncodedRun(MessageRun):
    """Messages that arrived together, with their bytes; those of each session in their order."""

    others: list[tuple[int, Received]]

    def __init__(
        self,
        heads: Integers,
        places: Integers,
        steps: StepMessages | None,
        others: list[tuple[int, Received]],
        bodies: Sequence[bytes],
        readings: Sequence[Readings] = (),
    ) -> None:
        """`bodies`: the encoded message at each place."""
        super().__init__(heads, places, steps, others, readings)
        self._bodies = bodies
        self._replaced: dict[int, bytes] = {}

    @classmethod
    def of_encoded(cls, messages: Sequence[tuple[Received, bytes]]) -> EncodedRun:
        """From messages, each with its bytes."""
        run = MessageRun.of([received for received, _ in messages])
        return cls(run.heads, run.places, run.steps, [*run.others], [body for _, body in messages])

    def __iter__(self) -> Iterator[tuple[Received, bytes]]:
        """Every message and its bytes, where each is to be an object of its own."""
        for place in range(len(self)):
            yield self.received(place), self.body(place)

    def body(self, place: int) -> bytes:
        """The encoded message at a place."""
        return self._replaced.get(place, self._bodies[place])

    def records(self, places: Integers) -> tuple[memoryview, Integers]:
        """The messages at some places as a recording holds them, msgpack [t_ns, rank, session, seq, body] one
        after the other; and (n,) where each ends."""
        bodies = [self._bodies[place] for place in places.tolist()]
        if self._replaced:
            bodies = [*map(self.body, places.tolist())]
        records = [*map(_encode, zip(*self.heads[:, places].tolist(), bodies, strict=True))]
        return memoryview(b"".join(records)), np.cumsum([*map(len, records)], dtype=np.int64)

    def sorted_by(self, key: Integers) -> EncodedRun:
        """The same by ascending `key`, (n,); those of the same key in their order, among them all STEPS."""
        if (np.diff(key) >= 0).all():
            return self
        order = np.argsort(key, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        others = [(int(place[at]), received) for at, received in self.others]
        others.sort(key=itemgetter(0))
        readings = [one._replace(places=place[one.places]).sorted() for one in self.readings]
        steps = place[self.places], self.steps
        bodies = [self._bodies[at] for at in order.tolist()]
        moved = EncodedRun(self.heads[:, order], *steps, others, bodies, readings)
        moved._replaced = {int(place[at]): body for at, body in self._replaced.items()}
        return moved

    def take_apart(self, kind: type[Message]) -> None:
        """Put the readings of a kind into `others`."""
        apart = [place for one in self.readings if one.kind is kind for place in one.places.tolist()]
        others = [*self.others, *((place, self.received(place)) for place in apart)]
        self.readings = [one for one in self.readings if one.kind is not kind]
        self.others = sorted(others, key=itemgetter(0))
        self._other_places, self._unusual = [place for place, _ in self.others], None

    def step_ranges(self, begin: int, stop: int) -> Integers:
        """(3, n) place, first step and rows of the STEPS from place `begin` to before `stop`."""
        low, high = self.steps_within(begin, stop)
        others = ((place, received.message) for place, received in self.others_within(begin, stop))
        each = [(place, one.first_step, len(one.rows)) for place, one in others if type(one) is Steps]
        found = np.array(each, np.int64).reshape(-1, 3).T
        if self.steps is None or low == high:
            return np.asarray(found)
        columns = self.places, self.steps.first_step, self.steps.counts
        both = np.concatenate([found, [column[low:high] for column in columns]], axis=1)
        return both[:, both[0].argsort(kind="stable")] if each else both

    def replace(self, number: int, received: Received, body: bytes) -> None:
        """Put another message, which is no STEPS, in place of `others[number]`."""
        place, _ = self.others[number]
        self.others[number], self._unusual = (place, received), None
        self.heads[:, place] = received[:4]
        self._replaced[place] = body
