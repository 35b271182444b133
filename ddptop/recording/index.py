"""The blocks of a recording, from its INDEX frames, or from the blocks themselves where those are missing.

Blocks are held as columns: a long run has hundreds of thousands of them. Their summaries alone say in which
block a moment or a step is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddptop.recording.disk import is_being_written
from ddptop.recording.format import (
    BLOCK,
    COPY,
    ENTRY_FIELDS,
    FOOTER,
    FOOTER_BYTES,
    HISTORY,
    INDEX,
    MAGIC,
    NO_STEP,
    SUMMARY_BYTES,
    BlockEntry,
    BlockSummary,
    FileFrame,
    RecordingError,
    block_summary,
    copy_content,
    first_offset,
    footer_content,
    index_content,
    is_possible,
    last_of_kind,
    read_frame,
    walk_frames,
)
from ddptop.recording.records import COPY_WITHIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.recording.records import BlockReader

_ROW = np.dtype(list(ENTRY_FIELDS))


class Blocks:
    """A sequence of entries that never changes; `first_ns` and the others are columns of it."""

    def __init__(self, rows: NDArray[Any] | None = None) -> None:
        """`rows` as `of_bytes` makes them; None: no block."""
        self._rows = np.empty(0, _ROW) if rows is None else rows
        self.first_ns: NDArray[np.int64] = self._rows["first_ns"]
        # Searched often, so that these are contiguous.
        self.last_ns: NDArray[np.int64] = np.ascontiguousarray(self._rows["last_ns"])
        self.first_step: NDArray[np.int64] = np.ascontiguousarray(self._rows["first_step"])
        self.last_step: NDArray[np.int64] = np.ascontiguousarray(self._rows["last_step"])
        self.records: NDArray[np.uint32] = self._rows["records"]
        self.lasting: NDArray[np.uint32] = self._rows["lasting"]

    @classmethod
    def of_bytes(cls, pieces: Iterable[bytes]) -> Blocks:
        """From packed entries, as they stand in INDEX frames. Raises ValueError where the length is wrong."""
        return cls(np.frombuffer(b"".join(pieces), _ROW))

    @classmethod
    def of_entries(cls, entries: Iterable[BlockEntry]) -> Blocks:
        """From single entries."""
        return cls(np.array([(entry.offset, *entry.summary) for entry in entries], _ROW))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> BlockEntry:
        offset, *summary = self._rows[index].item()
        return BlockEntry(offset, BlockSummary._make(summary))

    def __iter__(self) -> Iterator[BlockEntry]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: Blocks) -> Blocks:
        if not len(other):
            return self
        return other if not len(self) else Blocks(np.concatenate([self._rows, other._rows]))

    def slice_blocks(self, first: int, stop: int) -> Blocks:
        """Blocks first to before stop."""
        return Blocks(self._rows[first:stop])


class Contents(NamedTuple):
    """The contents of a file."""

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
    """An INDEX was damaged or impossible: blocks before it were found by walking."""


def load_contents(descriptor: int, size: int) -> Contents:
    """The contents of a file of this size; reads little of it, unless an INDEX is damaged. Raises OSError."""
    # From the end: a recording of a day has hundreds of thousands of blocks, and only its indices are read.
    last = _footer_index(descriptor, size) or last_of_kind(descriptor, INDEX, size)
    if last is None:
        # No INDEX yet, or none that is whole: all of it is found by walking.
        return extend_contents(Contents(Blocks(), 0, 0, len(MAGIC), 0, False, 0), descriptor, size)
    blocks, damaged, histories, broken = _read_index_chain(descriptor, last)
    indexed = Contents(blocks, 0, last.offset, last.end, last.sequence + 1, False, damaged, histories, broken)
    return extend_contents(indexed, descriptor, size)


def extend_contents(earlier: Contents, descriptor: int, size: int) -> Contents:
    """The contents of a file that has grown to this size since `earlier` was read."""
    added: list[BlockEntry] = []
    unindexed, last_index, end = earlier.unindexed, earlier.last_index, earlier.end
    sequence, closed, damaged = earlier.next_sequence, False, earlier.damaged
    histories = list(earlier.histories)
    for frame in walk_frames(descriptor, earlier.end, size):
        damaged += frame.offset - end
        # A writer that continues a closed file cuts the FOOTER off first: nothing follows it.
        if frame.kind == FOOTER:
            closed = True
            break
        if frame.kind == INDEX:
            # The INDEX names all blocks before it, so that none of them is unindexed.
            unindexed, last_index = 0, frame.offset
        elif frame.kind == HISTORY:
            histories += [frame.offset] if frame.offset not in histories[-1:] else []
        elif (entry := _entry_of_frame(frame)) is None:
            damaged += frame.end - frame.offset if frame.kind in (BLOCK, COPY) else 0
        elif frame.kind == BLOCK or _is_missing(entry, added, earlier):
            added.append(entry)
            unindexed += 1
        end, sequence = frame.end, frame.sequence + 1
    # A COPY stands behind later blocks than the one that it is of.
    added.sort()
    blocks = earlier.blocks + Blocks.of_entries(added) if added else earlier.blocks
    fields = (unindexed, last_index, end, sequence, closed, damaged, tuple(histories), earlier.broken)
    return Contents(blocks, *fields)


def _is_missing(entry: BlockEntry, added: list[BlockEntry], earlier: Contents) -> bool:
    """Whether the block that a COPY is of was not found: it is damaged, and read from there."""
    last = earlier.blocks[len(earlier.blocks) - 1].offset if len(earlier.blocks) else 0
    return entry.offset > last and all(
        near_entry.offset != entry.offset for near_entry in added[-COPY_WITHIN:]
    )


def _footer_index(descriptor: int, size: int) -> FileFrame | None:
    """The last INDEX of a file that was closed."""
    # The FOOTER has a fixed size, so that it is found from the end of the file.
    footer = read_frame(descriptor, size - FOOTER_BYTES) if size >= len(MAGIC) + FOOTER_BYTES else None
    if footer is None or footer.kind != FOOTER:
        return None
    try:
        index = read_frame(descriptor, footer_content(footer.payload))
    except RecordingError:
        return None
    return index if index is not None and index.kind == INDEX else None


def _read_index_chain(descriptor: int, last: FileFrame) -> tuple[Blocks, int, tuple[int, ...], bool]:
    """The blocks of this INDEX and all before it, how many bytes are damaged, where those before it end, and
    whether the chain is broken: then the blocks before the break are found by walking.
    """
    pieces: list[bytes] = []
    ends: list[int] = []
    index: FileFrame | None = last
    reached = last.offset
    whole = False
    while index is not None:
        content = _of_index(index, reached)
        if content is None:
            break
        before, packed = content
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
    walked = extend_contents(Contents(Blocks(), 0, 0, len(MAGIC), 0, False, 0), descriptor, reached)
    damaged = walked.damaged + max(0, reached - walked.end)
    return walked.blocks + indexed, damaged, walked.histories + histories, True


def _of_index(index: FileFrame, end: int) -> tuple[int, bytes] | None:
    """Offset of the INDEX before this one, and its entries; None where they cannot be: blocks are in order,
    lie before the INDEX that names them, and behind the one before it."""
    try:
        before, packed = index_content(index.payload)
    except RecordingError:
        return None
    entries = [*Blocks.of_bytes([packed])]
    bounds = [max(before, len(MAGIC) - 1), *(entry.offset for entry in entries), min(end, index.offset)]
    in_order = all(earlier < later for earlier, later in pairwise(bounds))
    return (before, packed) if in_order and all(map(is_possible, entries)) else None


def _entry_of_frame(frame: FileFrame) -> BlockEntry | None:
    """The block that a frame is, or is a copy of; None for other frames, and for what cannot be."""
    if frame.kind == COPY:
        try:
            entry, _ = copy_content(frame.payload)
        except RecordingError:
            return None
        return entry if entry.offset < frame.offset else None
    if frame.kind != BLOCK or len(frame.payload) < SUMMARY_BYTES:
        return None
    entry = BlockEntry(frame.offset, block_summary(frame.payload))
    return entry if is_possible(entry) else None


BACK_AT_ONCE = 256
"""Blocks that are examined at once on the way back."""


def block_at(blocks: Blocks, t_ns: int) -> int:
    """The first block that reaches up to `t_ns`; the number of blocks where none does."""
    return int(np.searchsorted(blocks.last_ns, t_ns))


def steps_back(blocks: Blocks, stop: int, steps: int) -> int:
    """The block at which about the last `steps` steps before block `stop` begin.

    A restarted run counts its steps from 0 again, so it is progress that is added up, not step numbers.
    """
    back, lowest = 0, None
    while stop > 0:
        begin = max(0, stop - BACK_AT_ONCE)
        # As lists of numbers: numpy has a cost for each single access.
        firsts, lasts = blocks.first_step[begin:stop].tolist(), blocks.last_step[begin:stop].tolist()
        for index in range(stop - begin - 1, -1, -1):
            first, last = firsts[index], lasts[index]
            if first == NO_STEP:
                continue
            # Steps above later ones are of a run before its restart: then all of the block counts.
            back += last - first + 1 if lowest is None or first > lowest else lowest - first
            lowest = first
            if back >= steps:
                return begin + index
        stop = begin
    return 0


def count_steps(blocks: Blocks) -> int:
    """About how many steps these blocks hold, over all restarts."""
    holds_steps = blocks.first_step != NO_STEP
    first, last = blocks.first_step[holds_steps], blocks.last_step[holds_steps]
    if not len(first):
        return 0
    restarts = np.diff(last) < 0
    return int(last[0] - first[0] + 1 + np.where(restarts, 0, np.diff(last)).sum() + last[1:][restarts].sum())


def block_of_step(blocks: Blocks, step: int) -> int | None:
    """The last block that holds this step: there the slowest rank reports it, after the last restart.

    Where none holds it (lost, or thinned out): the last block before it. None: all steps come later.
    """
    holds_steps = blocks.first_step != NO_STEP
    holding = np.flatnonzero(holds_steps & (blocks.first_step <= step) & (blocks.last_step >= step))
    if len(holding):
        return int(holding[-1])
    below = np.flatnonzero(holds_steps & (blocks.last_step < step))
    return int(below[-1]) if len(below) else None


QUIET_S = 90.0
"""A file that is followed is being written while it has grown in so long: a network file system may show a
size that is a minute old."""


class Extent:
    """What is known of one file, as of the last `refresh`."""

    def __init__(self, descriptor: int, *, follow: bool = False) -> None:
        """Read it for the first time. The descriptor is the caller's to close. Raises OSError.

        `follow`: the writer may be on another host, which has a lock that is not seen here.
        """
        self._descriptor = descriptor
        self._follow = follow
        self.size = 0
        """Bytes."""
        self._grown_s = time.monotonic()
        self.first_step: int | None = None
        """Lowest step number in it; None: it holds no step."""
        self.last_step: int | None = None
        self._read_size()
        self.contents = load_contents(descriptor, self.size)
        self._note_steps(self.contents.blocks)
        self._note_growth(0)

    def refresh(self) -> None:
        """Read what was written since."""
        before = self.size
        self._read_size()
        n_known = len(self.contents.blocks)
        self.contents = extend_contents(self.contents, self._descriptor, self.size)
        self._note_steps(self.contents.blocks.slice_blocks(n_known, len(self.contents.blocks)))
        self._note_growth(before)

    def _read_size(self) -> None:
        # Before the size: a writer that ends in between has written all of that size.
        self.growing = is_being_written(self._descriptor)
        """A writer holds it; where the file is followed: it has grown lately, and was not closed."""
        if self._follow:  # NFS asks its server for the size of a file when that is opened
            with suppress(OSError):
                os.close(os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC))
        self.size = os.fstat(self._descriptor).st_size

    def _note_growth(self, before: int) -> None:
        now_s = time.monotonic()
        self._grown_s = now_s if self.size != before else self._grown_s
        self.may_grow = self.growing or (self._follow and not self.contents.closed)
        """More may follow, also after a long pause."""
        self.growing = self.growing or (self.may_grow and now_s - self._grown_s < QUIET_S)

    def _note_steps(self, added: Blocks) -> None:
        steps = added.first_step != NO_STEP
        if steps.any():
            first, last = int(added.first_step[steps].min()), int(added.last_step[steps].max())
            self.first_step = first if self.first_step is None else min(first, self.first_step)
            self.last_step = last if self.last_step is None else max(last, self.last_step)

    def describe_damage(self, reader: BlockReader) -> str | None:
        """What of the file could not be read, or only after a correction, as text; None: nothing.

        `reader` knows of the blocks that were read so far.
        """
        contents = self.contents
        parts = []
        torn = self.size - contents.end - (FOOTER_BYTES if contents.closed else 0)
        if contents.broken:
            parts.append("its index is damaged: the blocks were searched for")
        if contents.damaged:
            parts.append(f"{contents.damaged:,} bytes in the middle are damaged")
        if reader.unreadable:
            lost = f", {reader.lost:,} messages are missing" if reader.lost else ""
            parts.append(f"{reader.unreadable:,} of {len(contents.blocks):,} blocks cannot be read{lost}")
        if reader.corrected:
            blocks = "a block" if reader.corrected == 1 else f"{reader.corrected:,} blocks"
            parts.append(f"a wrong bit in {blocks} was put right")
        if torn > 0 and not self.growing:
            parts.append(f"the last {torn:,} bytes are cut off or damaged")
        elif not contents.closed and not self.growing:
            parts.append("it was never closed: its last moments may be missing")
        return "; ".join(parts) or None
