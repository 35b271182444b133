"""The file format, and reading its frames from a file that may be damaged or still growing.

All numbers are little-endian.

    file    = MAGIC (8 bytes, the last one is the version), then frames to the end
    frame   = header (20 bytes), payload
    header  = sync 4, kind 1, flags 1, reserved 2, length of the payload 4, sequence 4, crc32 4

The crc is over the first 16 bytes of the header and the payload. Frames are numbered from 0 without a gap.
Kinds of frames:

    BLOCK   = summary (48 bytes), then zlib of concatenated records
    record  = msgpack [t_ns, rank, session, seq, body]: a `Received`, body = the message as on the wire
    INDEX   = offset of the INDEX before it (0: none), then (offset, summary) of each BLOCK since that one
    FOOTER  = offset of the last INDEX; last in a file that was closed, and nowhere else
    HISTORY = zlib of the group's history points, thinned out (`ddptop.recording.history`); it follows the
              INDEX whose blocks it is about, where the writer knew any. Earlier versions pass over it.
    COPY    = (offset, summary) of an earlier BLOCK, then zlib of those of its records without which the
              others mean nothing (HELLO, LAYOUT, ...): read where that BLOCK cannot be. Earlier versions pass
              over it.

A file without a FOOTER is still being written, or its writer was killed: what follows its last INDEX is
found by walking over the frames. What is damaged is skipped by searching for the next sync.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ddptop.protocol.limits import MAX_NS, MAX_ROWS, MAX_STEP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"DDPTOP\x00\x01"

SYNC = b"\xd7DR1"
"""Begins with a byte that no msgpack and no text begins with."""

HEADER = struct.Struct("<4sBBHIII")
# Of the header, what the crc covers besides the payload.
_CHECKED = HEADER.size - 4

BLOCK, INDEX, FOOTER, HISTORY, COPY = 1, 2, 3, 4, 5

MAX_PAYLOAD = 1 << 20
"""No frame of ours comes near it; a header that claims more is not believed."""
MAX_RAW = 1 << 20
"""Records of one block, decompressed: a block is closed at 64 kB, and one message has at most 64 KiB."""

MAX_OFFSET = 1 << 62
"""More than a file can have, and less than what the operating system takes for one."""

NO_STEP = -1


class RecordingError(Exception):
    """The file cannot be read as a recording, or not be written as one; the text is for a person."""


CLOCKS = 1 << 16
"""What a CLOCK counts in `BlockSummary.lasting`; a block has fewer records. Each agent sends one a second:
nearly every block has some, of which only the newest are of interest. 0.1.0 counted them as all others."""


class BlockSummary(NamedTuple):
    """What an index holds of a block, to find it without reading it."""

    first_ns: int
    last_ns: int
    first_step: int
    """Lowest step in it; NO_STEP: it holds no STEPS."""
    last_step: int
    records: int
    lasting: int
    """How many of the records hold from then on: all but STEPS, PROGRESS and USAGE. A CLOCK counts CLOCKS."""


class BlockEntry(NamedTuple):
    """A block of the file."""

    offset: int
    summary: BlockSummary


ENTRY_FIELDS = (
    *(("offset", "<u8"), ("first_ns", "<i8"), ("last_ns", "<i8"), ("first_step", "<i8")),
    *(("last_step", "<i8"), ("records", "<u4"), ("lasting", "<u4")),
)
"""An entry of an INDEX: its offset and its BlockSummary, as numpy names them."""

SUMMARY = struct.Struct("<qqqqII")
_ENTRY = struct.Struct("<QqqqqII")
_OFFSET = struct.Struct("<Q")
FOOTER_BYTES = HEADER.size + _OFFSET.size
SUMMARY_BYTES = SUMMARY.size


def pack_frame(kind: int, sequence: int, payload: bytes) -> bytes:
    """A whole frame."""
    # The number is cut to 32 bits: a file with more frames begins again at 0.
    head = HEADER.pack(SYNC, kind, 0, 0, len(payload), sequence & 0xFFFFFFFF, 0)[:_CHECKED]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def is_whole(header: bytes, payload: bytes, crc: int) -> bool:
    """Whether the checksum of a frame fits."""
    return zlib.crc32(payload, zlib.crc32(header[:_CHECKED])) == crc


def block_payload(summary: BlockSummary, records: bytes | memoryview) -> bytes:
    """Payload of a BLOCK. zlib at level 1: higher levels cost twice the CPU for a tenth of the size."""
    return SUMMARY.pack(*summary) + zlib.compress(records, 1)


def block_summary(payload: bytes) -> BlockSummary:
    """The summary in front of a BLOCK's payload."""
    return BlockSummary._make(SUMMARY.unpack_from(payload))


