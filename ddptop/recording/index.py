"""Which blocks a recording holds, told by its INDEX frames, and by its blocks where those do not reach."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ddptop.recording.blocks import Blocks
from ddptop.recording.format import (
    BLOCK,
    COPY,
    FOOTER,
    FOOTER_BYTES,
    HISTORY,
    INDEX,
    MAGIC,
    SUMMARY_BYTES,
    Entry,
    RecordingError,
    block_summary,
    copy_content,
    first_offset,
    footer_content,
    index_content,
    is_possible,
)
from ddptop.recording.frames import Frame, last_of_kind, read_frame, walk
from ddptop.recording.records import COPY_WITHIN


class Contents(NamedTuple):
    """What was found in a file."""

    blocks: Blocks
    """All blocks, in order."""
    unindexed: int
    """How many of them, at the end, no INDEX names yet."""
    last_index: int
    """Offset of the last INDEX, 0 for none."""
    end: int
    """Where the last whole frame ends, the FOOTER not counted: a writer goes on here."""
    next_sequence: int
    closed: bool
    """It ends with a FOOTER."""
    damaged: int
    """Bytes between whole frames."""
    histories: tuple[int, ...] = ()
    """Offsets at which a HISTORY frame may be, in order: behind every INDEX."""
    broken: bool = False
    """An INDEX was damaged or says what cannot be: blocks before it were found by walking."""


def load(descriptor: int, size: int) -> Contents:
    """The contents of a file of this size; reads little of it, unless an INDEX is damaged. Raises OSError."""
    last = _footer_index(descriptor, size) or last_of_kind(descriptor, INDEX, size)
    if last is None:
        return extend(Contents(Blocks(), 0, 0, len(MAGIC), 0, False, 0), descriptor, size)
    blocks, damaged, histories, broken = _chain(descriptor, last)
    known = Contents(blocks, 0, last.offset, last.end, last.sequence + 1, False, damaged, histories, broken)
    return extend(known, descriptor, size)


def extend(known: Contents, descriptor: int, size: int) -> Contents:
    """The contents of a file that has grown to this size since `known` was read."""
    added: list[Entry] = []
    unindexed, last_index, end = known.unindexed, known.last_index, known.end
    sequence, closed, damaged = known.next_sequence, False, known.damaged
    histories = list(known.histories)
    for found in walk(descriptor, known.end, size):
        damaged += found.offset - end
        if found.kind == FOOTER:
            closed = True
            break
        if found.kind == INDEX:
            unindexed, last_index = 0, found.offset
        elif found.kind == HISTORY:
            histories += [found.offset] if found.offset not in histories[-1:] else []
        elif (entry := _entry(found)) is None:
            damaged += found.end - found.offset if found.kind in (BLOCK, COPY) else 0
        elif found.kind == BLOCK or _is_missing(entry, added, known):
            added.append(entry)
            unindexed += 1
        end, sequence = found.end, found.sequence + 1
    added.sort()
    blocks = known.blocks + Blocks.of(added) if added else known.blocks
    told = (unindexed, last_index, end, sequence, closed, damaged, tuple(histories), known.broken)
    return Contents(blocks, *told)


def _is_missing(entry: Entry, added: list[Entry], known: Contents) -> bool:
    """Whether the block that a COPY is of was not found: it is damaged, and read from there."""
    last = known.blocks[len(known.blocks) - 1].offset if len(known.blocks) else 0
    return entry.offset > last and all(one.offset != entry.offset for one in added[-COPY_WITHIN:])


def _footer_index(descriptor: int, size: int) -> Frame | None:
    """The last INDEX of a file that was closed."""
    footer = read_frame(descriptor, size - FOOTER_BYTES) if size >= len(MAGIC) + FOOTER_BYTES else None
    if footer is None or footer.kind != FOOTER:
        return None
    try:
        index = read_frame(descriptor, footer_content(footer.payload))
    except RecordingError:
        return None
    return index if index is not None and index.kind == INDEX else None


def _chain(descriptor: int, last: Frame) -> tuple[Blocks, int, tuple[int, ...], bool]:
    """The blocks of this INDEX and all before it, how many bytes are damaged, where those before it end, and
    whether the chain is broken: then the blocks before the break are found by walking.
    """
    pieces: list[bytes] = []
    ends: list[int] = []
    index: Frame | None = last
    reached = last.offset
    whole = False
    while index is not None:
        found = _of_index(index, reached)
        if found is None:
            break
        before, packed = found
        pieces.append(packed)
        ends.append(index.end)
        reached = first_offset(packed) if packed else index.offset
        if before == 0:
            whole = True
            break
        # Only backwards: a chain that was forged into a ring must end.
        index = read_frame(descriptor, before) if len(MAGIC) <= before < reached else None
        if index is not None and index.kind != INDEX:
            index = None
    indexed, histories = Blocks.of_bytes(reversed(pieces)), tuple(reversed(ends[1:]))
    if whole:
        return indexed, 0, histories, False
    walked = extend(Contents(Blocks(), 0, 0, len(MAGIC), 0, False, 0), descriptor, reached)
    damaged = walked.damaged + max(0, reached - walked.end)
    return walked.blocks + indexed, damaged, walked.histories + histories, True


def _of_index(index: Frame, end: int) -> tuple[int, bytes] | None:
    """Offset of the INDEX before this one, and its entries; None where they cannot be: blocks are in order,
    lie before the INDEX that names them, and behind the one before it."""
    try:
        before, packed = index_content(index.payload)
    except RecordingError:
        return None
    entries = [*Blocks.of_bytes([packed])]
    bounds = [max(before, len(MAGIC) - 1), *(entry.offset for entry in entries), min(end, index.offset)]
    in_order = all(one < other for one, other in pairwise(bounds))
    return (before, packed) if in_order and all(map(is_possible, entries)) else None


def _entry(found: Frame) -> Entry | None:
    """The block that a frame is, or is a copy of; None for other frames, and for what cannot be."""
    if found.kind == COPY:
        try:
            entry, _ = copy_content(found.payload)
        except RecordingError:
            return None
        return entry if entry.offset < found.offset else None
    if found.kind != BLOCK or len(found.payload) < SUMMARY_BYTES:
        return None
    entry = Entry(found.offset, block_summary(found.payload))
    return entry if is_possible(entry) else None
