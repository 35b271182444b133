"""Blocks of a recording read together: their messages as runs (`ddptop.protocol.message_run`)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import numpy as np

from ddptop.protocol.checks import CODES, ProtocolError
from ddptop.protocol.encoded_steps import readings_of, step_messages
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES
from ddptop.protocol.message_run import COLUMNS, MessageRun, Readings
from ddptop.protocol.messages import Type
from ddptop.protocol.packed import PADDING, Bodies, Packed, integer_sizes
from ddptop.recording.records import RECORD_LIMITS, BlockReader, Selector, body_type, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Received
    from ddptop.recording.format import Entry

    Integers = NDArray[np.int64]
    Record = tuple[Any, ...]

RUN_RECORDS, RUN_BYTES = 32_000, 16 << 20
"""Blocks are decoded together until they have so many records or bytes, however many rows a message has: some
120 MB as columns."""
_BEGINS = 0x95, 0xCF
"""A record is an array of five, whose first number is a time, which nearly always takes eight bytes."""


def runs(
    reader: BlockReader,
    entries: Iterable[Entry],
    selects: Selector,
    *,
    before_ns: int,
    newest_clocks: bool = False,
) -> Iterator[MessageRun]:
    """The selected messages of consecutive blocks that arrived before a moment, as `reader` reads each.
    No run is empty.

    `newest_clocks`: of the CLOCK messages only the last one of each session, behind all others.
    """
    selected = np.array([selects(kind) for kind in range(256)])
    clocks: dict[int, Record] | None = {} if newest_clocks else None
    blocks: list[tuple[Entry, bytes]] = []
    records = size = 0
    for entry in entries:
        raw = reader.raw(entry)
        if raw is None or records >= RUN_RECORDS or size >= RUN_BYTES:
            yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
            blocks, records, size = [], 0, 0
        if raw is None:  # read again, as far as possible
            yield from _run_of_messages(_before(reader.read(entry, selects), before_ns))
        else:
            blocks.append((entry, raw))
            records, size = records + entry.summary.records, size + len(raw)
    yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
    if clocks:
        yield from _run_of(_Records.of([*clocks.values()]))


def _before(messages: Iterable[Received], before_ns: int) -> list[Received]:
    return [received for received in messages if received.t_ns < before_ns]


def _run_of_messages(messages: Sequence[Received]) -> Iterator[MessageRun]:
    """None where all of a damaged block was lost."""
    if messages:
        yield MessageRun.of(messages)


class _Records(NamedTuple):
    """n records, decoded but for their messages."""

    heads: Integers
    """(4, n) t_ns, rank, session and seq."""
    kinds: NDArray[np.uint8]
    """(n,) `records.body_type` of each."""
    bodies: Bodies

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Records:
        """From single ones."""
        *heads, bodies = zip(*records, strict=True)
        kinds = np.array([*map(body_type, bodies)], np.uint8)
        return cls(np.array(heads, np.int64), kinds, Bodies.of(bodies))

    def at(self, places: Integers) -> _Records:
        """Some of them."""
        return _Records(self.heads[:, places], self.kinds[places], self.bodies.at(places))

    def single(self, places: Integers) -> list[Record]:
        """Some of them as objects."""
        heads, bodies = self.heads[:, places].T.tolist(), self.bodies.at(places).single()
        return [(*head, body) for head, body in zip(heads, bodies, strict=True)]


def _run_of_blocks(
    reader: BlockReader,
    blocks: Sequence[tuple[Entry, bytes]],
    selected: NDArray[np.bool_],
    before_ns: int,
    clocks: dict[int, Record] | None,
) -> Iterator[MessageRun]:
    """The messages of blocks whose type is `selected` ((256,)). `clocks` takes the newest CLOCK of each
    session out of them, where it is given."""
    if not any(raw for _, raw in blocks):
        return
    found = _records(blocks)
    if found is None:
        for entry, _ in blocks:
            messages = reader.read(entry, lambda kind: bool(selected[kind]))
            yield from _run_of_messages(_before(messages, before_ns))
        return
    records, begins = found
    taken = selected[records.kinds] & (records.heads[0] < before_ns)
    if clocks is not None:
        of_clocks = records.kinds == Type.CLOCK
        for record in records.single(np.flatnonzero(taken & of_clocks)):
            clocks.pop(record[2], None)
            clocks[record[2]] = record
        taken &= ~of_clocks
    if not taken.all():
        places = np.flatnonzero(taken)
        records, begins = records.at(places), np.searchsorted(places, begins)
    for run in _run_of(records):
        whole = len(run) == len(records.kinds)  # none was left out
        spans = zip(blocks, begins.tolist(), begins[1:].tolist(), strict=False)
        for (entry, _), begin, end in spans if whole else ():
            if entry.summary.last_ns < before_ns:
                lasting = run.others_within(begin, end) if entry.summary.lasting else ()
                reader.keep_lasting(entry, [received for _, received in lasting])
        yield run


def _records(blocks: Sequence[tuple[Entry, bytes]]) -> tuple[_Records, Integers] | None:
    """The records of blocks; and, for each block and the end, how many of them are before it. None: some are
    no records, a number is out of range, or a block has more of them than its summary says."""
    raws = [raw for _, raw in blocks]
    data = np.frombuffer(b"".join((*raws, PADDING)), np.uint8)
    bounds_of_blocks = np.cumsum([0, *map(len, raws)])
    end = int(bounds_of_blocks[-1])
    begins = _found_begins(data, end)
    if begins is None:
        begins = _unpacked_begins(data, end)
    bounds = np.append(begins, end)
    before = np.searchsorted(bounds, bounds_of_blocks)
    if (bounds[before] != bounds_of_blocks).any() or (data[begins] != _BEGINS[0]).any():
        return None
    if (np.diff(before) > [entry.summary.records for entry, _ in blocks]).any():
        return None
    fields = Packed(data, begins + 1)
    try:
        heads = np.stack([fields.integers() for _ in RECORD_LIMITS])
        sizes = fields.lengths()
    except (ProtocolError, IndexError):
        return None
    low, high = np.array(RECORD_LIMITS).T
    fits = (heads.min(axis=1) >= low).all() and (heads.max(axis=1) <= high).all()
    if not fits or (fields.at + sizes != bounds[1:]).any() or sizes.max() > MAX_RANK_MESSAGE_BYTES:
        return None
    arrays = (sizes > 1) & (data[fields.at] & 0xF0 == 0x90)
    kinds = np.where(arrays, data[fields.at + 1], 0).astype(np.uint8)
    return _Records(heads, kinds, Bodies(data, fields.at, sizes)), before


def _found_begins(data: NDArray[np.uint8], end: int) -> Integers | None:
    """Where the records begin, by the bytes that nearly all begin with; None where one begins otherwise.

    The same bytes may be in a record too: what a record is followed by says which ones are."""
    begins = np.flatnonzero(data[:end] == _BEGINS[0])
    begins = begins[data[begins + 1] == _BEGINS[1]]
    at = begins + 10
    for _ in RECORD_LIMITS[1:]:
        at += integer_sizes(data[at])
    wide = data[at] == 0xC5
    ends = at + 2 + np.where(wide, 1 + (data[at + 1].astype(np.int64) << 8) + data[at + 2], data[at + 1])
    following = np.searchsorted(begins, ends)
    real = np.ones(len(begins), bool)
    reached = 0
    for at in np.flatnonzero(following != np.arange(1, len(begins) + 1)).tolist():
        if at >= reached:
            reached = int(following[at])
            real[at + 1 : reached] = False
    begins, ends = begins[real], ends[real]
    closed = len(begins) and begins[0] == 0 and (ends == np.append(begins[1:], end)).all()
    return begins if closed else None


def _unpacked_begins(data: NDArray[np.uint8], end: int) -> Integers:
    """Where what is packed in the data begins, up to the first damage."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, end))
    unpacker.feed(data[:end])
    begins = [0]
    with suppress(ValueError, msgpack.UnpackException):
        while begins[-1] < end:
            unpacker.skip()
            begins.append(unpacker.tell())
    return np.array(begins[:-1], np.int64)