def is_possible(entry: BlockEntry) -> bool:
    """Whether a writer of ours can have made this entry: a checksum does not detect a forged file."""
    s = entry.summary
    steps = (s.first_step, s.last_step)
    return (
        len(MAGIC) <= entry.offset < MAX_OFFSET
        and 0 <= s.first_ns <= s.last_ns <= MAX_NS
        and (steps == (NO_STEP, NO_STEP) or 0 <= s.first_step <= s.last_step <= MAX_STEP + MAX_ROWS)
        # Each lasting record counts 1 and each CLOCK CLOCKS, so that both together are at most all records.
        and sum(divmod(s.lasting, CLOCKS)) <= s.records <= MAX_RAW
    )


def copy_payload(entry: BlockEntry, records: bytes) -> bytes:
    """Payload of a COPY of some records of this block."""
    return _ENTRY.pack(entry.offset, *entry.summary) + zlib.compress(records, 1)


def copy_content(payload: bytes) -> tuple[BlockEntry, bytes]:
    """The block that a COPY is of, and its records. Raises RecordingError."""
    if len(payload) < _ENTRY.size:
        raise RecordingError("a copy of a wrong length")
    offset, *summary = _ENTRY.unpack_from(payload)
    entry = BlockEntry(offset, BlockSummary._make(summary))
    if not is_possible(entry):
        raise RecordingError("a copy of a block that cannot be")
    return entry, block_records(payload, _ENTRY.size)


