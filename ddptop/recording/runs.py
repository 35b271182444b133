"""Blocks of a recording read together: their messages as runs (`ddptop.protocol.message_run`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.protocol.message_run import COLUMNS, MessageRun, Readings, StepMessages, message_codes
from ddptop.protocol.messages import CODES, Clock, Steps
from ddptop.recording.records import BlockReader, Record, Selector, decode_messages, whole_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Received
    from ddptop.recording.format import BlockEntry

    Integers = NDArray[np.int64]

RUN_RECORDS, RUN_BYTES = 32_000, 16 << 20
"""Blocks are decoded together until they have so many records or bytes, however many rows a message has: some
120 MB as columns."""


def read_runs(
    reader: BlockReader,
    entries: Iterable[BlockEntry],
    selects: Selector,
    *,
    before_ns: int,
    newest_clocks: bool = False,
) -> Iterator[MessageRun]:
    """The selected messages of consecutive blocks that arrived before a moment, as `reader` reads each.
    No run is empty.

    `newest_clocks`: of the CLOCK messages only the last one of each session, behind all others.
    """
    # A lookup for each possible type, so that many records are selected at once.
    selected = np.array([selects(kind) for kind in range(256)])
    clocks: dict[int, Record] | None = {} if newest_clocks else None
    blocks: list[tuple[BlockEntry, bytes]] = []
    records = size = 0
    for entry in entries:
        raw = reader.read_raw(entry)
        if raw is None or records >= RUN_RECORDS or size >= RUN_BYTES:
            yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
            blocks, records, size = [], 0, 0
        if raw is None:  # read again, as far as possible
            yield from _run_of_messages(_messages_before(reader.read_messages(entry, selects), before_ns))
        else:
            blocks.append((entry, raw))
            records, size = records + entry.summary.records, size + len(raw)
    yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
    if clocks:
        yield from _message_runs(_Records.of_single([*clocks.values()]))


def _messages_before(messages: Iterable[Received], before_ns: int) -> list[Received]:
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
    """(n,) `message_code` of each."""
    bodies: Sequence[bytes]

    @classmethod
    def of_single(cls, records: Sequence[Record]) -> _Records:
        """From single ones."""
        *heads, bodies = zip(*records, strict=True)
        return cls(np.array(heads, np.int64), message_codes(bodies), bodies)

    def take_places(self, places: Integers) -> _Records:
        """Some of them."""
        return _Records(self.heads[:, places], self.kinds[places], self.bodies_at(places))

    def bodies_at(self, places: Integers) -> list[bytes]:
        """The bodies of some."""
        return [self.bodies[place] for place in places.tolist()]

    def single_records(self, places: Integers) -> list[Record]:
        """Some of them as objects."""
        return [*zip(*self.heads[:, places].tolist(), self.bodies_at(places), strict=True)]


def _run_of_blocks(
    reader: BlockReader,
    blocks: Sequence[tuple[BlockEntry, bytes]],
    selected: NDArray[np.bool_],
    before_ns: int,
    clocks: dict[int, Record] | None,
) -> Iterator[MessageRun]:
    """The messages of blocks whose type is `selected` ((256,)). `clocks` takes the newest CLOCK of each
    session out of them, where it is given."""
    if not any(raw for _, raw in blocks):
        return
    unpacked = _unpack_blocks(blocks)
    # Some record is not valid: read block by block, so that damage is counted where it is.
    if unpacked is None:
        for entry, _ in blocks:
            messages = reader.read_messages(entry, lambda kind: bool(selected[kind]))
            yield from _run_of_messages(_messages_before(messages, before_ns))
        return
    records, begins = unpacked
    taken = selected[records.kinds] & (records.heads[0] < before_ns)
    if clocks is not None:
        of_clocks = records.kinds == CODES[Clock]
        for record in records.single_records(np.flatnonzero(taken & of_clocks)):
            # Removed first, so that the order of the dictionary is that of the newest ones.
            clocks.pop(record[2], None)
            clocks[record[2]] = record
        taken &= ~of_clocks
    if not taken.all():
        places = np.flatnonzero(taken)
        records, begins = records.take_places(places), np.searchsorted(places, begins)
    for run in _message_runs(records):
        whole = len(run) == len(records.kinds)  # none was left out
        spans = zip(blocks, begins.tolist(), begins[1:].tolist(), strict=False)
        for (entry, _), begin, end in spans if whole else ():
            # Messages after that moment are missing from the run, and so would be from what is kept.
            if entry.summary.last_ns < before_ns:
                lasting = run.others_within(begin, end) if entry.summary.lasting else ()
                reader.keep_lasting(entry, [received for _, received in lasting])
        yield run


def _unpack_blocks(blocks: Sequence[tuple[BlockEntry, bytes]]) -> tuple[_Records, Integers] | None:
    """The records of blocks; and, for each block and the end, how many of them are before it. None: some are
    no records, a number is out of range, or a block has not as many of them as its summary says."""
    records: list[Record] = []
    begins = [0]
    for entry, raw in blocks:
        of_block = whole_records(raw, entry.summary.records)
        if of_block is None:
            # One bad block sends all of these to the slow way, which counts it.
            return None
        records += of_block
        begins.append(len(records))
    return _Records.of_single(records), np.array(begins, np.int64)


def _message_runs(records: _Records) -> Iterator[MessageRun]:
    """The messages in these records, without those of unknown type or with invalid fields."""
    kinds = records.kinds
    if not len(kinds):
        return
    # Plain numbers: numpy looks for attributes of an enum's member, and drops a Ctrl-C that comes meanwhile.
    are_steps = kinds == CODES[Steps]
    step_places = np.flatnonzero(are_steps)
    steps = StepMessages.decoded(records.bodies_at(step_places))
    is_single = np.full(len(kinds), True) if steps is None else ~are_steps
    readings = [*_decode_readings(records)]
    for same_kind in readings:
        is_single[same_kind.places] = False
    single_places = np.flatnonzero(is_single)
    pairs = [*zip(kinds[single_places].tolist(), records.single_records(single_places), strict=True)]
    messages = [*decode_messages(pairs)]
    # Some message was not valid: places would be wrong, so that all are decoded once more, one by one.
    if len(messages) < len(pairs):
        every = records.single_records(np.arange(len(kinds)))
        yield from _run_of_messages([*decode_messages([*zip(kinds.tolist(), every, strict=True)])])
        return
    placed = [*zip(single_places.tolist(), messages, strict=True)]
    yield MessageRun(
        records.heads, step_places if steps is not None else np.arange(0), steps, placed, readings
    )


def _decode_readings(records: _Records) -> Iterator[Readings]:
    """Readings in columns: of each kind in COLUMNS whose messages are all valid."""
    for kind in COLUMNS:
        places = np.flatnonzero(records.kinds == CODES[kind])
        if not len(places):
            continue
        readings = Readings.decoded(kind, places, records.bodies_at(places))
        if readings is not None:
            yield readings
