"""Writing a recording. Whatever the disk does, the caller only ever sees a note."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event, Hello, Received, Steps
from ddptop.recording.disk import AppendFile
from ddptop.recording.format import (
    BLOCK,
    COPY,
    FOOTER,
    HISTORY,
    INDEX,
    MAX_PAYLOAD,
    Entry,
    RecordingError,
    block_payload,
    copy_payload,
    footer_payload,
    frame,
    index_payload,
)
from ddptop.recording.index import load
from ddptop.recording.past import Past, past_payload
from ddptop.recording.records import BlockBuilder
from ddptop.recording.thinning import Thinner

FLUSH_BYTES = 64 * 1024
FLUSH_NS = 250_000_000
"""A crash of the collector costs at most this much; ranks send it again."""

INDEX_BLOCKS = 256
INDEX_BYTES = 4 << 20
"""What a reader has to walk over at the end of a file that was not closed."""


class PastTeller(Protocol):
    """Knows the group's history, which the messages alone would take long to tell."""

    def take(self, *, final: bool) -> Past | None:
        """What was added since the last time; None for nothing. `final`: there will be no other time."""


class Writer:
    """Appends messages to a recording. Not thread-safe; one writer to a file."""

    def __init__(self, path: Path, *, limit_bytes: int, resume: bool = False) -> None:
        """Begin a file, or with `resume` go on with one: its torn end is cut off.

        `limit_bytes`: size past which the recording thins itself. Raises OSError where the file cannot be
        opened, RecordingError where it holds something else or has another writer.
        """
        self.note: str | None = None
        """Why it stopped, or what it leaves out, for a person."""
        self.past: PastTeller | None = None
        """Asked whenever an INDEX is written."""
        self._file: AppendFile | None = AppendFile(path, resume=resume)
        self._block = BlockBuilder()
        self._thinner = Thinner(limit_bytes)
        self._unindexed: list[Entry] = []
        self._to_copy: tuple[Entry, bytes] | None = None
        """The block written last, and what of it is to be kept twice."""
        self._last_index = self._sequence = 0
        self._final_size = 0
        self._path = path
        self._restored = False
        self.removed = False
        """Somebody has deleted the file: what was in it is gone."""
        try:
            self._take_up(self._file)
        except BaseException:
            self._file.close()
            raise

    def _take_up(self, file: AppendFile) -> None:
        """Stand behind the last whole frame."""
        contents = load(file.descriptor, file.size)
        file.truncate(contents.end)
        count = len(contents.blocks)
        self._unindexed = [*contents.blocks.part(count - contents.unindexed, count)]
        self._last_index, self._sequence = contents.last_index, contents.next_sequence
        self._indexed_to = contents.last_index
        self._thinner.look(file.size)
        self.note = self._thinner.note

    @property
    def bytes_written(self) -> int:
        """Size of the file."""
        return self._final_size if self._file is None else self._file.size

    @property
    def buffered(self) -> int:
        """Bytes that were added and are not in the file yet; 0 once it has stopped."""
        return self._block.bytes

    def add(self, received: Received, body: bytes) -> None:
        """Keep a message; `body` is its encoded form. Buffered, never raises OSError."""
        if self._file is None:
            return
        if isinstance(received.message, Hello):
            self.flush()  # a restarted rank counts from 0 again: no block holds steps of both its lives
        if self._thinner.thins and isinstance(received.message, Steps):
            for steps in self._thinner.thin(received.message):
                self._block.add(replace(received, message=steps), encode(steps))
        else:
            self._block.add(received, body)
        if self._block.bytes >= FLUSH_BYTES:
            self.flush()

    def tick(self, now_ns: int) -> None:
        """Write what is due at this moment of the collector's clock."""
        if self._block.bytes and now_ns - self._block.first_ns >= FLUSH_NS:
            self.flush()
        if self._file is not None and self._file.sync_error is not None:
            self._stop(self._file.sync_error)

    def look(self) -> None:
        """Write the file anew where somebody has deleted it: once, for who does it again means it."""
        if self._file is None or not self._file.is_deleted():
            return
        reason = "it was deleted again"
        if not self._restored:
            self._restored = True
            try:
                self._file.restore(self._path)
            except (OSError, RecordingError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            else:
                self.note = "the recording was deleted while it was written, and has been written anew"
                return
        self.removed = True
        self.note = f"the recording was deleted while it was written, and nothing is recorded now: {reason}"
        self._let_go(self._file)

    def flush(self) -> None:
        """Write all that was added, in one frame."""
        if self._file is None or not self._block.bytes:
            return
        summary, records = self._block.build()
        essential = self._block.essential
        self._block.clear()
        entry = Entry(self._file.size, summary)
        if not self._write(BLOCK, block_payload(summary, records)):
            return
        self._unindexed.append(entry)
        self._write_copy()
        self._to_copy = (entry, essential) if essential else None
        if len(self._unindexed) >= INDEX_BLOCKS or self._file.size - self._indexed_to >= INDEX_BYTES:
            self._write_index()
        if self._thinner.look(self._file.size):
            self._tell_thinning(summary.last_ns)

    def close(self) -> None:
        """Write the rest, INDEX and FOOTER, and let go of the file. May be called twice."""
        self.flush()
        self._write_copy()
        if self._unindexed:
            self._write_index(final=True)
        if self._file is not None:
            self._write(FOOTER, footer_payload(self._last_index))
        if self._file is not None:
            self._release(self._file)

    def _write_copy(self) -> None:
        """Keep the essential messages of the block before the last one twice: what damages the one place
        does not reach the other."""
        if self._to_copy is not None and self._file is not None:
            self._write(COPY, copy_payload(*self._to_copy))
        self._to_copy = None

    def _write_index(self, *, final: bool = False) -> None:
        assert self._file is not None
        offset = self._file.size
        if self._write(INDEX, index_payload(self._last_index, self._unindexed)):
            self._last_index = self._indexed_to = offset
            self._unindexed = []
            past = self.past.take(final=final) if self.past is not None else None
            payload = past_payload(past) if past is not None else b""
            if 0 < len(payload) <= MAX_PAYLOAD:
                self._write(HISTORY, payload)

    def _tell_thinning(self, now_ns: int) -> None:
        """Into the file too: who reads it must not take what was left out for lost."""
        self.note = self._thinner.note
        event = Event("thinned", now_ns, -1, -1, {"every": self._thinner.every, "message": self.note})
        self._block.add(Received(now_ns, -1, 0, 0, event), encode(event))

    def _write(self, kind: int, payload: bytes) -> bool:
        assert self._file is not None
        try:
            self._file.append(frame(kind, self._sequence, payload))
        except OSError as error:
            self._stop(error)
            return False
        self._sequence += 1
        return True

    def _stop(self, error: OSError) -> None:
        assert self._file is not None
        reason = error.strerror or os.strerror(error.errno or 0)
        self.note = f"recording stopped at {self._file.size:,} bytes: {reason}"
        self._let_go(self._file)

    def _let_go(self, file: AppendFile) -> None:
        self._block.clear()
        self._unindexed = []
        self._release(file)

    def _release(self, file: AppendFile) -> None:
        self._final_size = file.size
        self._file = None
        file.close()