def block_records(payload: bytes, begin: int = SUMMARY.size) -> bytes:
    """The records of a BLOCK, decompressed. Raises RecordingError for what no writer of ours has made."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(payload[begin:], MAX_RAW)
    except zlib.error as error:
        raise RecordingError(f"a block does not decompress: {error}") from error
    # MAX_RAW was reached before the end: a few bytes may claim gigabytes.
    if not inflate.eof:
        raise RecordingError("a block is too large")
    return raw


def index_payload(before: int, entries: Iterable[BlockEntry]) -> bytes:
    """Payload of an INDEX; `before` is the offset of the INDEX before it, 0 for none."""
    packed = (_ENTRY.pack(entry.offset, *entry.summary) for entry in entries)
    return _OFFSET.pack(before) + b"".join(packed)


def index_content(payload: bytes) -> tuple[int, bytes]:
    """Offset of the INDEX before it, and the entries as they are packed. Raises RecordingError."""
    if len(payload) < _OFFSET.size or (len(payload) - _OFFSET.size) % _ENTRY.size:
        raise RecordingError("an index of a wrong length")
    (before,) = _OFFSET.unpack_from(payload)
    return before, payload[_OFFSET.size :]


def first_offset(packed: bytes) -> int:
    """Offset of the first block among packed entries."""
    return int(_OFFSET.unpack_from(packed)[0])


def footer_payload(index: int) -> bytes:
    """Payload of the FOOTER: where the last INDEX is."""
    return _OFFSET.pack(index)


def footer_content(payload: bytes) -> int:
    """Offset of the last INDEX. Raises RecordingError."""
    if len(payload) != _OFFSET.size:
        raise RecordingError("a footer of a wrong length")
    return int(_OFFSET.unpack(payload)[0])


READ_AHEAD = 8 * 1024
"""One read gets the header and all of a small frame: a slow run flushes a few steps at a time."""
SEARCH_BYTES = 1 << 20
"""Piece of the file in which the next sync is searched."""
SEARCHED_TIMES = 16
"""Damage is searched for whole frames until so many times its size was read."""
MAX_CORRECTED = 1 << 17
"""Largest frame in which a wrong bit is looked for; a block has 64 kB before it is compressed."""


class FileFrame(NamedTuple):
    """A whole frame, its checksum verified."""

    offset: int
    kind: int
    sequence: int
    payload: bytes

    @property
    def end(self) -> int:
        """Offset of what follows it."""
        return self.offset + HEADER.size + len(self.payload)


def read_frame(descriptor: int, offset: int) -> FileFrame | None:
    """The frame at this offset; None where there is no whole one. Raises OSError."""
    if not 0 <= offset < MAX_OFFSET:
        return None
    data = os.pread(descriptor, READ_AHEAD, offset)
    if len(data) < HEADER.size:
        return None
    sync, kind, _flags, _reserved, length, sequence, crc = HEADER.unpack_from(data)
    # A damaged length must not make us read gigabytes.
    if sync != SYNC or length > MAX_PAYLOAD:
        return None
    end = HEADER.size + length
    if end > len(data):
        data += os.pread(descriptor, end - len(data), offset + len(data))
    payload = data[HEADER.size : end]
    if len(payload) < length or not is_whole(data[: HEADER.size], payload, crc):
        return None
    return FileFrame(offset, kind, sequence, payload)


def walk_frames(descriptor: int, offset: int, end: int) -> Iterator[FileFrame]:
    """All whole frames that begin in offset..end, in order; what lies between them is no frame.

    A block with a single wrong bit is corrected. A caller finds other damage by comparing each frame's offset
    with the end of the one before it.
    """
    # Linear in the size of the damage: each false sync costs a read of up to MAX_PAYLOAD.
    bytes_to_search = SEARCHED_TIMES * (end - offset) + SEARCH_BYTES
    while offset < end:
        frame = read_frame(descriptor, offset)
        if frame is None:
            following, spent = _next_whole(descriptor, offset + 1, end, bytes_to_search)
            bytes_to_search -= spent
            # The next whole frame says where the damaged one ends.
            frame = correct_frame(descriptor, offset, end if following is None else following.offset)
            if frame is not None:
                yield frame
            if following is None:
                return
            frame = following
        yield frame
        offset = frame.end


def read_corrected(descriptor: int, offset: int, size: int) -> FileFrame | None:
    """The block at this offset of a file of so many bytes, where its frame has a single wrong bit."""
    end = min(size, offset + HEADER.size + MAX_CORRECTED)
    following, _ = _next_whole(descriptor, offset + 1, end, SEARCHED_TIMES * SEARCH_BYTES)
    return correct_frame(descriptor, offset, size if following is None else following.offset)


def _next_whole(descriptor: int, offset: int, end: int, most: int) -> tuple[FileFrame | None, int]:
    """The next whole frame that begins in offset..end, and how many bytes were read to find it.

    None also after `most` bytes: a file that claims a large frame at every step must not take unbounded time.
    """
    spent = 0
    while spent <= most:
        sync_offset = _next_sync(descriptor, offset, end)
        if sync_offset is None:
            break
        frame = read_frame(descriptor, sync_offset)
        if frame is not None:
            return frame, spent
        head = os.pread(descriptor, HEADER.size, sync_offset)
        claimed = HEADER.unpack(head)[4] if len(head) == HEADER.size else 0
        # Counted by what it claims: that is what was read for nothing.
        spent += READ_AHEAD + min(claimed, MAX_PAYLOAD)
        offset = sync_offset + 1
    return None, spent


def correct_frame(descriptor: int, offset: int, end: int) -> FileFrame | None:
    """The BLOCK or COPY in offset..end with one bit corrected; None where more is wrong with it.

    A CRC-32 differs by another value for every single bit of a message of up to 2^32 bits, so the difference
    says which bit it was. zlib's own checksum of the records then verifies that this was all.
    """
    length = end - offset - HEADER.size
    if not 0 <= length <= MAX_CORRECTED - HEADER.size or not 0 <= offset < MAX_OFFSET:
        return None
    data = bytearray(os.pread(descriptor, end - offset, offset))
    if len(data) != end - offset:
        return None
    sync, *_, claimed, _, crc = HEADER.unpack_from(data)
    wrong = (int.from_bytes(sync, "little") ^ int.from_bytes(SYNC, "little")).bit_count() + (
        # One wrong bit in all is allowed, in the sync, in the length, or behind them.
        claimed ^ length
    ).bit_count()
    # Where the frame begins and ends is known, and with it these two fields.
    data[:4], data[8:12] = SYNC, length.to_bytes(4, "little")
    difference = zlib.crc32(data[HEADER.size :], zlib.crc32(data[: HEADER.size - 4])) ^ crc
    if wrong > 1 or (wrong and difference):
        return None
    if difference.bit_count() > 1:  # else it was the sync, the length or the crc itself
        import numpy as np

        checked = len(data) - 4
        places = np.flatnonzero(_crc_changes_by_bit()[: 8 * checked] == difference)
        if not len(places):
            return None
        # The table counts from the last byte; the crc's own four bytes are not part of the message.
        back, bit = divmod(int(places[0]), 8)
        byte_index = checked - 1 - back
        data[byte_index if byte_index < HEADER.size - 4 else byte_index + 4] ^= 1 << bit
    _, kind, _, _, _, sequence, _ = HEADER.unpack_from(data)
    payload = bytes(data[HEADER.size :])
    try:
        if kind == BLOCK:
            block_records(payload)
        elif kind == COPY:
            copy_content(payload)
        else:
            return None
    except RecordingError:
        return None
    return FileFrame(offset, kind, sequence, payload)


@cache
def _crc_changes_by_bit() -> NDArray[np.uint32]:
    """By how much the CRC-32 of a message changes with each of its bits, the bits of its last byte first.

    A byte that is followed by others changes it as its table entry does, shifted through so many zero bytes;
    shifting is linear, so each round shifts all that is known so far.
    """
    import numpy as np  # only for a damaged file: an agent writes recordings and does without

    table = [zlib.crc32(bytes([value])) ^ zlib.crc32(b"\0") for value in range(256)]
    changes = np.array([table[1 << bit] for bit in range(8)], np.uint32)
    shift = np.array([((1 << bit) >> 8) ^ table[(1 << bit) & 255] for bit in range(32)], np.uint32)
    while len(changes) < 8 * MAX_CORRECTED:
        changes = np.concatenate([changes, _shift_crcs(changes, shift)])
        shift = _shift_crcs(shift, shift)
    return changes


def _shift_crcs(values: NDArray[np.uint32], shift: NDArray[np.uint32]) -> NDArray[np.uint32]:
    import numpy as np

    total = np.zeros_like(values)
    numbers = np.arange(256)
    for first in (0, 8, 16, 24):
        table: NDArray[np.uint32] = np.zeros(256, np.uint32)
        for bit in range(8):
            table[numbers >> bit & 1 == 1] ^= shift[first + bit]
        total ^= table[values >> np.uint32(first) & np.uint32(255)]
    return total


def _next_sync(descriptor: int, offset: int, end: int) -> int | None:
    while offset < end:
        # A sync may lie across two pieces: they overlap by all but one of its bytes.
        data = os.pread(descriptor, min(SEARCH_BYTES, end + len(SYNC) - 1 - offset), offset)
        position = data.find(SYNC)
        if position >= 0:
            return offset + position
        if len(data) < len(SYNC):
            return None
        offset += len(data) - len(SYNC) + 1
    return None


def last_of_kind(descriptor: int, kind: int, end: int) -> FileFrame | None:
    """The last whole frame of a kind that begins before `end`, found backwards from there."""
    # Kind and sync together: fewer places to look at than the sync alone.
    pattern = SYNC + bytes([kind])
    while end > len(MAGIC):
        start = max(len(MAGIC), end - SEARCH_BYTES)
        data = os.pread(descriptor, end - start + len(pattern) - 1, start)
        position = data.rfind(pattern)
        while position >= 0:
            frame = read_frame(descriptor, start + position)
            if frame is not None:
                return frame
            position = data.rfind(pattern, 0, position + len(pattern) - 1)
        end = start
    return None
