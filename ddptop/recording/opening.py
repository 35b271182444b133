"""Opening a file only where it is a recording that this version reads."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from ddptop.recording.format import MAGIC, RecordingError

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
    if head == MAGIC:
        return
    if not head:
        raise RecordingError(f"{path} is empty")
    if head[:-1] == MAGIC[:-1]:
        raise RecordingError(f"{path} has format {head[-1]}, this ddptop reads format {MAGIC[-1]}")
    raise RecordingError(f"{path} is not a ddptop recording")
