"""The file format, in one place. All numbers little-endian.

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
              others say nothing (HELLO, LAYOUT, ...): read where that BLOCK cannot be. Earlier versions pass
              over it.

A file without a FOOTER is still being written, or its writer was killed: what follows its last INDEX is
found by walking over the frames. What is damaged is skipped by searching for the next sync.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from ddptop.protocol.limits import MAX_NS, MAX_ROWS, MAX_STEP

MAGIC = b"DDPTOP\x00\x01"

SYNC = b"\xd7DR1"
"""Begins with a byte that no msgpack and no text begins with."""

HEADER = struct.Struct("<4sBBHIII")
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


class Summary(NamedTuple):
    """What an index tells of a block without reading it."""

    first_ns: int
    last_ns: int
    first_step: int
    """Lowest step in it; NO_STEP: it holds no STEPS."""
    last_step: int
    records: int
    lasting: int
    """How many of the records matter for ever after: all but STEPS, PROGRESS and USAGE."""


class Entry(NamedTuple):
    """A block of the file."""

    offset: int
    summary: Summary


ENTRY_FIELDS = (
    *(("offset", "<u8"), ("first_ns", "<i8"), ("last_ns", "<i8"), ("first_step", "<i8")),
    *(("last_step", "<i8"), ("records", "<u4"), ("lasting", "<u4")),
)
"""An entry of an INDEX: its offset and its Summary, as numpy names them."""

_SUMMARY = struct.Struct("<qqqqII")
_ENTRY = struct.Struct("<QqqqqII")
_OFFSET = struct.Struct("<Q")
FOOTER_BYTES = HEADER.size + _OFFSET.size
SUMMARY_BYTES = _SUMMARY.size


def frame(kind: int, sequence: int, payload: bytes) -> bytes:
    """A whole frame."""
    head = HEADER.pack(SYNC, kind, 0, 0, len(payload), sequence & 0xFFFFFFFF, 0)[:_CHECKED]
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


def is_whole(header: bytes, payload: bytes, crc: int) -> bool:
    """Whether the checksum of a frame fits."""
    return zlib.crc32(payload, zlib.crc32(header[:_CHECKED])) == crc


def block_payload(summary: Summary, records: bytes) -> bytes:
    """Payload of a BLOCK. zlib at level 1: higher levels cost twice the CPU for a tenth of the size."""
    return _SUMMARY.pack(*summary) + zlib.compress(records, 1)


def block_summary(payload: bytes) -> Summary:
    """The summary in front of a BLOCK's payload."""
    return Summary._make(_SUMMARY.unpack_from(payload))


def is_possible(entry: Entry) -> bool:
    """Whether a writer of ours can have made this entry: a checksum tells of accidents, not of intent."""
    s = entry.summary
    steps = (s.first_step, s.last_step)
    return (
        len(MAGIC) <= entry.offset < MAX_OFFSET
        and 0 <= s.first_ns <= s.last_ns <= MAX_NS
        and (steps == (NO_STEP, NO_STEP) or 0 <= s.first_step <= s.last_step <= MAX_STEP + MAX_ROWS)
        and s.lasting <= s.records <= MAX_RAW
    )


def copy_payload(entry: Entry, records: bytes) -> bytes:
    """Payload of a COPY of some records of this block."""
    return _ENTRY.pack(entry.offset, *entry.summary) + zlib.compress(records, 1)


def copy_content(payload: bytes) -> tuple[Entry, bytes]:
    """The block that a COPY is of, and its records. Raises RecordingError."""
    if len(payload) < _ENTRY.size:
        raise RecordingError("a copy of a wrong length")
    offset, *summary = _ENTRY.unpack_from(payload)
    entry = Entry(offset, Summary._make(summary))
    if not is_possible(entry):
        raise RecordingError("a copy of a block that cannot be")
    return entry, block_records(payload, _ENTRY.size)


def block_records(payload: bytes, begin: int = _SUMMARY.size) -> bytes:
    """The records of a BLOCK, decompressed. Raises RecordingError for what no writer of ours has made."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(payload[begin:], MAX_RAW)
    except zlib.error as error:
        raise RecordingError(f"a block does not decompress: {error}") from error
    if not inflate.eof:
        raise RecordingError("a block is too large")
    return raw


def index_payload(before: int, entries: Iterable[Entry]) -> bytes:
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
