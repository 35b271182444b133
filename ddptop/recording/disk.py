"""A file that is only appended to, the thread that syncs it to the disk, and how it is opened for reading."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import resource
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from ddptop.recording.format import MAGIC, RecordingError, read_frame

SYNC_EVERY_S = 5.0
"""What a crash of the machine may cost; a crash of the collector costs nothing that was written."""

COPY_BYTES = 1 << 20
"""Bytes of a deleted file that are copied at a time."""

END_ROOM_BYTES = 32 << 10
"""Room on the disk that is kept for the end of a recording: how the run ended, and why the recording stopped.
The BYEs, exits and errors of a few ranks take some kilobytes. On a disk with less room less is kept."""

ALLOCATED_AHEAD_BYTES = 64 << 10
"""Blocks are taken from the disk so many bytes ahead, so that not every write has to ask for them."""

NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota of the disk is used up",
    errno.EFBIG: "the file may not grow any more (ulimit -f)",
}
"""By error number: what a disk without room says to a person."""

LOCK_PATIENCE_S = 0.2
"""A reader that asks whether the file is being written holds its lock for microseconds."""


def numbered_paths(path: Path) -> Iterator[Path]:
    """The path, then `NAME-2`, `NAME-3` ...: for a file that shall not be written over."""
    yield path
    for number in itertools.count(2):
        yield path.with_stem(f"{path.stem}-{number}")


def file_size_limit() -> int:
    """Bytes that a file of this process may have at most (`ulimit -f`); a very large number: no limit."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 62


def describe_disk_error(error: OSError) -> str:
    """Why the disk does not take what is written, in a few words."""
    return NO_ROOM.get(error.errno or 0) or error.strerror or os.strerror(error.errno or 0)


class KeptRoom:
    """Room on the disk behind the end of a file, which other processes that fill the disk do not get.

    The blocks are allocated without changing the size of the file, so that no reader sees them. A file system
    that cannot do so (NFS) has a file without a name hold as much, which is cut off when the room is needed.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._spare = -1
        """Descriptor of the file without a name; -1: there is none."""
        self._spare_bytes = 0
        self._allocated_to = 0
        """Offset up to which the file has blocks."""
        self._can_allocate = True
        self.bytes = END_ROOM_BYTES
        """How much is kept."""

    def take_room(self, size: int) -> None:
        """Take all of the room, or as much of it as there is, behind the first `size` bytes of the file."""
        self.bytes = END_ROOM_BYTES
        # By halves, so that a nearly full disk still keeps some room for the end.
        while self.bytes:
            with suppress(OSError):
                self.allocate_room(size, 0)
                return
            self.bytes //= 2

    def allocate_room(self, size: int, n_added: int) -> None:
        """Allocate blocks for `n_added` bytes behind the first `size` ones, and for the room behind those.

        Raises OSError where the disk has not so many.
        """
        if not self._can_allocate:
            self._fill_spare()
            return
        needed = n_added + self.bytes
        if size + needed <= self._allocated_to:
            return
        # First ahead; if the disk has not so much, at least what is needed now.
        for ahead in (ALLOCATED_AHEAD_BYTES, 0):
            try:
                allocate_blocks(self._descriptor, size, needed + ahead)
            except OSError as error:
                if error.errno in NO_ROOM and ahead:
                    continue
                if error.errno in NO_ROOM:
                    raise
                # Any other error means that this file system has no such call: a spare file then holds the
                # room.
                self._can_allocate = False
                self._fill_spare()
            else:
                self._allocated_to = size + needed + ahead
            return

    def forget_blocks(self, size: int) -> None:
        """Forget the blocks behind `size`, where the file was cut off: a file system may have given them
        back."""
        self._allocated_to = size

    def release_bytes(self, n_bytes: int) -> None:
        """Let go of so many bytes of the room, into which the caller is about to write."""
        if self._spare >= 0:
            self._spare_bytes = max(0, self._spare_bytes - n_bytes - SPARE_SLACK_BYTES)
            with suppress(OSError):
                os.ftruncate(self._spare, self._spare_bytes)

    def close(self) -> None:
        """Give back what a spare file holds; the file's own blocks go back when it is cut off."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _fill_spare(self) -> None:
        with suppress(OSError):
            if self._spare < 0:
                name = self._path.with_name(f".{self._path.name}.{os.getpid()}")
                self._spare = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                # Without a name nobody sees it, and the system removes it with this process.
                name.unlink()
            while self._spare_bytes < self.bytes:
                # Random bytes: a file system that compresses would keep no room for zeros.
                data = os.urandom(min(SPARE_SLACK_BYTES, self.bytes - self._spare_bytes))
                self._spare_bytes += os.pwrite(self._spare, data, self._spare_bytes)


