"""Writing a recording. Errors of the disk never reach the caller: they are noted as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import (
    RECORDING_STOPPED,
    Clock,
    Event,
    Hello,
    Received,
    Run,
    Scalar,
    Steps,
    count_rows,
)
from ddptop.recording.disk import AppendFile, describe_disk_error, file_size_limit
from ddptop.recording.format import (
    BLOCK,
    COPY,
    FOOTER,
    FOOTER_BYTES,
    HEADER,
    HISTORY,
    INDEX,
    MAGIC,
    MAX_PAYLOAD,
    MAX_RAW,
    NO_STEP,
    BlockEntry,
    RecordingError,
    block_payload,
    copy_payload,
    footer_payload,
    pack_frame,
)
from ddptop.recording.pending_index import PendingIndex
from ddptop.recording.records import PASSING, BlockBuilder, is_any_type, parse_records
from ddptop.recording.thinning import MOST_KEYS, Thinner
from ddptop.recording.unwritten import UnwrittenRows, WaitingBlock, WaitingBlocks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ddptop.protocol.message_run import EncodedRun
    from ddptop.recording.format import BlockSummary
    from ddptop.recording.history import HistoryPiece

FLUSH_BYTES = 64 * 1024
FLUSH_SHARE = 64
"""A block is at most this part of the limit: thinning depends on the size of the file."""
FLUSH_NS = 250_000_000
"""A crash of the collector costs at most this much; ranks send it again."""

END_BYTES = 2048
"""Room for the end of a recording that is at its limit, besides a copy of its RUN message."""

RETRY_NS = 1_000_000_000
"""Pause before a disk that took nothing is tried again."""

WAITING_BYTES = 4 << 20
"""Records that wait in memory for room on the disk. Past it steps and readings are dropped and counted, past
twice as much everything is."""


class HistorySource(Protocol):
    """Has the group's history, which takes long to compute from the messages alone."""

    def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
        """What was added since the last time; None for nothing. `final`: there will be no other time.

        `coarser`: in how many times as many steps there shall be one point.
        """

    def take_back(self) -> None:
        """What was taken last was not written: the next piece shall have it, too."""