def _run_of(records: _Records) -> Iterator[MessageRun]:
    """The messages in these records, without those of unknown type or with invalid fields."""
    kinds = records.kinds
    if not len(kinds):
        return
    at = np.flatnonzero(kinds == Type.STEPS)
    steps = step_messages(records.bodies.at(at))
    rest = np.full(len(kinds), True) if steps is None else kinds != Type.STEPS
    readings = [*_readings(records)]
    for one in readings:
        rest[one.places] = False
    others = np.flatnonzero(rest)
    pairs = [*zip(kinds[others].tolist(), records.single(others), strict=True)]
    messages = [*decoded(pairs)]
    if len(messages) < len(pairs):
        every = records.single(np.arange(len(kinds)))
        yield from _run_of_messages([*decoded([*zip(kinds.tolist(), every, strict=True)])])
        return
    placed = [*zip(others.tolist(), messages, strict=True)]
    yield MessageRun(records.heads, at if steps is not None else np.arange(0), steps, placed, readings)


def _readings(records: _Records) -> Iterator[Readings]:
    """Those of COLUMNS that are all valid."""
    for kind in COLUMNS:
        places = np.flatnonzero(records.kinds == CODES[kind])
        if not len(places):
            continue
        found = readings_of(kind, places, records.bodies.at(places))
        if found is not None:
            yield found
