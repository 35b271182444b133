"""Reading a recording: finished, cut off, damaged, or still being written."""

from __future__ import annotations

import gc
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.protocol.limits import MAX_NS, NS, VERSION
from ddptop.protocol.machine import OwnCost
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import RECORDING_STOPPED, Event, Hello, Message, Progress, Received, Run
from ddptop.protocol.texts import printable
from ddptop.recording import index as lookup
from ddptop.recording.disk import open_recording_file
from ddptop.recording.format import CLOCKS, BlockSummary, RecordingError
from ddptop.recording.history import HistoryPiece, HistoryPieces
from ddptop.recording.index import Blocks, Extent
from ddptop.recording.memory import keep_freed_memory
from ddptop.recording.records import BlockReader, Selector, is_any_type, is_lasting, is_no_steps, is_of_type
from ddptop.recording.runs import read_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.protocol.since_start import SinceStart


class RecordedLedgers(NamedTuple):
    """The sums of the ledger that a recording has up to a moment."""

    sums: list[tuple[SinceStart, bytes]]
    """With what else was known of all steps, oldest first; empty: they begin with the first message."""
    from_ns: int
    """From here on messages have to be read to get all steps that were complete after the last of them: ranks
    may have reported some of these before."""


class Cursor:
    """Reads a recording message by message, and continues after a growing one was refreshed."""

    def __init__(self, recording: Recording, from_ns: int) -> None:
        """Use `Recording.open_cursor`."""
        self._recording = recording
        self._from_ns = from_ns
        self._block = recording.block_at(from_ns)
        self._ready: deque[Received] = deque()

    def peek_message(self) -> Received | None:
        """The next message; None: there is none as yet."""
        while not self._ready:
            block = self._recording.read_block(self._block)
            if block is None:
                return None
            self._block += 1
            # The first block may begin before the moment that was asked for.
            self._ready.extend(received for received in block if received.t_ns >= self._from_ns)
        return self._ready[0]

    def take_message(self) -> Received | None:
        """The next message, and step past it; None: there is none as yet."""
        return None if self.peek_message() is None else self._ready.popleft()

    def take_runs(self, t_ns: int) -> Iterator[MessageRun]:
        """The next messages, up to the end of the last block that holds only such as arrived by a moment."""
        # Single messages were read before: only if all of them are due can the rest come as runs.
        if self.peek_message() is None or max(received.t_ns for received in self._ready) > t_ns:
            return
        ready, self._ready = [*self._ready], deque()
        yield MessageRun.of(ready)
        # Never back: what was given one by one must not come a second time.
        first, self._block = self._block, max(self._block, self._recording.blocks_until(t_ns))
        yield from self._recording.runs(first, self._block)

    def take_until(self, t_ns: int) -> Iterator[Received]:
        """The next messages, up to the first that arrived after a moment; steps past each."""
        while self.peek_message() is not None:
            while self._ready:
                if self._ready[0].t_ns > t_ns:
                    return
                yield self._ready.popleft()


def first_run(lasting: Iterable[Received], path: Path, start_ns: int) -> Run:
    """The first RUN among these messages; where its block is damaged, one made from the first HELLO."""
    hello: Hello | None = None
    for received in lasting:
        if isinstance(received.message, Run):
            return received.message
        if hello is None and isinstance(received.message, Hello):
            hello = received.message
    return Run(
        version=VERSION,
        run_id=hello.run_id if hello else "",
        name=path.stem,
        script="",
        argv=(),
        unix_ns=hello.unix_ns if hello else 0,
        monotonic_ns=start_ns,
        state="live",
        exit_code=None,
        simulated=False,
    )


__all__ = ["Recording", "RecordingError"]

