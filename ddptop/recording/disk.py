"""A file that is only appended to, the thread that syncs it to the disk, and how it is opened for reading."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddptop.recording.format import MAGIC, RecordingError, read_frame

SYNC_EVERY_S = 5.0
"""What a crash of the machine may cost; a crash of the collector costs nothing that was written."""

COPY_BYTES = 1 << 20
"""Of a deleted file, at a time."""

LOCK_PATIENCE_S = 0.2
"""A reader that asks whether the file is being written holds its lock for microseconds."""


def numbered(path: Path) -> Iterator[Path]:
    """The path, then `NAME-2`, `NAME-3` ...: for a file that shall not be written over."""
    yield path
    for number in itertools.count(2):
        yield path.with_stem(f"{path.stem}-{number}")


class AppendFile:
    """The recording as its writer holds it: locked, 0600, whole frames only."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Create it, or with `resume` go on with it.

        Raises OSError, and RecordingError for a file that is not ours to write. A file that is there is never
        written over: FileExistsError, unless there is nothing in it yet and nobody else is writing it.
        """
        self.descriptor, is_new = _open(path)
        try:
            self._take(path, resume)
        except BaseException:
            if is_new:  # nothing could be written: no empty file is left
                with suppress(OSError):
                    path.unlink()
            os.close(self.descriptor)
            raise
        self._dirty = False
        self._closing = threading.Event()
        self.sync_error: OSError | None = None
        self._thread = threading.Thread(target=self._sync_loop, name="ddptop-fsync", daemon=True)
        self._thread.start()

    def _take(self, path: Path, resume: bool) -> None:
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise RecordingError(f"{path} is no regular file")
        try:
            _lock(self.descriptor, path)
        except RecordingError as error:
            if resume:
                raise
            raise FileExistsError(errno.EEXIST, str(error), str(path)) from None
        self.size = os.fstat(self.descriptor).st_size
        head = os.pread(self.descriptor, len(MAGIC), 0)
        if not MAGIC.startswith(head):
            # A mistake in --ddptop-record must not overwrite another file.
            raise RecordingError(f"{path} exists and is not a recording of this version: not overwritten")
        if not resume and self.size > len(MAGIC):
            raise FileExistsError(errno.EEXIST, "exists already", str(path))
        os.fchmod(self.descriptor, 0o600)
        if not resume or head != MAGIC:
            self.truncate(0)
            self.append(MAGIC)

    def append(self, data: bytes) -> None:
        """Write all of it or, on an OSError, nothing: the file is cut back to where it was."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError:
            self.truncate(self.size)
            raise
        self.size += len(data)
        self._dirty = True

    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self.descriptor).st_nlink == 0

    def restore(self, path: Path) -> None:
        """Write a deleted file anew, from what this process still holds of it.

        Raises OSError, also where there is another file by now, and RecordingError.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            _lock(descriptor, path)
            at = 0
            while data := os.pread(self.descriptor, COPY_BYTES, at):
                at += os.write(descriptor, data)
            os.dup2(descriptor, self.descriptor, inheritable=False)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file off. Raises OSError."""
        os.ftruncate(self.descriptor, size)
        self.size = size

    def close(self) -> None:
        """Sync it to the disk and close it."""
        self._closing.set()
        self._thread.join()
        os.close(self.descriptor)

    def _sync_loop(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(SYNC_EVERY_S)
            if self._dirty:
                self._dirty = False
                try:
                    os.fdatasync(self.descriptor)
                except OSError as error:
                    self.sync_error = error


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether the file was made for it.

    Never through a link: another user may have laid one there."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags), False


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RecordingError(f"{path} is being written by another process") from None
            time.sleep(0.005)


def is_being_written(descriptor: int) -> bool:
    """Whether a writer holds the file now. False on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


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
