"""Blocks of a recording read together: their messages as runs (`ddptop.protocol.message_run`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.protocol.checks import CODES
from ddptop.protocol.encoded_steps import readings_of, step_messages
from ddptop.protocol.message_run import COLUMNS, MessageRun, Readings
from ddptop.protocol.messages import Type
from ddptop.recording.records import RECORD_LIMITS, BlockReader, Selector, decoded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Received
    from ddptop.recording.format import Entry

    Integers = NDArray[np.int64]
    Record = tuple[Any, ...]

RUN_RECORDS, RUN_BYTES = 16_000, 8 << 20
"""Blocks are decoded together until they have so many records or bytes, however many rows a message has: some
60 MB as columns."""


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
    blocks: list[tuple[Entry, list[Record]]] = []
    records = size = 0
    for entry in entries:
        found = reader.unpacked(entry)
        if found is None or records >= RUN_RECORDS or size >= RUN_BYTES:
            yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
            blocks, records, size = [], 0, 0
        if found is None:  # read again, as far as possible
            yield from _run_of_messages(_before(reader.read(entry, selects), before_ns))
        else:
            blocks.append((entry, found[0]))
            records, size = records + len(found[0]), size + found[1]
    yield from _run_of_blocks(reader, blocks, selected, before_ns, clocks)
    if clocks:
        heads = np.array([record[:-1] for record in clocks.values()], np.int64).T
        yield from _run_of([*clocks.values()], heads, np.full(len(clocks), int(Type.CLOCK), np.uint8))


def _before(messages: Iterable[Received], before_ns: int) -> list[Received]:
    return [received for received in messages if received.t_ns < before_ns]


def _run_of_messages(messages: Sequence[Received]) -> Iterator[MessageRun]:
    """None where all of a damaged block was lost."""
    if messages:
        yield MessageRun.of(messages)


def _run_of_blocks(
    reader: BlockReader,
    blocks: Sequence[tuple[Entry, list[Record]]],
    selected: NDArray[np.bool_],
    before_ns: int,
    clocks: dict[int, Record] | None,
) -> Iterator[MessageRun]:
    """The messages of blocks whose type is `selected` ((256,)). `clocks` takes the newest CLOCK of each
    session out of them, where it is given."""
    records = [record for _, found in blocks for record in found]
    if not records:
        return
    found = _heads(records)
    if found is None:
        for entry, _ in blocks:
            messages = reader.read(entry, lambda kind: bool(selected[kind]))
            yield from _run_of_messages(_before(messages, before_ns))
        return
    heads, kinds = found
    taken = selected[kinds] & (heads[0] < before_ns)
    if clocks is not None:
        for place in np.flatnonzero(taken & (kinds == Type.CLOCK)).tolist():
            record = records[place]
            clocks.pop(record[2], None)
            clocks[record[2]] = record
        taken &= kinds != Type.CLOCK
    begins = np.cumsum([0, *(len(found) for _, found in blocks)])
    if not taken.all():
        places = np.flatnonzero(taken)
        records = [records[place] for place in places.tolist()]
        heads, kinds, begins = heads[:, places], kinds[places], np.searchsorted(places, begins)
    for run in _run_of(records, heads, kinds):
        whole = len(run) == len(records)  # none was left out
        spans = zip(blocks, begins.tolist(), begins[1:].tolist(), strict=False)
        for (entry, _), begin, end in spans if whole else ():
            if entry.summary.last_ns < before_ns:
                lasting = run.others_within(begin, end) if entry.summary.lasting else ()
                reader.keep_lasting(entry, [received for _, received in lasting])
        yield run


def _heads(records: Sequence[Record]) -> tuple[Integers, NDArray[np.uint8]] | None:
    """(4, n) t_ns, rank, session and seq, and (n,) `records.body_type` of each; None: some are no records, or
    a number is out of range."""
    if set(map(type, records)) != {tuple} or set(map(len, records)) != {len(RECORD_LIMITS) + 1}:
        return None
    *head, bodies = zip(*records, strict=True)
    if set(map(type, bodies)) != {bytes} or any(set(map(type, column)) != {int} for column in head):
        return None
    try:
        heads = np.stack([np.fromiter(column, np.int64, len(records)) for column in head])
    except OverflowError:
        return None
    low, high = np.array(RECORD_LIMITS).T
    if (heads.min(axis=1) < low).any() or (heads.max(axis=1) > high).any():
        return None
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    joined = np.frombuffer(b"".join((*bodies, b"\0\0")), np.uint8)
    begins = np.cumsum(sizes) - sizes
    alike = (sizes > 1) & (joined[begins] & 0xF0 == 0x90)
    return heads, np.where(alike, joined[begins + 1], 0).astype(np.uint8)


def _run_of(records: Sequence[Record], heads: Integers, kinds: NDArray[np.uint8]) -> Iterator[MessageRun]:
    """The messages in these records, without those of unknown type or with invalid fields."""
    if not records:
        return
    at = np.flatnonzero(kinds == Type.STEPS)
    steps = step_messages([records[place][-1] for place in at.tolist()])
    rest = np.full(len(records), True) if steps is None else kinds != Type.STEPS
    readings = [*_readings(records, kinds)]
    for one in readings:
        rest[one.places] = False
    others = np.flatnonzero(rest).tolist()
    pairs = [(kind, records[place]) for kind, place in zip(kinds[others].tolist(), others, strict=True)]
    messages = [*decoded(pairs)]
    if len(messages) < len(pairs):
        yield from _run_of_messages([*decoded([*zip(kinds.tolist(), records, strict=True)])])
        return
    placed = [*zip(others, messages, strict=True)]
    yield MessageRun(heads, at if steps is not None else np.arange(0), steps, placed, readings)


def _readings(records: Sequence[Record], kinds: NDArray[np.uint8]) -> Iterator[Readings]:
    """Those of COLUMNS that are all valid."""
    for kind in COLUMNS:
        places = np.flatnonzero(kinds == CODES[kind])
        if not len(places):
            continue
        found = readings_of(kind, places, [records[place][-1] for place in places.tolist()])
        if found is not None:
            yield found
