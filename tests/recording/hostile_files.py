"""Recordings that no writer of ours has made: small, with sound checksums, and endless work for who believes
them. `python -m tests.recording.hostile_files FOLDER [MB]` writes one of each kind."""

from __future__ import annotations

import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import msgpack
import numpy as np

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event
from ddptop.recording.format import (
    BLOCK,
    FOOTER,
    HEADER,
    HISTORY,
    INDEX,
    MAGIC,
    MAX_RAW,
    NO_STEP,
    SUMMARY,
    BlockEntry,
    BlockSummary,
    footer_payload,
    index_payload,
    pack_frame,
)
from ddptop.recording.history import ADDED, NARROW, WIDE
from tests.made_up_run import START_NS, hello, layout, progress, run_message, steps

Block = tuple[BlockSummary, bytes]
"""What the index says of a block, and its records."""

BLOCKS_OF_INDEX = 256


def record(t_ns: int, rank: int, session: int, seq: int, body: bytes) -> bytes:
    packed: bytes = msgpack.packb((t_ns, rank, session, seq, body))
    return packed


HEAD = b"".join(
    [
        record(START_NS, -1, 0, 0, encode(run_message())),
        *(record(START_NS, rank, 1000 + rank, 0, encode(hello(rank, 2))) for rank in range(2)),
        *(record(START_NS, rank, 1000 + rank, 1, encode(layout(1))) for rank in range(2)),
        *(record(START_NS, r, 1000 + r, 2, encode(steps(0, 100, r, buckets=1))) for r in range(2)),
    ]
)
"""A run of two ranks and a hundred steps."""


def summary(records: int, *, lasting: int = 0, last_step: int = NO_STEP, at: int = 0) -> BlockSummary:
    first_step = NO_STEP if last_step == NO_STEP else 0
    return BlockSummary(START_NS + at, START_NS + at, first_step, last_step, records, lasting)


FIRST = summary(7, lasting=5, last_step=99)
FIRST_FRAME = pack_frame(BLOCK, 0, SUMMARY.pack(*FIRST) + zlib.compress(HEAD))


def write(path: Path, blocks: Iterable[Block], size: int, *, others: Iterable[bytes] = ()) -> Path:
    """A file of about so many bytes, with an index: the head, then as many blocks as fit.

    `others`: frames between the blocks and the last INDEX."""
    entries: list[BlockEntry] = []
    offset, sequence, last_index = len(MAGIC), 0, 0
    with path.open("wb") as file:
        file.write(MAGIC)

        def put(kind: int, payload: bytes) -> int:
            nonlocal offset, sequence
            data = pack_frame(kind, sequence, payload)
            file.write(data)
            offset, sequence, begin = offset + len(data), sequence + 1, offset
            return begin

        def put_index() -> None:
            nonlocal last_index
            last_index = put(INDEX, index_payload(last_index, entries))
            entries.clear()

        for what, records in itertools.chain([(FIRST, HEAD)], blocks):
            if offset > size:
                break
            entries.append(BlockEntry(offset, what))
            put(BLOCK, SUMMARY.pack(*what) + packed(records))
            if len(entries) == BLOCKS_OF_INDEX:
                put_index()
        put_index()
        for payload in others:
            if offset > size:
                break
            put(HISTORY, payload)
            put_index()
        put(FOOTER, footer_payload(last_index))
    return path


@cache
def packed(records: bytes) -> bytes:
    return zlib.compress(records, 9)