SPARE_SLACK_BYTES = 8 << 10
"""Bytes of a spare file that are cut off beyond what is needed: file systems give room back in blocks."""

KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2): the blocks lie behind the end of the file."""


@cache
def _load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def allocate_blocks(descriptor: int, offset: int, length: int) -> None:
    """Have the disk keep blocks for this part of a file, whose size stays. Raises OSError.

    `os.posix_fallocate` would change the size.
    """
    offsets = ctypes.c_int64(offset), ctypes.c_int64(length)
    try:
        failed = _load_libc().fallocate(descriptor, KEEP_SIZE, *offsets)
    except (AttributeError, OSError):  # no such libc
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)) from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class AppendFile:
    """The recording as its writer holds it: locked, 0600, whole frames only."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Create it, or with `resume` go on with it.

        Raises OSError, and RecordingError for a file that is not ours to write. A file that is there is never
        written over: FileExistsError, unless there is nothing in it yet and nobody else is writing it.
        """
        # Opened before it is looked at, so that what is checked is what is written.
        self.descriptor, is_new = _open_or_create(path)
        self._room = KeptRoom(self.descriptor, path)
        try:
            self._take_over_file(path, resume)
        except BaseException:
            if is_new:  # nothing could be written: no empty file is left
                with suppress(OSError):
                    path.unlink()
            self._room.close()
            os.close(self.descriptor)
            raise
        self._room.take_room(self.size)
        self._dirty = False
        self._closing = threading.Event()
        self.sync_error: OSError | None = None
        self._thread = threading.Thread(target=self._sync_loop, name="ddptop-fsync", daemon=True)
        self._thread.start()

    def _take_over_file(self, path: Path, resume: bool) -> None:
        if not stat.S_ISREG(os.fstat(self.descriptor).st_mode):
            raise RecordingError(f"{path} is no regular file")
        try:
            # Before its content is looked at: another writer may just be at it.
            _lock_for_writing(self.descriptor, path)
        except RecordingError as error:
            # A new run takes another name then; a run that goes on must not.
            if resume:
                raise
            raise FileExistsError(errno.EEXIST, str(error), str(path)) from None
        self.size = os.fstat(self.descriptor).st_size
        head = os.pread(self.descriptor, len(MAGIC), 0)
        # A file that is shorter than MAGIC is one whose writer has only just begun.
        if not MAGIC.startswith(head):
            # A mistake in --ddptop-record must not overwrite another file.
            raise RecordingError(f"{path} exists and is not a recording of this version: not overwritten")
        # A file with MAGIC alone holds nothing of a run, and is begun anew.
        if not resume and self.size > len(MAGIC):
            raise FileExistsError(errno.EEXIST, "exists already", str(path))
        # The user's arguments and paths are in it: nobody else may read it.
        os.fchmod(self.descriptor, 0o600)
        if not resume or head != MAGIC:
            self.truncate(0)
            self.write_whole(MAGIC)

    @property
    def end_room_bytes(self) -> int:
        """How much `append_end` may write."""
        return self._room.bytes

    def renew_end_room(self) -> None:
        """The disk has room again: keep as much for the end as at the start."""
        self._room.take_room(self.size)

    def append_frame(self, data: bytes) -> None:
        """Write all of it or, on an OSError, nothing: the file is cut back to where it was."""
        # Blocks first: a disk that is full then says so before half a frame is written.
        self._room.allocate_room(self.size, len(data))
        self.write_whole(data)

    def append_end(self, data: bytes) -> None:
        """Append into the room that is kept for the end of the file."""
        self._room.release_bytes(len(data))
        self.write_whole(data)
        self._room.bytes = max(0, self._room.bytes - len(data))

    def write_whole(self, data: bytes) -> None:
        """Write all of it at the end or, on an OSError, nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError:
            # Half a frame at the end would make the frames behind it hard to find.
            if os.fstat(self.descriptor).st_size != self.size:
                self.truncate(self.size)
            raise
        self.size += len(data)
        self._dirty = True

    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self.descriptor).st_nlink == 0

    def write_anew(self, path: Path) -> None:
        """Write a deleted file anew, from what this process still holds of it.

        Raises OSError, also where there is another file by now, and RecordingError.
        """
        _make_folder_of(path)
        # O_EXCL: another run may have begun a file of this name meanwhile.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        try:
            _lock_for_writing(descriptor, path)
            n_copied = 0
            while data := os.pread(self.descriptor, COPY_BYTES, n_copied):
                n_copied += os.write(descriptor, data)
            # The number stays: the thread that syncs the file uses it, too.
            os.dup2(descriptor, self.descriptor, inheritable=False)
            self._room.forget_blocks(self.size)
        # Half a copy would be taken for the recording.
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def truncate(self, size: int) -> None:
        """Cut the file off. Raises OSError."""
        os.ftruncate(self.descriptor, size)
        self.size = size
        self._room.forget_blocks(size)
        with suppress(OSError):
            self._room.allocate_room(size, 0)

    def close(self) -> None:
        """Sync it to the disk and close it."""
        # Set before the join, so that the thread wakes at once and syncs what is left.
        self._closing.set()
        self._thread.join()
        with suppress(OSError):
            os.ftruncate(self.descriptor, self.size)  # gives back the room that was kept
        self._room.close()
        os.close(self.descriptor)

    def _sync_loop(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(SYNC_EVERY_S)
            if self._dirty:
                self._dirty = False
                try:
                    # What is written from here on has set the flag again.
                    os.fdatasync(self.descriptor)
                except OSError as error:
                    self.sync_error = error


def _open_or_create(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether the file was made for it. Its folder is made where there is none.

    Never through a link: another user may have laid one there."""
    _make_folder_of(path)
    # O_NONBLOCK: opening a pipe would wait for somebody at its other end.
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags), False


def _make_folder_of(path: Path) -> None:
    # Where a file has the folder's name, opening says so: FileExistsError would mean that this path is taken.
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _lock_for_writing(descriptor: int, path: Path) -> None:
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
        # Readers share the lock with each other, but with no writer.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def open_recording_file(path: Path) -> int:
    """A descriptor of the recording, for reading. Raises OSError; RecordingError when it is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_is_recording(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


UNPACKED_BY = {
    b"\x1f\x8b": "gunzip",
    b"PK\x03\x04": "unzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""What a compressed file begins with, as recordings are sent by mail."""


def _check_is_recording(descriptor: int, path: Path) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    head = os.read(descriptor, len(MAGIC)) if stat.S_ISREG(mode) else b"?"
    # One flipped bit in the first eight bytes would otherwise make all of the file unreadable.
    if head == MAGIC or _has_wrong_bit(descriptor, head):
        return
    if not head:
        raise RecordingError(f"{path} is empty")
    if head[:-1] == MAGIC[:-1]:
        # The last byte is the version.
        formats = f"has format {head[-1]}, this ddptop reads format {MAGIC[-1]}"
        raise RecordingError(f"{path} {formats}: install a newer ddptop")
    for begin, tool in UNPACKED_BY.items():
        if head.startswith(begin):
            raise RecordingError(f"{path} is compressed: unpack it first with {tool}")
    raise RecordingError(f"{path} is not a ddptop recording")


def _has_wrong_bit(descriptor: int, head: bytes) -> bool:
    """Whether a whole frame follows what is MAGIC but for one bit, which is not in the version."""
    if len(head) < len(MAGIC) or head[-1] != MAGIC[-1]:
        return False
    wrong = (int.from_bytes(head, "little") ^ int.from_bytes(MAGIC, "little")).bit_count()
    return wrong == 1 and read_frame(descriptor, len(MAGIC)) is not None
