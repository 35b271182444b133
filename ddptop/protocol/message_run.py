"""Messages that were read together, in order: STEPS as columns, so that none of them costs an object."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from itertools import starmap
from operator import attrgetter, itemgetter
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from ddptop.protocol.decoding import decode_structs, field_columns
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import (
    NAMES,
    Logged,
    Message,
    Received,
    Replica,
    Steps,
    message_code,
    select_kinds,
)
from ddptop.protocol.ranges import Range
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


AGENT_READINGS = select_kinds(lambda traits: traits.is_reading and "agent" in traits.senders)
"""Readings of a host, from its agent."""
RANK_READINGS = select_kinds(lambda traits: traits.is_reading and "agent" not in traits.senders)
"""Readings of a rank."""
COLUMNS = (*RANK_READINGS, *AGENT_READINGS)
"""Readings that a run may hold as columns."""
READINGS = frozenset({*COLUMNS, Logged, Replica})
"""Messages, besides STEPS, that may be taken before the steps of ranks that arrived earlier."""

_EXACT_IN_FLOAT = 2**53
"""Up to here float64 holds every integer exactly: such fields may be columns with NaN for None."""


# The codes are read from the bytes, since messages are decoded by kind, all of a kind at once.
def message_codes(bodies: Sequence[bytes]) -> NDArray[np.uint8]:
    """(n,) `message_code` of each of these encoded messages."""
    return np.fromiter(map(message_code, bodies), np.uint8, len(bodies))


class FieldType(NamedTuple):
    """How the values of a field stand in an array."""

    dtype: type
    """float64 for numbers that may be None, with NaN for None; object for texts."""
    restore: Callable[[float], Any] | None
    """From such a number to what was sent; None: the array holds what was sent."""

    def values(self, column: NDArray[Any]) -> list[Any]:
        """What was sent."""
        values, restore = column.tolist(), self.restore
        # Objects are the last choice: numpy has no fast operation on them. Only texts and integers above
        # 2**53 need them.
        return values if restore is None else [None if n != n else restore(n) for n in values]


def _field_type(declared: Any) -> FieldType:
    options = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    (value_type, *ranges), *may_be_none = (
        get_args(option) if get_origin(option) is Annotated else (option,) for option in options
    )
    if value_type is int and not may_be_none:
        return FieldType(np.int64, None)
    if value_type is float:
        return FieldType(np.float64, float if may_be_none else None)
    if value_type is int and isinstance(ranges[0], Range) and ranges[0].high <= _EXACT_IN_FLOAT:
        return FieldType(np.float64, int)
    return FieldType(object, None)


FIELD_TYPES: dict[type[Message], tuple[FieldType, ...]] = {
    kind: tuple(_field_type(get_type_hints(kind, include_extras=True)[name]) for name in NAMES[kind])
    for kind in COLUMNS
}
"""Types of the fields of each kind of COLUMNS, in their order."""


class Readings(NamedTuple):
    """n messages of one kind, one of COLUMNS."""

    kind: type[Message]
    places: Integers
    """(n,) ascending."""
    values: tuple[NDArray[Any], ...]
    """(n,) each, the fields in their order, as FIELD_TYPES has them."""

    @classmethod
    def decoded(cls, kind: type[Message], places: Integers, bodies: Sequence[bytes]) -> Readings | None:
        """Messages of one of COLUMNS; None where one of them is not valid: each is to be decoded alone."""
        with suppress(ProtocolError):
            return cls._of_columns(kind, places, field_columns(kind, decode_structs(kind, bodies)))
        return None

    @classmethod
    def of(cls, kind: type[Message], places: Sequence[int], messages: Sequence[Message]) -> Readings:
        """From messages of this kind."""
        columns = [*zip(*map(attrgetter(*NAMES[kind]), messages), strict=True)]
        return cls._of_columns(kind, np.array(places, np.int64), columns)

    @classmethod
    def _of_columns(cls, kind: type[Message], places: Integers, columns: Sequence[Sequence[Any]]) -> Readings:
        types = FIELD_TYPES[kind]
        return cls(
            kind,
            places,
            tuple(
                np.fromiter(column, object, len(column))
                if field.dtype is object
                else np.array(column, field.dtype)
                for field, column in zip(types, columns, strict=True)
            ),
        )

    def within(self, begin: int, stop: int) -> Readings:
        """The readings from place `begin` to before `stop`."""
        first = bisect_left(self.places, begin)
        return self.at(slice(first, bisect_left(self.places, stop, first)))

    def at(self, part: slice | Integers) -> Readings:
        """Some of them."""
        return Readings(self.kind, self.places[part], tuple(column[part] for column in self.values))

    def field(self, name: str) -> NDArray[Any]:
        """(n,) the values of a field."""
        return self.values[NAMES[self.kind].index(name)]

    def merged(self, added: Readings) -> Readings:
        """These and more of the same kind."""
        pairs = zip(self.values, added.values, strict=True)
        places = np.concatenate([self.places, added.places])
        return Readings(self.kind, places, tuple(map(np.concatenate, pairs))).sorted()

    def sorted(self) -> Readings:
        """The readings by ascending place."""
        ascending = (self.places[1:] > self.places[:-1]).all()
        # Most often they are sorted already, and the test costs less than sorting.
        return self if ascending else self.at(np.argsort(self.places, kind="stable"))

    def messages(self) -> Iterator[Message]:
        """All of them as objects."""
        columns = zip(FIELD_TYPES[self.kind], self.values, strict=True)
        return starmap(self.kind, zip(*(field.values(column) for field, column in columns), strict=True))


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
        """STEPS messages; None where there is none, or one of them is not valid: each is to be decoded alone
        then."""
        with suppress(ProtocolError):
            if not len(bodies):
                return None
            structs = decode_structs(Steps, bodies)
            heads, words = zip_fields(structs)
            # One of them is in rows: a rank sends so only what does not fit in columns, which is rare.
            if words is None:
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

    def part(self, messages: slice | Integers | NDArray[np.bool_]) -> StepMessages:
        """Some of them."""
        # `columns` is not cut: `begin` and `counts` say which of its rows belong to these messages.
        return StepMessages._make([*(column[messages] for column in self[:5]), self.columns])

    def message(self, number: int) -> Steps:
        """One message."""
        generation, first, base_ns, begin, count = (int(column[number]) for column in self[:5])
        return Steps(generation, first, base_ns, StepRows(self.columns, begin, count))

    def messages(self) -> Iterator[Steps]:
        """All of them as objects."""
        return map(self.message, range(len(self.counts)))


# Also a single heartbeat becomes a column, so that whatever takes messages has one way to take them.
_IN_COLUMNS = frozenset({Steps, *RANK_READINGS})
"""Messages that are never among the others of a run."""


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
        self._put_into_columns()
        self._other_places = [place for place, _ in self.others]
        self._unusual: list[tuple[int, Received]] | None = None

    def __len__(self) -> int:
        return len(self.heads[0])

    @classmethod
    def of(cls, messages: Sequence[Received]) -> MessageRun:
        """From messages."""
        heads = np.array([received[:4] for received in messages], np.int64).reshape(-1, 4).T
        return cls(heads, np.arange(0), None, [*enumerate(messages)])

    def _put_into_columns(self) -> None:
        """Move STEPS and readings of ranks out of `others`."""
        single: dict[type[Message], list[tuple[int, Any]]] = {}
        for place, received in self.others:
            kind = type(received.message)
            if kind in _IN_COLUMNS:
                single.setdefault(kind, []).append((place, received.message))
        if not single:
            return
        self.others = [item for item in self.others if type(item[1].message) not in _IN_COLUMNS]
        of_kind = {readings.kind: readings for readings in self.readings}
        for kind, placed in single.items():
            places, messages = zip(*placed, strict=True)
            if kind is Steps:
                # STEPS of a rank stay in the order of their places: a step that comes before its turn would
                # count as a loss.
                if self.steps is not None:
                    all_steps = [*zip(self.places.tolist(), self.steps.messages(), strict=True), *placed]
                    places, messages = zip(*sorted(all_steps, key=itemgetter(0)), strict=True)
                self.places, self.steps = np.array(places, np.int64), StepMessages.of(messages)
            else:
                readings = Readings.of(kind, places, messages)
                of_kind[kind] = of_kind[kind].merged(readings) if kind in of_kind else readings
        self.readings = [*of_kind.values()]

    def others_within(self, begin: int, stop: int) -> Sequence[tuple[int, Received]]:
        """(place, message) of those in `others`, from place `begin` to before `stop`."""
        first = bisect_left(self._other_places, begin)
        return self.others[first : bisect_left(self._other_places, stop)]

    def unusual_within(self, begin: int, stop: int) -> Sequence[tuple[int, Received]]:
        """The messages of `others_within` that are no READINGS, with their places."""
        unusual = self._unusual_messages()
        first = bisect_left(unusual, begin, key=itemgetter(0))
        return unusual[first : bisect_left(unusual, stop, key=itemgetter(0))]

    def next_unusual(self, begin: int, stop: int) -> int:
        """The place of the first of `unusual_within`; `stop`: there is none."""
        unusual = self._unusual_messages()
        first = bisect_left(unusual, begin, key=itemgetter(0))
        return min(unusual[first][0], stop) if first < len(unusual) else stop

    def _unusual_messages(self) -> list[tuple[int, Received]]:
        if self._unusual is None:
            self._unusual = [item for item in self.others if type(item[1].message) not in READINGS]
        return self._unusual

    def steps_within(self, begin: int, stop: int) -> tuple[int, int]:
        """Where in `steps` the messages from place `begin` to before `stop` begin and end."""
        low = bisect_left(self.places, begin)
        return low, bisect_left(self.places, stop, low)

    def received(self, place: int) -> Received:
        """The message at a place."""
        index = bisect_left(self._other_places, place)
        if index < len(self.others) and self._other_places[index] == place:
            return self.others[index][1]
        t_ns, rank, session, seq = self.heads[:, place].tolist()
        for readings in self.readings:
            for message in readings.within(place, place + 1).messages():
                return Received(t_ns, rank, session, seq, message)
        assert self.steps is not None
        return Received(t_ns, rank, session, seq, self.steps.message(bisect_left(self.places, place)))


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
        bodies = [body for _, body in messages]
        return cls(run.heads, run.places, run.steps, [*run.others], bodies, run.readings)

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
        # One by one only where a message was replaced: of hosts that are renamed.
        if self._replaced:
            bodies = [*map(self.body, places.tolist())]
        records = [*map(_encode, zip(*self.heads[:, places].tolist(), bodies, strict=True))]
        return memoryview(b"".join(records)), np.cumsum([*map(len, records)], dtype=np.int64)

    def sorted_by(self, key: Integers) -> EncodedRun:
        """The run by ascending `key`, (n,). Messages of the same key stay in their order, and so must all
        STEPS."""
        if (key[1:] >= key[:-1]).all():
            return self
        order = np.argsort(key, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        others = [(int(place[old_place]), received) for old_place, received in self.others]
        others.sort(key=itemgetter(0))
        moved_readings = [
            readings._replace(places=place[readings.places]).sorted() for readings in self.readings
        ]
        steps = place[self.places], self.steps
        bodies = [self._bodies[old_place] for old_place in order.tolist()]
        moved = EncodedRun(self.heads[:, order], *steps, others, bodies, moved_readings)
        moved._replaced = {int(place[old_place]): body for old_place, body in self._replaced.items()}
        return moved

    def take_apart(self, kind: type[Message]) -> None:
        """Put the readings of a kind into `others`."""
        places = [
            place for readings in self.readings if readings.kind is kind for place in readings.places.tolist()
        ]
        others = [*self.others, *((place, self.received(place)) for place in places)]
        self.readings = [readings for readings in self.readings if readings.kind is not kind]
        self.others = sorted(others, key=itemgetter(0))
        # Both were derived from `others`, which has just changed.
        self._other_places, self._unusual = [place for place, _ in self.others], None

    def step_ranges(self, begin: int, stop: int) -> Integers:
        """(3, n) place, first step and rows of the STEPS from place `begin` to before `stop`."""
        if self.steps is None:
            return np.empty((3, 0), np.int64)
        messages = slice(*self.steps_within(begin, stop))
        columns = self.places, self.steps.first_step, self.steps.counts
        return np.stack([column[messages] for column in columns])

    def replace(self, number: int, received: Received, body: bytes) -> None:
        """Put another message, which is no STEPS, in place of `others[number]`."""
        place, _ = self.others[number]
        self.others[number], self._unusual = (place, received), None
        self.heads[:, place] = received[:4]
        self._replaced[place] = body
