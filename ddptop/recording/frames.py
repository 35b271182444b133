"""Reading frames from a file that may be cut off, damaged, or written to at this moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from ddptop.recording.format import HEADER, MAGIC, MAX_PAYLOAD, SYNC, is_whole

READ_AHEAD = 8 * 1024
"""One read gets the header and all of a small frame: a slow run flushes a few steps at a time."""
SEARCH_BYTES = 1 << 20
"""Piece of the file in which the next sync is searched."""


class Frame(NamedTuple):
    """A whole frame, its checksum verified."""

    offset: int
    kind: int
    sequence: int
    payload: bytes

    @property
    def end(self) -> int:
        """Offset of what follows it."""
        return self.offset + HEADER.size + len(self.payload)


def read_frame(descriptor: int, offset: int) -> Frame | None:
    """The frame at this offset; None where there is no whole one. Raises OSError."""
    data = os.pread(descriptor, READ_AHEAD, offset)
    if len(data) < HEADER.size:
        return None
    sync, kind, _flags, _reserved, length, sequence, crc = HEADER.unpack_from(data)
    if sync != SYNC or length > MAX_PAYLOAD:
        return None
    end = HEADER.size + length
    if end > len(data):
        data += os.pread(descriptor, end - len(data), offset + len(data))
    payload = data[HEADER.size : end]
    if len(payload) < length or not is_whole(data[: HEADER.size], payload, crc):
        return None
    return Frame(offset, kind, sequence, payload)


def walk(descriptor: int, offset: int, end: int) -> Iterator[Frame]:
    """All whole frames that begin in offset..end, in order; what lies between them is no frame.

    A caller finds damage by comparing each frame's offset with the end of the one before it.
    """
    while offset < end:
        found = read_frame(descriptor, offset)
        if found is None:
            following = _next_sync(descriptor, offset + 1, end)
            if following is None:
                return
            offset = following
        else:
            yield found
            offset = found.end


def _next_sync(descriptor: int, offset: int, end: int) -> int | None:
    while offset < end:
        data = os.pread(descriptor, min(SEARCH_BYTES, end + len(SYNC) - 1 - offset), offset)
        at = data.find(SYNC)
        if at >= 0:
            return offset + at
        if len(data) < len(SYNC):
            return None
        offset += len(data) - len(SYNC) + 1
    return None


def last_of_kind(descriptor: int, kind: int, end: int) -> Frame | None:
    """The last whole frame of a kind that begins before `end`, found backwards from there."""
    pattern = SYNC + bytes([kind])
    while end > len(MAGIC):
        start = max(len(MAGIC), end - SEARCH_BYTES)
        data = os.pread(descriptor, end - start + len(pattern) - 1, start)
        at = data.rfind(pattern)
        while at >= 0:
            found = read_frame(descriptor, start + at)
            if found is not None:
                return found
            at = data.rfind(pattern, 0, at + len(pattern) - 1)
        end = start
    return None