TAIL_STEPS = 2000
"""Enough for every median, for one in twenty steps with bucket detail, and for a chart to begin with."""
TAIL_CLOCKS = 1000
"""Blocks before these that are read for the newest CLOCK of each host, four minutes of a large run."""
TAIL_NS = 10 * NS
"""The newest heartbeat and usage of every rank are within this."""
BLOCKS_BACK = 1024
"""Blocks before that which are searched for a heartbeat: near the limit, one is kept in minutes. Such blocks
are small, and one is written a second."""


FIRST_ROWS = 20_000
"""Step rows that are read from the start on for a ledger without recorded sums: half a second of work."""

STEPS_BEFORE, REPORTED_NS = 64, 2_000_000_000
"""A rank reports a step at most so many steps, or so long, before the last rank does: ranks send what they
have four times a second."""

MOST_MESSAGES, MESSAGES_PER_BYTE = 100_000, 0.25
"""A file may claim so many messages, and so many more for each of its bytes: heartbeats of 512 ranks that do
nothing are 0.09 a byte, all else is below 0.04."""


class Recording:
    """A recording, opened for reading; only its index is held in memory. Times are the collector's clock.

    Everything is as it was at `open` or at the last `refresh`. Not thread-safe.
    """

    def __init__(self, path: Path, descriptor: int, *, follow: bool = False) -> None:
        """Use `open`."""
        self.path = path
        self._extent = Extent(descriptor, follow=follow)
        self._reader = BlockReader(descriptor)
        self._history = HistoryPieces(descriptor)
        if not len(self._blocks):
            raise RecordingError(f"{path} is empty: nothing of the run was written")
        # A file that was made to take all memory is refused before any block is read.
        if self.messages > MOST_MESSAGES + self.bytes * MESSAGES_PER_BYTE:
            raise RecordingError(
                f"{path} claims {self.messages:,} messages in {self.bytes:,} bytes, "
                "which no recording of ddptop holds"
            )
        self.run = first_run(self.lasting_messages(), path, self.start_ns)
        """The run's first message; the end of the run is in `latest_run`."""

    @classmethod
    def open(cls, path: Path, *, follow: bool = False) -> Recording:
        """Open a recording. Raises OSError; RecordingError when it is none, of another version or empty.

        `follow`: also a file whose writer is on another host is taken as growing, until it was closed.
        """
        descriptor = open_recording_file(path)
        try:
            recording = cls(path, descriptor, follow=follow)
        except BaseException:
            os.close(descriptor)
            raise
        # A recording that nobody closes gives its descriptor back when it is collected.
        recording._finalizer = weakref.finalize(recording, os.close, descriptor)
        return recording

    _finalizer: weakref.finalize[[int], Recording]

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._finalizer()

    def will_be_read(self) -> None:
        """Much of it is about to be read, and then this process ends: from now on no garbage is collected,
        and freed memory is kept."""
        keep_freed_memory()
        gc.disable()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is in it ----------------------------------------------------------

    @property
    def growing(self) -> bool:
        """Whether a writer holds it; of a file that is followed: whether it has grown in the last minute."""
        return self._extent.growing

    @property
    def may_grow(self) -> bool:
        """Whether more may be written, also after a long pause."""
        return self._extent.may_grow

    @property
    def first_step(self) -> int | None:
        """Lowest step number in it; None: it holds no step."""
        return self._extent.first_step

    @property
    def last_step(self) -> int | None:
        """Highest step number in it; None: it holds no step."""
        return self._extent.last_step

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
        return self._extent.size

    @property
    def share_read(self) -> float:
        """Where in the file the last read was, as a share (0..1) of it. From any thread."""
        return self._reader.offset / max(1, self.bytes)

    @property
    def latest_run(self) -> Run:
        """The newest RUN message: how the run ended, if its collector saw the end."""
        for index in reversed(self._lasting_blocks(clocks=False)):
            for received in reversed(self._read_messages(index, is_of_type(Run))):
                if isinstance(received.message, Run):
                    return received.message
        return self.run

    @property
    def stop_note(self) -> str | None:
        """Why its disk took nothing any more; None: the recording did not end so."""
        # A recording that stopped has its note in the last block with lasting messages.
        for index in self._lasting_blocks(clocks=False)[-1:]:
            for received in self._read_messages(index, is_of_type(Event)):
                event = received.message
                if isinstance(event, Event) and event.kind == "recording":
                    note = printable(str(event.fields.get("note")))
                    return note if note.startswith(RECORDING_STOPPED) else None
        return None

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, by the first HELLO; None: there is none."""
        hellos = (r.message for r in self.lasting_messages() if isinstance(r.message, Hello))
        return next((hello.world_size for hello in hellos), None)

    @property
    def damage(self) -> str | None:
        """What of the file could not be read so far, as text; None: nothing is known to be missing."""
        return self._extent.describe_damage(self._reader)

    # -- history ------------------------------------------------------------------

    def history_pieces(self) -> list[tuple[int, HistoryPiece]]:
        """The group's history as the writer recorded it: (last moment that it covers, piece), oldest first.

        Empty where the writer recorded none. A damaged piece is left out.
        """
        return self._history.up_to(self._extent.contents.histories, self.run.monotonic_ns)

    def known_at_end(self) -> SinceStart | None:
        """What the analysis knew of all steps when that was last recorded; None: it was not recorded."""
        pieces = (piece.since_start for _, piece in reversed(self.history_pieces()))
        return next((piece for piece in pieces if piece is not None), None)

    def ledgers_until(self, t_ns: int, *, most_rows: int) -> RecordedLedgers | None:
        """The sums of the ledger as the writer recorded them up to a moment; None: no more than `most_rows`
        step rows shall be read after them, or FIRST_ROWS from the start."""
        sums = [
            (piece.since_start, piece.ledger)
            for _, piece in self.history_pieces()
            if piece.ledger is not None and piece.since_start is not None and piece.since_start.at_ns <= t_ns
        ]
        from_ns = self.start_ns
        if sums:
            at_ns = sums[-1][0].at_ns
            from_ns = min(self.tail_from_ns(before_ns=at_ns + 1, steps=STEPS_BEFORE), at_ns - REPORTED_NS)
        rows = self.count_steps(sums[-1][0].at_ns if sums else from_ns, t_ns) * (self.world_size or 1)
        most_rows = most_rows if sums else min(most_rows, FIRST_ROWS)
        return RecordedLedgers(sums, max(self.start_ns, from_ns)) if rows <= most_rows else None

    # -- reading ----------------------------------------------------------------

    def records(self, *, from_ns: int | None = None) -> Iterator[Received]:
        """All messages in order, or those that arrived at `from_ns` or later. Damaged blocks are left out."""
        cursor = self.open_cursor(from_ns=from_ns)
        while (received := cursor.take_message()) is not None:
            yield received

    def open_cursor(self, *, from_ns: int | None = None) -> Cursor:
        """A place in the recording, at the first message that arrived at `from_ns` or later."""
        return Cursor(self, 0 if from_ns is None else from_ns)

    def lasting_messages(self, *, from_ns: int = 0) -> Iterator[Received]:
        """Messages that hold from then on (all but readings and STEPS), in order, without CLOCK."""
        for index in self._lasting_blocks(self.block_at(from_ns), clocks=False):
            # The block reaches further back than the moment.
            yield from (r for r in self._reader.lasting_messages(self._blocks[index]) if r.t_ns >= from_ns)

    def lasting_with(self, kind: type[Message]) -> Iterator[Received]:
        """The messages of `lasting_messages` in blocks that may hold one of this kind. Other blocks are only
        unpacked."""
        for index in self._lasting_blocks(0, clocks=False):
            if self._reader.may_hold(self._blocks[index], kind):
                yield from self._reader.lasting_messages(self._blocks[index])

    def runs(self, first: int = 0, stop: int | None = None) -> Iterator[MessageRun]:
        """All messages of blocks, by their numbers from 0, in order."""
        entries = [self._blocks[index] for index in range(first, len(self._blocks) if stop is None else stop)]
        yield from read_runs(self._reader, entries, is_any_type, before_ns=MAX_NS + 1)

    def lasting_runs(self, first: int, stop: int | None = None) -> Iterator[MessageRun]:
        """The lasting messages, with CLOCK, in blocks by their numbers, in order."""
        entries = (self._blocks[index] for index in self._lasting_blocks(first, stop))
        yield from read_runs(self._reader, entries, is_lasting, before_ns=MAX_NS + 1)

    def tail(
        self, *, before_ns: int | None = None, steps: int = TAIL_STEPS, from_ns: int | None = None
    ) -> Iterator[Received]:
        """The messages of `tail_runs` one by one."""
        for run in self.tail_runs(before_ns=before_ns, steps=steps, from_ns=from_ns):
            yield from map(run.received, range(len(run)))

    def tail_runs(
        self, *, before_ns: int | None = None, steps: int = TAIL_STEPS, from_ns: int | None = None
    ) -> Iterator[MessageRun]:
        """The messages that a reducer needs at a moment without reading all that was before it, in order.

        That is: every lasting message before `before_ns` (None: the end), but of the CLOCK messages only the
        newest of each host in the last TAIL_CLOCKS blocks; the STEPS of about the last `steps` steps, and
        what else arrived in that time and in the last ten seconds, or since the last heartbeat that was kept.
        `from_ns`: the STEPS that arrived since then too.
        """
        before_ns = self.end_ns + 1 if before_ns is None else before_ns
        stop = min(len(self._blocks), self.block_at(before_ns) + 1)
        from_steps = lookup.steps_back(self._blocks, self.block_at(before_ns), steps)
        if from_ns is not None:
            from_steps = min(from_steps, self.block_at(from_ns))
        # Heartbeats of the last seconds: without them every rank would look silent.
        from_beats = min(from_steps, self._block_of_readings(self.block_at(before_ns - TAIL_NS), stop))
        numbers = {*self._lasting_blocks(0, from_beats, clocks=False)}
        numbers.update(self._lasting_blocks(0, from_beats)[-TAIL_CLOCKS:])
        earlier = [self._blocks[index] for index in sorted(numbers)]
        beats, newest = (
            [self._blocks[index] for index in range(*part)]
            for part in ((from_beats, from_steps), (from_steps, stop))
        )
        yield from read_runs(self._reader, earlier, is_lasting, before_ns=before_ns, newest_clocks=True)
        yield from read_runs(self._reader, beats, is_no_steps, before_ns=before_ns)
        yield from read_runs(self._reader, newest, is_any_type, before_ns=before_ns)

    def last_numbers(self, sessions: Iterable[int]) -> dict[int, int]:
        """The number of the last message of each of these sessions, as far as there is one.

        Reads back from the end until all were found, and decodes nothing.
        """
        missing = set(sessions)
        last_number_of: dict[int, int] = {}
        for index in range(len(self._blocks) - 1, -1, -1):
            if not missing:
                break
            numbers = self._reader.last_numbers(self._blocks[index])
            last_number_of |= {session: numbers[session] for session in missing & numbers.keys()}
            missing -= numbers.keys()
        return last_number_of

    def tail_from_ns(self, *, before_ns: int, steps: int) -> int:
        """When the steps of a `tail` with the same arguments begin to arrive."""
        first = lookup.steps_back(self._blocks, self.block_at(before_ns), steps)
        return int(self._blocks.first_ns[first])

    def count_steps(self, from_ns: int = 0, until_ns: int = MAX_NS) -> int:
        """About how many steps it holds that arrived between two moments, over all restarts."""
        return lookup.count_steps(
            self._blocks.slice_blocks(self.block_at(from_ns), self.block_at(until_ns) + 1)
        )

    def detail_every(self, *, before_ns: int) -> int:
        """The sampling interval of some rank shortly before this moment; 1 where none is recorded."""
        stop = min(len(self._blocks), self.block_at(before_ns) + 1)
        for index in range(stop - 1, max(-1, self.block_at(before_ns - TAIL_NS) - 1), -1):
            for received in reversed(self._read_messages(index, is_of_type(Progress))):
                if isinstance(received.message, Progress) and received.t_ns < before_ns:
                    return received.message.detail_every
        return 1

    def span_of_step(self, step: int, *, before_ns: int | None = None) -> tuple[int, int] | None:
        """First and last arrival in the block where the slowest rank reports this step (or the one before).

        A restarted run may have come past it more than once: the last time counts, or the last one up to
        `before_ns`. None: all steps come later.
        """
        stop = len(self._blocks) if before_ns is None else self.block_at(before_ns) + 1
        index = lookup.block_of_step(self._blocks.slice_blocks(0, stop), step)
        if index is None:
            return None
        summary = self._blocks[index].summary
        return summary.first_ns, summary.last_ns

    def refresh(self) -> bool:
        """Read what was written since; True when there is more to read."""
        before = len(self._blocks)
        self._extent.refresh()
        return len(self._blocks) > before

    def read_block(self, index: int) -> list[Received] | None:
        """The messages of a block, by its number from 0; none where it is damaged, None past the last one."""
        return self._read_messages(index, is_any_type) if index < len(self._blocks) else None

    def blocks_until(self, t_ns: int) -> int:
        """How many blocks from the first on hold only messages that arrived by a moment."""
        return int(np.searchsorted(self._blocks.last_ns, t_ns, side="right"))

    @property
    def steps_of_blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(blocks,) the first and the last step in each; NO_STEP: it holds none."""
        return self._blocks.first_step, self._blocks.last_step

    def block_summary(self, index: int) -> BlockSummary:
        """The index's summary of a block: when it begins and ends, its steps; it is not read."""
        return self._blocks[index].summary

    def block_at(self, t_ns: int) -> int:
        """Number of the first block that reaches up to this moment."""
        return lookup.block_at(self._blocks, t_ns)

    # -- inside -----------------------------------------------------------------

    @property
    def _blocks(self) -> Blocks:
        return self._extent.contents.blocks

    def _lasting_blocks(self, first: int = 0, stop: int | None = None, *, clocks: bool = True) -> list[int]:
        """Numbers of the blocks that hold lasting messages; `clocks`: also those that hold only CLOCK."""
        lasting = self._blocks.lasting[first:stop]
        # CLOCKS is larger than the records of a block: the remainder is what lasts besides CLOCK.
        numbers: list[int] = (np.flatnonzero(lasting if clocks else lasting % CLOCKS) + first).tolist()
        return numbers

    def _block_of_readings(self, from_beats: int, stop: int) -> int:
        """The block from which on readings are read before `stop`: `from_beats`, or where the newest
        heartbeats were left out near the limit, an earlier one with what ranks said of ddptop's cost."""
        if any(self._holds(index, Progress) for index in range(stop - 1, from_beats - 1, -1)):
            return from_beats
        events = (received.message for received in self.lasting_with(Event))
        if not any(isinstance(event, Event) and event.kind == "thinned" for event in events):
            return from_beats
        first, missing = from_beats, {Progress, OwnCost}
        for index in range(from_beats - 1, max(-1, from_beats - 1 - BLOCKS_BACK), -1):
            held = {kind for kind in missing if self._holds(index, kind)}
            first, missing = index if held else first, missing - held
            if not missing:
                break
        return first

    def _holds(self, index: int, kind: type[Message]) -> bool:
        """Whether a block holds a message of this class."""
        return self._reader.may_hold(self._blocks[index], kind) and bool(
            self._read_messages(index, is_of_type(kind))
        )

    def _read_messages(self, index: int, selects: Selector) -> list[Received]:
        return self._reader.read_messages(self._blocks[index], selects)
