"""What an agent records itself while it does not reach the collector: a recording of this host's ranks.

It is a `.ddptop` file like any other, in the folder of recordings, named after run and host. The agent reads
back from it what it no longer has in memory, and deletes it once the collector has acked all of it.
`ddptop merge` completes the run's recording from one that is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import Received
from ddptop.recording.disk import numbered_paths
from ddptop.recording.format import BLOCK, MAGIC, RecordingError, block_records, walk_frames
from ddptop.recording.records import record_unpacker
from ddptop.recording.writer import Writer

if TYPE_CHECKING:
    from ddptop.protocol.messages import Run


class Kept(NamedTuple):
    """A message on its way to the collector."""

    t_ns: int
    """By this host's clock: when the agent received it."""
    rank: int
    """-1: the agent itself."""
    session: int
    seq: int
    """0: not numbered, not acked."""
    body: bytes
    """Encoded message."""


class LocalRecording:
    """One file, from the first message until `delete_file`. Errors of the disk are noted as text."""

    def __init__(self, path: Path, *, limit_bytes: int, resume: bool = False) -> None:
        """`resume`: continue the file of an agent before this one; all of it is unread.

        Raises OSError or RecordingError where the file cannot be opened.
        """
        self._writer = _open_writer(path, limit_bytes, resume=resume)
        self.path = self._writer.path
        # A descriptor of its own for reading: it keeps the file also where somebody deletes it.
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._read_to = len(MAGIC)
        """Up to where the file has been read."""

    @property
    def trouble_note(self) -> str | None:
        """What is wrong with it, for a person."""
        return self._writer.note

    @property
    def missing_rows(self) -> int:
        """Step records that are not in it for lack of room: on the disk, or below its limit."""
        return self._writer.unwritten + self._writer.left_out

    @property
    def without_detail(self) -> int:
        """Step records that are in it without their bucket detail, for want of room."""
        return self._writer.without_detail

    @property
    def is_failing(self) -> bool:
        """Whether the disk takes nothing at present, or the file was deleted."""
        return self._writer.fails

    @property
    def is_removed(self) -> bool:
        """Whether it was deleted for good; its content is lost."""
        return self._writer.removed

    @property
    def is_safe(self) -> bool:
        """Whether all that was added is in the file."""
        return not self.is_failing and self._writer.buffered == 0

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return os.fstat(self._descriptor).st_size

    def add_message(self, kept: Kept) -> None:
        """Add a message; one that this version cannot decode is left out."""
        with suppress(ProtocolError):
            self._writer.add(Received(*kept[:4], decode(kept.body)), kept.body)

    def add_run(self, run: Run, now_ns: int) -> None:
        """Add the RUN message that every recording begins with; once more at the end of the run."""
        self._writer.add(Received(now_ns, -1, 0, 0, run), encode(run))

    def write_due(self, now_ns: int) -> None:
        """Write what is due."""
        self._writer.write_due(now_ns)

    def write_all(self) -> None:
        """Write everything."""
        self._writer.flush()

    def skip_to_end(self) -> None:
        """Do not read back what is in the file up to here."""
        self._writer.flush()
        self._read_to = self.size_bytes

    def read_next(self) -> list[Kept] | None:
        """The messages of the next block that was not read yet; None at the end of the file."""
        self._writer.flush()
        for frame in walk_frames(self._descriptor, self._read_to, self.size_bytes):
            self._read_to = frame.end
            if frame.kind == BLOCK:
                # A block that is damaged is passed; the next one is behind it.
                with suppress(RecordingError):
                    return list(_messages_of_block(block_records(frame.payload)))
        return None

    def check_file(self) -> None:
        """Write the file again where it was deleted by somebody else; to be called once a second."""
        self._writer.restore_if_deleted()
        # The writer has begun another file of the same name: what is read back must come from that one.
        if os.fstat(self._descriptor).st_nlink == 0 and not self.is_removed:
            os.close(self._descriptor)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self) -> None:
        """Write its end and close it."""
        self._writer.close()
        os.close(self._descriptor)

    def delete_file(self) -> None:
        """Delete it: the collector has all of it."""
        with suppress(OSError):
            # Not a file that somebody has put in its place meanwhile.
            if os.path.samestat(self.path.stat(), os.fstat(self._descriptor)):
                self.path.unlink()
        self._writer.abandon()
        os.close(self._descriptor)


def _open_writer(path: Path, limit_bytes: int, *, resume: bool) -> Writer:
    # An earlier run of the same name may have left one.
    for name in numbered_paths(path):
        with suppress(FileExistsError):
            return Writer(name, limit_bytes=limit_bytes, resume=resume)
    raise AssertionError("there is always another number")


def _messages_of_block(records: bytes) -> Iterator[Kept]:
    """The messages of a block, still encoded; not those of the agent's own recording (session 0)."""
    record: Any
    with suppress(ValueError, TypeError, msgpack.UnpackException):
        for record in record_unpacker(records):
            kept = Kept(*record)
            if kept.session:
                yield kept