class Writer:
    """Appends messages to a recording. Not thread-safe; one writer to a file."""

    def __init__(self, path: Path, *, limit_bytes: int, resume: bool = False) -> None:
        """Begin a file, or with `resume` go on with one: its torn end is cut off.

        `limit_bytes`: size that the file never exceeds: it thins itself on the way there. Raises OSError
        where the file cannot be opened, RecordingError where it holds something else or has another writer.
        """
        self.note: str | None = None
        """Why it stopped, or what it leaves out, for a person."""
        self.history: HistorySource | None = None
        """Asked whenever an INDEX is written."""
        self._unwritten = UnwrittenRows()
        self.added = 0
        """Messages of the last `add_passing` that were added: where it raised, those before an exception."""
        self.left_out = self.without_detail = 0
        """Step records that this writer has left out near the limit, and those it has kept without detail."""
        self._file: AppendFile | None = AppendFile(path, resume=resume)
        self._block = BlockBuilder()
        self._waiting = WaitingBlocks()
        self._block_rows = 0
        """Step records in the block that is built."""
        self._failing: str | None = None
        """Why the disk takes nothing at present."""
        self._stop_is_recorded = False
        """The file says why it stopped."""
        self._retry_ns = 0
        # Past `ulimit -f` no write succeeds, not even that of the file's end.
        self._limit = limit_bytes = min(limit_bytes, file_size_limit())
        self._flush_bytes = min(FLUSH_BYTES, max(1, limit_bytes // FLUSH_SHARE))
        self._thinner = Thinner(limit_bytes)
        self._recorded: set[int] = set()
        self._recorded_every = 1
        self._end_bytes = END_BYTES
        self._index = PendingIndex()
        self._to_copy: tuple[BlockEntry, bytes] | None = None
        """The block written last, and what of it is to be kept twice."""
        self._sequence = 0
        """The number of the next frame."""
        self.path = path
        self._restored = False
        self.removed = False
        """The file was deleted, and its contents are lost."""
        try:
            self._continue_file(self._file)
        except BaseException:
            self._file.close()
            raise

    def _continue_file(self, file: AppendFile) -> None:
        """Continue after the last whole frame."""
        if file.size == len(MAGIC):
            return
        from ddptop.recording.index import load_contents  # with numpy, which an agent does without

        contents = load_contents(file.descriptor, file.size)
        # What a crash left of the last frame would be taken for damage in the middle.
        if contents.end != file.size:
            file.truncate(contents.end)
        count = len(contents.blocks)
        self._sequence = contents.next_sequence
        unindexed = contents.blocks.slice_blocks(count - contents.unindexed, count)
        steps = contents.blocks.last_step
        last_step = int(steps[steps != NO_STEP][-1]) if (steps != NO_STEP).any() else NO_STEP
        self._index.resume(unindexed, contents.last_index, last_step)
        # Where it stood is not in the file: its size decides anew.
        if self._thinner.update_size(file.size):
            self.note = self._thinner.note

    @property
    def unwritten(self) -> int:
        """Step records that are not in the file for lack of room on the disk."""
        return self._unwritten.count

    @property
    def buffered(self) -> int:
        """Bytes that were added and are not in the file yet; 0 while it takes none."""
        return self._block.bytes if self._failing is None else 0

    @property
    def fails(self) -> bool:
        """Whether the disk takes nothing at present, or the file is closed or deleted."""
        return self._failing is not None or self._file is None

    def abandon(self) -> None:
        """Close the file without an end: its content is not needed any more."""
        if self._file is not None:
            self._close_file(self._file)

    def note_recorded(self, received: Received) -> None:
        """Remember that the file holds this message, so that it is not written a second time."""
        # Ranks and agents send lasting messages again to a new collector; the collector's own come once.
        message = received.message
        if received.session and not isinstance(message, PASSING):
            self._is_new(received.session, encode(message))
        elif isinstance(message, Event) and message.kind == "thinned":
            every = message.fields.get("every")
            self._recorded_every = every if type(every) is int else 1
            self._thinner.full = self._thinner.full or message.fields.get("full") is True

    def add(self, received: Received, body: bytes) -> None:
        """Keep a message; `body` is its encoded form. Buffered, never raises OSError."""
        if self._file is None:
            return
        message = received.message
        if isinstance(message, Hello):
            self.flush()  # a restarted rank counts from 0 again: no block holds steps of both its lives
        passing = isinstance(message, PASSING)
        # A rank that meets a new collector sends its lasting messages again.
        if not passing and received.session and not self._is_new(received.session, body):
            return
        if isinstance(message, Run):
            # A later RUN has to fit at the end, when all other room is used.
            self._end_bytes = max(self._end_bytes, END_BYTES + len(body))
        elif self._thinner.full or self._has_no_room(passing):
            if self._failing is not None:
                self._unwritten.note(received)
            else:
                self.left_out += count_rows(message)
            return
        if self._thinner.every != self._recorded_every:  # the writer before died before it recorded that
            self._record_thinning(received.t_ns)
        before = self._block_rows
        for kept in self._thinner.kept_parts(received, passing=passing):
            self._block.add(kept, body if kept is received else encode(kept.message))
            self._block_rows += count_rows(kept.message)
        # With a BYE comes the last step, if it was left out.
        self.left_out += count_rows(message) - (self._block_rows - before)
        if self._thinner.thins and isinstance(message, Steps):
            self.without_detail += sum(bool(row.cells) for row in message.rows)
        if self._block.bytes >= self._flush_bytes:
            self.flush()

    def add_passing(self, run: EncodedRun, places: NDArray[np.int64]) -> None:
        """Keep the messages at these places, PASSING and CLOCK ones: as `add` keeps each, at less cost. None
        comes twice: those of other hosts are numbered."""
        self.added = 0
        records: memoryview | None = None
        while self._file is not None and (begin := self.added) < len(places):
            plain = self._failing is None and not (self._thinner.thins or self._thinner.full)
            if not plain or self._thinner.every != self._recorded_every:
                self.added += 1
                self.add(run.received(int(places[begin])), run.body(int(places[begin])))
                continue
            from ddptop.recording.passing import divide_into_blocks  # with numpy, as above

            if records is None:
                records, ends = run.records(places)
            written, room = int(ends[begin - 1]) if begin else 0, self._flush_bytes - self._block.bytes
            parts = divide_into_blocks(run, places[begin:], ends[begin:] - written, room, self._flush_bytes)
            for part, rows in parts:
                stop = self.added + part.records
                self._block.add_passing(part, records[written : ends[stop - 1]])
                self._block_rows += rows
                several, self.added, written = self.added or stop < len(places), stop, int(ends[stop - 1])
                # The rest of several blocks does not wait: as much may come before it is due, no ack ever.
                if several or self._block.bytes >= self._flush_bytes:
                    self.flush()
                if self._block.bytes or self._thinner.thins or self._thinner.full:
                    break  # less is kept from here on

    def _is_new(self, session: int, body: bytes) -> bool:
        """From this process: a rank sends some messages again to every new collector."""
        # The body itself may be 64 kB.
        # The hash alone is kept: two that collide cost one message in 2**64.
        key = hash((session, body))
        if key in self._recorded:
            return False
        if len(self._recorded) >= MOST_KEYS:
            self._recorded.clear()
        self._recorded.add(key)
        return True

    def _has_no_room(self, passing: bool) -> bool:
        # What passes is given up first: what lasts is needed by all that follows.
        bound = WAITING_BYTES if passing else 2 * WAITING_BYTES
        return self._failing is not None and self._waiting.n_bytes + self._block.bytes > bound

    @property
    def due_ns(self) -> int | None:
        """When what was added is to be written; None: nothing waits for that."""
        # By the arrival of the oldest record, so that no message waits longer than FLUSH_NS.
        return self._block.first_ns + FLUSH_NS if self._block.bytes else None

    def write_due(self, now_ns: int) -> None:
        """Write what is due at this moment of the collector's clock."""
        if self._failing is not None and now_ns - self._retry_ns >= RETRY_NS:
            self._retry_ns = now_ns
            self._write_waiting()
        if (due_ns := self.due_ns) is not None and now_ns >= due_ns:
            self.flush()
        if self._file is not None and self._file.sync_error is not None:
            error, self._file.sync_error = self._file.sync_error, None
            self.note = f"the disk has not taken all of the recording: {describe_disk_error(error)}"

    def restore_if_deleted(self) -> None:
        """Write the file again where it was deleted: once, as a second deletion is intended."""
        if self._file is None or not self._file.is_deleted():
            return
        reason = "it was deleted again"
        if not self._restored:
            self._restored = True
            try:
                self._file.write_anew(self.path)
            except (OSError, RecordingError) as error:
                reason = describe_disk_error(error) if isinstance(error, OSError) else str(error)
            else:
                self.note = "the recording was deleted while it was written, and has been written anew"
                return
        self.removed = True
        self.note = f"the recording was deleted while it was written, and nothing is recorded now: {reason}"
        self._close_file(self._file)

    def flush(self) -> None:
        """Write all that was added, in one frame."""
        if self._file is None or not self._block.bytes:
            return
        summary, records = self._block.build_block()
        essential = self._block.essential_records
        self._waiting.append(WaitingBlock(summary, records, self._block_rows, essential))
        self._block.clear()
        self._block_rows = 0
        if self._failing is None:
            self._write_waiting()

    def close(self) -> None:
        """Write the rest, INDEX and FOOTER, and close the file. May be called twice."""
        self.restore_if_deleted()
        self.flush()
        # Once more at the end, whatever the pause: there is no later try.
        if self._failing is not None:
            self._write_waiting()
        if self._file is None:
            return
        if self._failing is None:
            self._write_copy()
            if self._index.blocks:
                self._write_index(final=True)
            self._write_frame(FOOTER, footer_payload(self._index.last_offset))
        else:
            self._write_end_without_room()
        self._close_file(self._file)

    def _write_end_without_room(self) -> None:
        """Write how the run ended into the room that is kept for it on a full disk: of the messages that
        wait, all that last, or the newest of them."""
        lasting: list[Received] = []
        for _, records, *_ in self._waiting:
            for received in parse_records(bytes(records), is_any_type):
                if isinstance(received.message, Steps):
                    self._unwritten.note(received)
                elif not isinstance(received.message, (Clock, *PASSING)):
                    lasting.append(received)
        # RUN last: it says how the run ended, and a reader takes the last one.
        end = [received for received in lasting if isinstance(received.message, Run)]
        lasting = [received for received in lasting if not isinstance(received.message, Run)]
        end_ns = lasting[-1].t_ns if lasting else self._retry_ns
        lasting += [self._stop_message(end_ns), *self._unwritten.make_messages(end_ns)]
        self._write_in_end_room([*lasting, *end], FOOTER_BYTES)
        self._write_frame(FOOTER, footer_payload(self._index.last_offset), in_end_room=True)

    def _write_in_end_room(self, messages: Sequence[Received], spared_bytes: int) -> None:
        """Write these messages in the room that is kept for the end, or the newest of them that leave
        `spared_bytes` of it."""
        assert self._file is not None
        while messages:
            block = BlockBuilder()
            for received in messages:
                block.add(received, encode(received.message))
            summary, records = block.build_block()
            payload = block_payload(summary, records)
            room = self._file.end_room_bytes - HEADER.size - spared_bytes
            if len(records) <= MAX_RAW and len(payload) <= room and self._leaves_end_room(len(payload)):
                offset = self._file.size
                if self._write_frame(BLOCK, payload, in_end_room=True):
                    self._index.blocks.append(BlockEntry(offset, summary))
                return
            # The newer half: how the run ended matters more than what came before.
            messages = messages[len(messages) // 2 + 1 :]

    def take_missing(self) -> list[Event]:
        """What the recording says, since the last call, of step records that are not in it."""
        return self._unwritten.take_events()

    def _write_waiting(self) -> None:
        """Write the blocks that wait, oldest first, as far as the disk takes them."""
        # Assumed to be over: the first block that fails sets it again.
        failed, self._failing = self._failing, None
        while self._waiting and self._file is not None:
            summary, records, rows, essential = self._waiting.oldest
            offset, payload = self._file.size, block_payload(summary, records)
            fits = self._leaves_end_room(len(payload))
            if fits and not self._write_frame(BLOCK, payload):
                self._record_stop(summary.first_ns)
                return
            self._waiting.remove_oldest()
            if not fits:
                self.left_out += rows
                self._give_up(summary)
                continue
            entry = BlockEntry(offset, summary)
            self._index.add(entry)
            self._write_copy()
            self._to_copy = (entry, essential) if essential else None
            if self._index.is_due(self._file.size, self._thinner.every):
                self._write_index()
            if self._thinner.update_size(self._file.size):
                self._record_thinning(summary.last_ns)
        # The disk takes something again: say what is missing in between, and keep room for the end anew.
        if failed is not None and self._failing is None:
            n_rows = self._unwritten.count
            what = "step record is" if n_rows == 1 else "step records are"
            missing = f": {n_rows:,} {what} missing" if n_rows else ""
            self.note = f"recording goes on: the disk had taken nothing for a time ({failed}){missing}"
            self._stop_is_recorded = False
            for received in self._unwritten.make_messages(self._block.last_ns):
                self._block.add(received, encode(received.message))
            if self._file is not None:
                self._file.renew_end_room()

    def _record_stop(self, t_ns: int) -> None:
        """Say in the file why it stops, once, in the room that is kept for its end: this process may be
        killed before that. `t_ns`: when the first message arrived that the disk did not take."""
        if self._stop_is_recorded:
            return
        self._stop_is_recorded = True
        self._write_in_end_room([self._stop_message(t_ns)], self._end_bytes)

    def _stop_message(self, t_ns: int) -> Received:
        return Received(t_ns, -1, 0, 0, Event("recording", t_ns, -1, -1, {"note": self.note}))

    def _leaves_end_room(self, payload_bytes: int) -> bool:
        """Whether a frame leaves room for what ends the file. The end itself may take that room."""
        assert self._file is not None
        # The INDEX that ends the file names every block that none names yet.
        end = FOOTER_BYTES + self._index.end_bytes
        if not self._thinner.full:
            end += self._end_bytes
        return self._file.size + HEADER.size + payload_bytes + end <= self._limit

    def _give_up(self, summary: BlockSummary) -> None:
        """Record only the end of the run from here on: there is no room for a block."""
        self.left_out += self._waiting.clear()
        if not self._thinner.full:
            self._thinner.full = True
            self._record_thinning(summary.last_ns)
            # Written at once: the next block would not fit either.
            self.flush()

    def _write_copy(self) -> None:
        """Keep the essential messages of the block before the last one twice: what damages the one place
        does not reach the other."""
        if self._to_copy is not None and self._file is not None:
            payload = copy_payload(*self._to_copy)
            if self._leaves_end_room(len(payload)):
                self._write_frame(COPY, payload)
        self._to_copy = None

    def _write_index(self, *, final: bool = False) -> None:
        assert self._file is not None
        offset = self._file.size
        if self._write_frame(INDEX, self._index.payload()):
            self._index.note_written(offset)
            every = self._thinner.every
            # Right behind the INDEX: there a reader looks for it without a list of its own.
            if self.history is None or (past := self.history.take(final=final, coarser=every)) is None:
                return
            from ddptop.recording.history import history_payload

            payload = history_payload(past)
            if payload is None or len(payload) > MAX_PAYLOAD:
                return
            if not self._leaves_end_room(len(payload)) or not self._write_frame(HISTORY, payload):
                self.history.take_back()

    def _record_thinning(self, now_ns: int) -> None:
        """In the file too: a reader must not count what was left out as lost."""
        self.note, self._recorded_every = self._thinner.note, self._thinner.every
        fields: dict[str, Scalar] = {
            "every": self._thinner.every,
            "beats_s": self._thinner.reading_s,
            "message": self.note,
            "full": self._thinner.full,
        }
        event = Event("thinned", now_ns, -1, -1, fields)
        self._block.add(Received(now_ns, -1, 0, 0, event), encode(event))

    def _write_frame(self, kind: int, payload: bytes, *, in_end_room: bool = False) -> bool:
        """Append a frame; False where the disk did not take it, and will be asked again."""
        assert self._file is not None
        data = pack_frame(kind, self._sequence, payload)
        try:
            if in_end_room:
                self._file.append_end(data)
            else:
                self._file.append_frame(data)
        except OSError as error:
            # In the room for the end a failure is no news: why the disk takes nothing is in the note already.
            if not in_end_room:
                self._failing = describe_disk_error(error)
                step = self._index.last_step
                where = f"at step {step:,}" if step != NO_STEP else "before the first step"
                self.note = f"{RECORDING_STOPPED} {where}: {self._failing}"
            return False
        self._sequence += 1
        return True

    def _close_file(self, file: AppendFile) -> None:
        self._block.clear()
        self._waiting.clear()
        self._file = None
        file.close()
