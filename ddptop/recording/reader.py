"""Reading a recording: finished, cut off, damaged, or being written at this moment."""

from __future__ import annotations

import os
import stat
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Hello, Progress, Received, Run, Type
from ddptop.recording import lookup
from ddptop.recording.blocks import Blocks
from ddptop.recording.disk import is_being_written
from ddptop.recording.format import FOOTER_BYTES, HISTORY, MAGIC, NO_STEP, RecordingError
from ddptop.recording.frames import read_frame
from ddptop.recording.index import Contents, extend, load
from ddptop.recording.past import Past, past_content
from ddptop.recording.records import PASSING_TYPES, Wanted, read_block

__all__ = ["Recording", "RecordingError"]

NS = 1_000_000_000

TAIL_STEPS = 2000
"""Enough for every median, for one in twenty steps with bucket detail, and for a chart to begin with."""
TAIL_NS = 10 * NS
"""The newest heartbeat and usage of every rank are within this."""

LASTING_KEPT = 50_000
"""Lasting messages that stay in memory, some 50 MB at most: 4096 ranks say three each when they join."""


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
        self._lasting: dict[int, list[Received]] = {}
        self._lasting_kept = 0
        self._pasts: list[tuple[int, Past]] = []
        self._pasts_read = 0
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
        return int(self._blocks.first_ns[0])

    @property
    def end_ns(self) -> int:
        """When its last message arrived."""
        return int(self._blocks.last_ns[-1])

    @property
    def messages(self) -> int:
        """How many messages it holds, by its index."""
        return int(self._blocks.records.sum())

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self._size

    @property
    def latest_run(self) -> Run:
        """The newest RUN message: it tells how the run ended, if somebody saw it end."""
        for index in reversed(self._lasting_blocks()):
            for received in reversed(self._read(index, _is(Type.RUN))):
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
            parts.append(f"{len(self._unreadable):,} of {len(self._blocks):,} blocks cannot be read")
        if torn > 0 and not self.growing:
            parts.append(f"the last {torn:,} bytes are cut off or damaged")
        elif not contents.closed and not self.growing:
            parts.append("it was never closed: its last moments may be missing")
        return "; ".join(parts) or None

    # -- its past -----------------------------------------------------------------

    def pasts(self) -> list[tuple[int, Past]]:
        """What its writer told of the group's history: (last moment that it covers, Past), oldest first.

        Empty where the writer told none. A damaged one is left out.
        """
        for offset in self._known.histories[self._pasts_read :]:
            found = read_frame(self._descriptor, offset)
            if found is None or found.kind != HISTORY:
                continue
            try:
                past = past_content(found.payload)
            except RecordingError:
                continue
            if len(past.points["time_s"]):
                run = self.run
                self._pasts.append((run.monotonic_ns + int(past.points["time_s"][-1] * NS), past))
        self._pasts_read = len(self._known.histories)
        return self._pasts

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
        for index in self._lasting_blocks(self.block_at(from_ns)):
            yield from (found for found in self._read_lasting(index) if found.t_ns >= from_ns)

    def tail(self, *, before_ns: int | None = None, steps: int = TAIL_STEPS) -> Iterator[Received]:
        """What it takes to stand at a moment without reading all that was before it, in order.

        That is: every lasting message before `before_ns` (None: the end), the STEPS of about the last `steps`
        steps, and what else arrived in that time and in the last ten seconds.
        """
        until = self.end_ns + 1 if before_ns is None else before_ns
        stop = min(len(self._blocks), self.block_at(until) + 1)
        from_steps = lookup.steps_back(self._blocks, self.block_at(until), steps)
        from_beats = min(from_steps, self.block_at(until - TAIL_NS))
        for index in self._lasting_blocks(0, from_beats):
            yield from (received for received in self._read_lasting(index) if received.t_ns < until)
        for index in range(from_beats, stop):
            wanted = _everything if index >= from_steps else _is_no_steps
            yield from (received for received in self._read(index, wanted) if received.t_ns < until)

    def detail_every(self, *, before_ns: int) -> int:
        """The sampling interval of some rank shortly before this moment; 1 where none is told."""
        stop = min(len(self._blocks), self.block_at(before_ns) + 1)
        for index in range(stop - 1, max(-1, self.block_at(before_ns - TAIL_NS) - 1), -1):
            for received in reversed(self._read(index, _is(Type.PROGRESS))):
                if isinstance(received.message, Progress) and received.t_ns < before_ns:
                    return received.message.detail_every
        return 1

    def span_of_step(self, step: int, *, before_ns: int | None = None) -> tuple[int, int] | None:
        """First and last arrival in the block where the slowest rank reports this step (or the one before).

        A restarted run may have come past it more than once: the last time counts, or the last one up to
        `before_ns`. None: all steps come later.
        """
        stop = len(self._blocks) if before_ns is None else self.block_at(before_ns) + 1
        index = lookup.block_of_step(self._blocks.part(0, stop), step)
        if index is None:
            return None
        summary = self._blocks[index].summary
        return summary.first_ns, summary.last_ns

    def refresh(self) -> bool:
        """Take notice of what was written since; True when there is more to read."""
        before = len(self._blocks)
        self._look()
        return len(self._blocks) > before

    def block(self, index: int) -> list[Received] | None:
        """The messages of a block, by its number from 0; none where it is damaged, None past the last one."""
        return self._read(index, _everything) if index < len(self._blocks) else None

    def block_at(self, t_ns: int) -> int:
        """Number of the first block that reaches up to this moment."""
        return lookup.block_at(self._blocks, t_ns)

    # -- inside -----------------------------------------------------------------

    @property
    def _known(self) -> Contents:
        assert self._contents is not None
        return self._contents

    @property
    def _blocks(self) -> Blocks:
        return self._known.blocks

    def _lasting_blocks(self, first: int = 0, stop: int | None = None) -> list[int]:
        """Numbers of the blocks that hold lasting messages."""
        found: list[int] = (np.flatnonzero(self._blocks.lasting[first:stop]) + first).tolist()
        return found

    def _look(self) -> None:
        # Asked before the size: a writer that ends in between has written all that the size says.
        self.growing = is_being_written(self._descriptor)
        self._size = os.fstat(self._descriptor).st_size
        if self._contents is None:
            self._contents = load(self._descriptor, self._size)
        else:
            self._contents = extend(self._contents, self._descriptor, self._size)
        added = self._blocks.part(self._scanned, len(self._blocks))
        self._scanned = len(self._blocks)
        steps = added.first_step != NO_STEP
        if steps.any():
            first, last = int(added.first_step[steps].min()), int(added.last_step[steps].max())
            self.first_step = first if self.first_step is None else min(first, self.first_step)
            self.last_step = last if self.last_step is None else max(last, self.last_step)

    def _first_run(self) -> Run:
        """The first RUN; where its block is damaged, one made up from what the ranks said."""
        hello: Hello | None = None
        for received in self.lasting():
            if isinstance(received.message, Run):
                return received.message
            if hello is None and isinstance(received.message, Hello):
                hello = received.message
        if not len(self._blocks):
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

    def _read_lasting(self, index: int) -> list[Received]:
        """Lasting messages of a block. They are asked for wherever one goes, so many of them are kept."""
        known = self._lasting.get(index)
        if known is None:
            known = self._read(index, _is_lasting)
            if self._lasting_kept < LASTING_KEPT:
                self._lasting[index] = known
                self._lasting_kept += len(known)
        return known

    def _read(self, index: int, wanted: Wanted) -> list[Received]:
        entry = self._blocks[index]
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