def full(one: bytes, raw: int = MAX_RAW) -> bytes:
    """So many bytes of the same record."""
    return one * (raw // len(one))


def repeated(one: bytes, **said: int) -> Iterator[Block]:
    """Blocks as large as may be, of one record; the index says how many there are."""
    records = full(one)
    count = len(records) // len(one)
    number = 0
    while True:
        number += 1
        lasting = count if said.get("lasting") else 0
        yield (
            summary(
                said.get("records", count), lasting=lasting, last_step=said.get("last_step", -1), at=number
            ),
            records,
        )


def empty_records() -> Iterator[Block]:
    """Two gigabytes of empty records in 13 MB."""
    return repeated(record(START_NS, 0, 1000, 0, b""))


def uncounted_records() -> Iterator[Block]:
    """The same, of which the index says that each block has one."""
    return repeated(record(START_NS, 0, 1000, 0, b""), records=1)


def same_steps() -> Iterator[Block]:
    """The same hundred steps over and over."""
    return repeated(record(START_NS, 0, 1000, 2, encode(steps(0, 100, 0, buckets=1))), last_step=99)


def heartbeats() -> Iterator[Block]:
    """The same heartbeat over and over."""
    return repeated(record(START_NS, 0, 1000, 0, encode(progress(START_NS, 5))))


def events() -> Iterator[Block]:
    """The same event over and over."""
    event = Event("mute", START_NS, -1, 5, {"message": "a pause"})
    return repeated(record(START_NS, -1, 0, 0, encode(event)), lasting=1)


def tiny_blocks() -> Iterator[Block]:
    """As many blocks as fit, of one event each."""
    event = Event("mute", START_NS, -1, 5, {"message": "a pause"})
    for number in itertools.count(1):
        yield summary(1, lasting=1, at=number), record(START_NS + number, -1, 0, 0, encode(event))


def one_huge_block() -> Iterator[Block]:
    """A block that unpacks to 64 MB."""
    yield summary(1), full(record(START_NS, 0, 1000, 0, b""), 64 << 20)


def nested_lists() -> Iterator[Block]:
    """Blocks of lists in lists."""
    nested = b"\x91" * MAX_RAW
    for number in itertools.count(1):
        yield summary(1, lasting=1, at=number), nested


def histories() -> Iterator[bytes]:
    """Pieces of the history that unpack to a megabyte each."""
    count = 15_000
    columns = [np.full(count, 1.0).astype("<f8").tobytes() for _ in WIDE]
    columns += [np.full(count, 1.0).astype("<f4").tobytes() for _ in NARROW]
    added = [np.full(count, 1.0).astype("<f4").tobytes() for _ in ADDED]
    payload = zlib.compress(msgpack.packb([columns, b"", [], [], added]), 9)
    while True:
        yield payload


def endless_chain(path: Path, size: int) -> Path:
    """One INDEX without a block after the other, from end to beginning."""
    first = pack_frame(BLOCK, 0, SUMMARY.pack(*summary(7, lasting=5, last_step=99)) + zlib.compress(HEAD))
    with path.open("wb") as file:
        file.write(MAGIC + first)
        offset, before, entries = (
            len(MAGIC) + len(first),
            0,
            [BlockEntry(len(MAGIC), summary(7, lasting=5, last_step=99))],
        )
        number = 1
        while offset < size:
            data = pack_frame(INDEX, number, index_payload(before, entries))
            file.write(data)
            before, offset, number, entries = offset, offset + len(data), number + 1, []
        file.write(pack_frame(FOOTER, number, footer_payload(before)))
    return path


def false_syncs(path: Path, size: int) -> Path:
    """Beginnings of frames that claim a megabyte each."""
    head = pack_frame(BLOCK, 1, bytes(1 << 20))[: HEADER.size]
    path.write_bytes(MAGIC + FIRST_FRAME + head * ((size - len(FIRST_FRAME)) // len(head)))
    return path


def of_blocks(blocks: Callable[[], Iterator[Block]]) -> Callable[[Path, int], Path]:
    return lambda path, size: write(path, blocks(), size)


KINDS: dict[str, Callable[[Path, int], Path]] = {
    **{
        make.__name__: of_blocks(make)
        for make in (
            empty_records, uncounted_records, same_steps, heartbeats, events, tiny_blocks, one_huge_block,
            nested_lists,
        )
    },
    "histories": lambda path, size: write(path, (), size, others=histories()),
    "endless_chain": endless_chain,
    "false_syncs": false_syncs,
}  # fmt: skip


if __name__ == "__main__":
    megabytes = float(sys.argv[2]) if len(sys.argv) > 2 else 13.0
    for name, make in KINDS.items():
        made = make(Path(sys.argv[1]) / f"{name}.ddptop", int(megabytes * (1 << 20)))
        print(f"{made.stat().st_size:>12,} {made}")
