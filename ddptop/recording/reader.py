"""Reading a recording: finished, cut off, damaged, or being written at this moment."""

from __future__ import annotations

import os
import stat
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Hello, Received, Run, Type
from ddptop.recording import lookup
from ddptop.recording.disk import is_being_written
from ddptop.recording.format import FOOTER_BYTES, MAGIC, NO_STEP, Entry, RecordingError
from ddptop.recording.index import Contents, extend, load
from ddptop.recording.records import PASSING_TYPES, Wanted, read_block

__all__ = ["Recording", "RecordingError"]

NS = 1_000_000_000

TAIL_STEPS = 2000
"""Enough for every median, for one in twenty steps with bucket detail, and for a chart to begin with."""
TAIL_NS = 10 * NS
"""The newest heartbeat and usage of every rank are within this."""


class Recording:
    """A recording, opened for reading; only its index is held in memory. Times are the collector's clock.

    Everything is as it was at `open` or at the last `refresh`. Not thread-safe.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use `open`."""
        self.path = path
        self.growing = False
        """A writer holds it."""
        self.first_step: int | None = None
        """Lowest step number in it; None: it holds no step."""
        self.last_step: int | None = None
        self._descriptor = descriptor
        self._size = 0
        self._unreadable: set[int] = set()
        self._scanned = 0
        self._contents: Contents | None = None
        self._look()
        self.run = self._first_run()
        """The run's first message; the end of the run is in `latest_run`."""

    @classmethod
    def open(cls, path: Path) -> Recording:
        """Open a recording. Raises OSError; RecordingError when it is none, of another version or empty."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(descriptor, path)
            recording = cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        recording._finalizer = weakref.finalize(recording, os.close, descriptor)
        return recording

    _finalizer: weakref.finalize[[int], Recording]

    def close(self) -> None:
        """Let go of the file. May be called twice."""
        self._finalizer()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is in it ----------------------------------------------------------

    @property
    def start_ns(self) -> int:
        """When its first message arrived."""
        return self._entries[0].summary.first_ns

    @property
    def end_ns(self) -> int:
        """When its last message arrived."""
        return self._entries[-1].summary.last_ns

    @property
    def messages(self) -> int:
        """How many messages it holds, by its index."""
        return sum(entry.summary.records for entry in self._entries)

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self._size

    @property
    def latest_run(self) -> Run:
        """The newest RUN message: it tells how the run ended, if somebody saw it end."""
        for entry in reversed(self._entries):
            if entry.summary.lasting:
                for received in reversed(self._read(entry, _is(Type.RUN))):
                    if isinstance(received.message, Run):
                        return received.message
        return self.run

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, by the first that introduced itself; None: none did."""
        hellos = (r.message for r in self.lasting() if isinstance(r.message, Hello))
        return next((hello.world_size for hello in hellos), None)

    @property
    def damage(self) -> str | None:
        """What of the file could not be read so far, in words; None where nothing is known to be missing."""
        contents = self._known
        parts = []
        torn = self._size - contents.end - (FOOTER_BYTES if contents.closed else 0)
        if contents.damaged:
            parts.append(f"{contents.damaged:,} bytes in the middle are damaged")
        if self._unreadable:
            parts.append(f"{len(self._unreadable):,} of {len(self._entries):,} blocks cannot be read")
        if torn > 0 and not self.growing:
            parts.append(f"the last {torn:,} bytes are cut off or damaged")
        elif not contents.closed and not self.growing:
            parts.append("it was never closed: its last moments may be missing")
        return "; ".join(parts) or None

    # -- reading ----------------------------------------------------------------

    def records(self, *, from_ns: int | None = None) -> Iterator[Received]:
        """All messages in order, or those that arrived at `from_ns` or later. Damaged blocks are left out."""
        cursor = self.cursor(from_ns=from_ns)
        while (received := cursor.take()) is not None:
            yield received

    def cursor(self, *, from_ns: int | None = None) -> Cursor:
        """A place in the recording, at the first message that arrived at `from_ns` or later."""
        return Cursor(self, 0 if from_ns is None else from_ns)

    def lasting(self, *, from_ns: int = 0) -> Iterator[Received]:
        """Messages that matter for ever after (all but STEPS, PROGRESS and USAGE), in order."""
        for entry in self._entries[self.block_at(from_ns) :]:
            if entry.summary.lasting:
                yield from (found for found in self._read(entry, _is_lasting) if found.t_ns >= from_ns)

    def tail(self, *, before_ns: int | None = None, steps: int = TAIL_STEPS) -> Iterator[Received]:
        """What it takes to stand at a moment without reading all that was before it, in order.

        That is: every lasting message before `before_ns` (None: the end), the STEPS of about the last `steps`
        steps, and what else arrived in that time and in the last ten seconds.
        """
        until = self.end_ns + 1 if before_ns is None else before_ns
        stop = min(len(self._entries), self.block_at(until) + 1)
        from_steps = lookup.steps_back(self._entries, self.block_at(until), steps)
        from_beats = min(from_steps, self.block_at(until - TAIL_NS))
        for index, entry in enumerate(self._entries[:stop]):
            if index >= from_steps:
                wanted: Wanted = _everything
            elif index >= from_beats:
                wanted = _is_no_steps
            elif entry.summary.lasting:
                wanted = _is_lasting
            else:
                continue
            yield from (received for received in self._read(entry, wanted) if received.t_ns < until)

    def span_of_step(self, step: int, *, before_ns: int | None = None) -> tuple[int, int] | None:
        """First and last arrival in the block where the slowest rank reports this step (or the one before).

        A restarted run may have come past it more than once: the last time counts, or the last one up to
        `before_ns`. None: all steps come later.
        """
        stop = None if before_ns is None else self.block_at(before_ns) + 1
        index = lookup.block_of_step(self._entries[:stop], step)
        if index is None:
            return None
        summary = self._entries[index].summary
        return summary.first_ns, summary.last_ns

    def refresh(self) -> bool:
        """Take notice of what was written since; True when there is more to read."""
        before = len(self._entries)
        self._look()
        return len(self._entries) > before

    def block(self, index: int) -> list[Received] | None:
        """The messages of a block, by its number from 0; none where it is damaged, None past the last one."""
        return self._read(self._entries[index], _everything) if index < len(self._entries) else None

    def block_at(self, t_ns: int) -> int:
        """Number of the first block that reaches up to this moment."""
        return lookup.block_at(self._entries, t_ns)

    # -- inside -----------------------------------------------------------------

    @property
    def _known(self) -> Contents:
        assert self._contents is not None
        return self._contents

    @property
    def _entries(self) -> list[Entry]:
        return self._known.entries

    def _look(self) -> None:
        # Asked before the size: a writer that ends in between has written all that the size says.
        self.growing = is_being_written(self._descriptor)
        self._size = os.fstat(self._descriptor).st_size
        if self._contents is None:
            self._contents = load(self._descriptor, self._size)
        else:
            self._contents = extend(self._contents, self._descriptor, self._size)
        for entry in self._entries[self._scanned :]:
            summary = entry.summary
            if summary.first_step != NO_STEP:
                first, last = self.first_step, self.last_step
                self.first_step = summary.first_step if first is None else min(first, summary.first_step)
                self.last_step = summary.last_step if last is None else max(last, summary.last_step)
        self._scanned = len(self._entries)

    def _first_run(self) -> Run:
        """The first RUN; where its block is damaged, one made up from what the ranks said."""
        hello: Hello | None = None
        for received in self.lasting():
            if isinstance(received.message, Run):
                return received.message
            if hello is None and isinstance(received.message, Hello):
                hello = received.message
        if not self._entries:
            raise RecordingError(f"{self.path} is empty: nothing of the run was written")
        return Run(
            version=VERSION,
            run_id=hello.run_id if hello else "",
            name=self.path.stem,
            script="",
            argv=(),
            unix_ns=hello.unix_ns if hello else 0,
            monotonic_ns=self.start_ns,
            state="live",
            exit_code=None,
            simulated=False,
        )

    def _read(self, entry: Entry, wanted: Wanted) -> list[Received]:
        found: list[Received] = []
        try:
            found.extend(read_block(self._descriptor, entry, wanted=wanted))
        except (RecordingError, OSError):
            self._unreadable.add(entry.offset)
        return found


class Cursor:
    """Reads a recording message by message, and goes on when a growing one was refreshed."""

    def __init__(self, recording: Recording, from_ns: int) -> None:
        """Use `Recording.cursor`."""
        self._recording = recording
        self._from_ns = from_ns
        self._block = recording.block_at(from_ns)
        self._ready: deque[Received] = deque()

    def peek(self) -> Received | None:
        """The next message; None: there is none as yet."""
        while not self._ready:
            block = self._recording.block(self._block)
            if block is None:
                return None
            self._block += 1
            self._ready.extend(received for received in block if received.t_ns >= self._from_ns)
        return self._ready[0]

    def take(self) -> Received | None:
        """The same, and step past it."""
        return None if self.peek() is None else self._ready.popleft()


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


def _everything(_kind: int) -> bool:
    return True


def _is_no_steps(kind: int) -> bool:
    return kind != Type.STEPS


def _is_lasting(kind: int) -> bool:
    return kind not in PASSING_TYPES


def _is(wanted: Type) -> Wanted:
    return lambda kind: kind == wanted
