"""Opening a file only where it is a recording that this version reads."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ddptop.recording.format import MAGIC, RecordingError
from ddptop.recording.frames import read_frame

if TYPE_CHECKING:
    from pathlib import Path


def open_recording(path: Path) -> int:
    """A descriptor of the recording, for reading. Raises OSError; RecordingError when it is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(descriptor: int, path: Path) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    head = os.read(descriptor, len(MAGIC)) if stat.S_ISREG(mode) else b"?"
    if head == MAGIC or _has_wrong_bit(descriptor, head):
        return
    if not head:
        raise RecordingError(f"{path} is empty")
    if head[:-1] == MAGIC[:-1]:
        raise RecordingError(f"{path} has format {head[-1]}, this ddptop reads format {MAGIC[-1]}")
    raise RecordingError(f"{path} is not a ddptop recording")


def _has_wrong_bit(descriptor: int, head: bytes) -> bool:
    """Whether a whole frame follows what is MAGIC but for one bit, which is not in the version."""
    if len(head) < len(MAGIC) or head[-1] != MAGIC[-1]:
        return False
    wrong = (int.from_bytes(head, "little") ^ int.from_bytes(MAGIC, "little")).bit_count()
    return wrong == 1 and read_frame(descriptor, len(MAGIC)) is not None
