"""What is on its way to the collector, and the recording of this host's own while it is not reached.

Every message is kept until the collector has acked it: in memory (`BundleSender`), and once the collector has
not acked anything for OUTAGE_NS in a local recording as well. A rank is acked when the collector or that file
has its messages. Past OVERFLOW_BYTES new messages go to the file alone, and are read back from it in order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.agent.local_recording import Kept, LocalRecording
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import HOST_END, About
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, NS
from ddptop.protocol.messages import (
    TRAITS,
    Card,
    Clock,
    Event,
    Hello,
    Layout,
    Membership,
    Message,
    Progress,
    Received,
    Run,
    Steps,
    count_rows,
)
from ddptop.protocol.outlets import print_text
from ddptop.recording.format import RecordingError

if TYPE_CHECKING:
    from ddptop.transport.bundle_sender import Answers, BundleSender
    from ddptop.transport.unacked import KeptMessage

OUTAGE_NS = 5 * NS
"""The agent begins a local recording when messages have waited this long for an ack."""

# Below the limit of `BundleSender`: messages go to the file before any of them is dropped.
OVERFLOW_BYTES = 48 << 20
"""Bytes in memory beyond which messages go to the local recording alone, until it holds at most
REFILL_BYTES."""

REFILL_BYTES = 16 << 20

RETRY_NS = 10 * NS
"""Pause before another attempt to begin a local recording. A disk may be full only for some time."""

BEAT_NS = NS
"""One heartbeat a second of each rank is in the local recording, as in every other."""

LASTING = (Layout, Card, Membership)
"""Messages that hold for the rest of a session: a recording that begins later needs them."""

LIMIT_BYTES = 1 << 30

FIRST_NUMBER = 1 << 20
"""First number of an agent that continues the local recording of another one. Messages that it reads back
from that recording get lower numbers."""


class Outbox:
    """Keeps every message of this host until the collector has it."""

    def __init__(
        self,
        sender: BundleSender,
        session: int,
        run: Run,
        path: Path | None,
        notify: Callable[[str, str], None],
        *,
        limit_bytes: int = LIMIT_BYTES,
        outage_ns: int | None = None,
        overflow_bytes: int = OVERFLOW_BYTES,
        refill_bytes: int = REFILL_BYTES,
    ) -> None:
        """`session`: the agent's own. `run` begins a local recording at `path`; None: there is none.
        `notify` takes a kind of notice and its text, for a person. The others are for tests."""
        self._sender = sender
        self._session = session
        self._run = run
        self.path = path
        """Path of the next local recording; None: there is none."""
        self._notify = notify
        self._limit_bytes = limit_bytes
        self._outage_ns = OUTAGE_NS if outage_ns is None else outage_ns
        self._overflow_bytes = overflow_bytes
        self._refill_bytes = refill_bytes
        self._local: LocalRecording | None = None
        self._retry_ns: int | None = 0
        """When a local recording may be begun; None: never, as it was deleted."""
        self._overflows = False
        """New messages go to the file alone: something before them has left memory."""
        self._waiting_ns: int | None = None
        """Since when messages wait for an ack; None: none do."""
        self._lasting: dict[int, dict[tuple[object, ...], Kept]] = {}
        """By session."""
        self._read_back_last: dict[int, Kept] = {}
        """By session: the message that was read back last."""
        self._beat_ns: dict[int, int] = {}
        self._clock: Kept | None = None
        self._numbered = 0
        """Number of the agent's newest own message."""
        self._numbered_again = 0
        self._end_number = 0
        """Number of the agent's message that reports its end, until it is acked."""
        self.rows = 0
        """Step records that were taken."""
        self.lost_rows = 0
        """How many of these had room neither in memory nor in the file."""
        self.without_detail = 0
        """How many lost their bucket detail: they were in the file alone, which was near its limit."""
        self._missing = self._bare = 0
        """What the local recording has counted of the two so far."""
        self.in_file = 0
        """Messages that are in the local recording and not in memory."""
        self._rows_in_file = 0
        """Step records of these."""

    @property
    def n_kept(self) -> int:
        """Messages that the collector has not acked."""
        return self._sender.kept + self.in_file

    @property
    def is_delivered(self) -> bool:
        """Whether the collector has acked everything but the report of this agent's end."""
        return self.n_kept <= bool(self._end_number)

    @property
    def local_recording(self) -> str | None:
        """Path of the recording that is being written; None: none is."""
        return None if self._local is None else str(self._local.path)

    @property
    def trouble_note(self) -> str | None:
        """What is wrong with it, for a person."""
        return None if self._local is None else self._local.trouble_note

    @property
    def is_safe(self) -> bool:
        """Whether all that was taken would survive this process, as it is in the local recording."""
        return self._local is not None and self._local.is_safe

    def resume_recording(self, path: Path) -> None:
        """Send what an agent before this one has recorded and the collector may not have."""
        try:
            self._local = LocalRecording(path, limit_bytes=self._limit_bytes, resume=True)
        except (OSError, RecordingError) as error:
            print_text(f"ddptop agent: {path}: {error}", file=sys.stderr)
            return
        # All that is in the file counts as on its way, and is read back before anything new is relayed.
        self._overflows = True
        self._numbered = FIRST_NUMBER

    def take_message(self, received: Received, body: bytes) -> None:
        """A message that a rank of this host has sent."""
        message = received.message
        kept = Kept(*received[:4], body)
        self.rows += count_rows(message)
        if isinstance(message, Progress):
            # A heartbeat must not overtake the steps before it, which are in the file alone.
            if not self._overflows:
                self._sender.relay_message(received, body)
            self._record_beat(kept)
            return
        if isinstance(message, LASTING):
            # Of each layout generation and each model the newest one.
            key = (type(message), *(getattr(message, name, 0) for name in ("generation", "model")))
            self._lasting.setdefault(received.session, {})[key] = kept
        self._keep_message(received, kept)

    def report_message(self, message: About | Clock | Event, now_ns: int, *, urgent: bool = False) -> int:
        """Keep a message of the agent's own; returns its number, 0 where it is too large to be sent."""
        # Such a message would be refused with the whole bundle.
        body = encode(message)
        if len(body) > MAX_RANK_MESSAGE_BYTES:
            return 0
        self._numbered += 1
        kept = Kept(now_ns, -1, self._session, self._numbered, body)
        # The newest clock only: a local recording that begins later needs one to place its times.
        if isinstance(message, Clock):
            self._clock = kept
        self._keep_message(Received(*kept[:4], message), kept)
        if urgent:
            self._sender.flush()
        return self._numbered

    def report_end(self, now_ns: int) -> None:
        """Report that this agent ends, so that the collector, which has everything, need not wait for it."""
        self._end_number = self.report_message(Event(HOST_END, now_ns, -1, -1, {}), now_ns, urgent=True)

    def update_recording(self, now_ns: int, answers: Answers) -> None:
        """Begin, write, read back or delete the local recording, as is due."""
        if any(name == self._session and number >= self._end_number for name, number in answers.acked):
            self._end_number = 0
        if self.is_delivered:
            self._waiting_ns = None
        # Each ack starts the wait anew: a slow collector that goes on is no outage.
        elif answers.acked or self._waiting_ns is None:
            self._waiting_ns = now_ns
        if self._local is None:
            waits = self._waiting_ns is not None and now_ns - self._waiting_ns >= self._outage_ns
            if waits or self._sender.memory_bytes > self._overflow_bytes:
                self.begin_local_recording(now_ns)
            return
        self._local.write_due(now_ns)
        self._count_missing()
        if not self._overflows and self._sender.memory_bytes > self._overflow_bytes:
            self._begin_overflow()
        if self._overflows and self._sender.memory_bytes <= self._refill_bytes:
            self._read_back()
        # Not before all was read back: what is in the file alone would go with it.
        if self.is_delivered and not self._overflows:
            self._local.delete_file()
            self._local = None
            self._notify("local end", "the collector has all that this host had recorded by itself")

    def check_recording(self) -> None:
        """Check once a second that the local recording has not been deleted."""
        if self._local is None:
            return
        self._local.check_file()
        if self._local.trouble_note is not None:
            self._notify(self._local.trouble_note, self._local.trouble_note)
        if self._local.is_removed:
            # What was in it alone is lost, which the collector sees as a gap.
            self.lost_rows += self._rows_in_file
            self._local.delete_file()
            self._local, self._retry_ns, self._overflows = None, None, False
            self.in_file = self._rows_in_file = 0

    def note_dropped(self, messages: Sequence[KeptMessage]) -> None:
        """Count the records among messages that leave memory, which is full, and that no file has."""
        for message in messages:
            with suppress(ProtocolError):
                self.lost_rows += count_rows(decode(message.body))

    def begin_local_recording(self, now_ns: int) -> None:
        """Record from now on, and first of all what waits; nothing happens where nothing does."""
        if self.is_delivered or self._local is not None or self.path is None:
            return
        if self._retry_ns is None or now_ns < self._retry_ns:
            return
        try:
            local = LocalRecording(self.path, limit_bytes=self._limit_bytes)
        except (OSError, RecordingError, RuntimeError) as error:
            self._retry_ns = now_ns + RETRY_NS
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._notify(
                "local failed", f"not recorded on this host either: {self.path}: {reason}; tried again"
            )
            return
        local.add_run(self._run, now_ns)
        waiting = self._sender.unacked_messages()
        # A reader of the file needs the HELLO of a session before its messages.
        in_order = {(message.session, message.seq) for message in waiting}
        for session, rank, hello in self._sender.session_hellos():
            local.add_message(Kept(now_ns, rank, session, 0, hello))
            for kept in self._lasting.get(session, {}).values():
                # Before those with lower numbers it would stand for them where the file is read back.
                if (session, kept.seq) not in in_order:
                    local.add_message(kept)
        if self._clock is not None:
            local.add_message(self._clock)
        for message in waiting:
            local.add_message(Kept(now_ns, *message))
        # Written at once: only then may the ranks be acked for what was waiting.
        local.write_all()
        # These messages are still in memory, and need not be read back.
        local.skip_to_end()
        self._local, self._missing, self._bare = local, local.missing_rows, local.without_detail
        self._notify(
            "local", f"the collector is not reached; this host is recorded in {local.path} until it is"
        )

    def close_recording(self, run: Run | None, now_ns: int = 0) -> str | None:
        """End the local recording, if there is one; returns its path. `run`: how the run has ended."""
        if self._local is None:
            return None
        if run is not None:
            self._local.add_run(run, now_ns)
        self._local.close()
        path, self._local = str(self._local.path), None
        return path

    def _keep_message(self, received: Received, kept: Kept) -> None:
        if self._local is not None:
            self._local.add_message(kept)
            self._count_missing()
        # A HELLO is always relayed: without it the collector would refuse what is read back later.
        if isinstance(received.message, Hello) or not self._overflows:
            self._sender.relay_message(received, kept.body)
        else:
            self.in_file += 1
            self._rows_in_file += count_rows(received.message)

    def _count_missing(self) -> None:
        """Count what the local recording leaves out, where nothing else has it."""
        assert self._local is not None
        missing, bare = self._local.missing_rows, self._local.without_detail
        # Only while nothing else has the rows: what is in memory as well is not lost.
        if self._overflows:
            self.lost_rows += missing - self._missing
            self._rows_in_file = max(0, self._rows_in_file - (missing - self._missing))
            self.without_detail += bare - self._bare
        self._missing, self._bare = missing, bare

    def _record_beat(self, kept: Kept) -> None:
        before_ns = self._beat_ns.get(kept.session)
        if self._local is not None and (before_ns is None or kept.t_ns - before_ns >= BEAT_NS):
            self._beat_ns[kept.session] = kept.t_ns
            self._local.add_message(kept)

    def _begin_overflow(self) -> None:
        assert self._local is not None
        self._local.write_all()
        # Not before the file has all of it: what is not written must not leave memory.
        if self._local.is_safe:
            self._local.skip_to_end()
            self._overflows = True

    def _read_back(self) -> None:
        """Bring the next messages from the file into memory; all of them are there at its end."""
        assert self._local is not None
        while self._sender.memory_bytes <= self._refill_bytes:
            messages = self._local.read_next()
            if messages is None:
                # Where the disk takes nothing, the newest messages are not in the file yet: they are read
                # back later.
                self._overflows = self._local.is_failing
                if not self._overflows:
                    self.in_file = self._rows_in_file = 0
                return
            for kept in messages:
                self._send_again(kept)

    def _send_again(self, kept: Kept) -> None:
        try:
            message = decode(kept.body)
        except ProtocolError:
            return
        # Of the agent before this one: its numbers belong to its session, and the collector knows this one.
        if kept.rank == -1 and kept.session != self._session:
            if not _is_about_once(message):
                return
            self._numbered_again += 1
            kept = kept._replace(session=self._session, seq=self._numbered_again)
        elif kept.seq:
            self._rows_in_file = max(0, self._rows_in_file - count_rows(message))
            before = self._read_back_last.get(kept.session)
            if before is not None and before.seq == kept.seq:  # the link takes a number once
                # A part of a message that was thinned out; or the whole message once more, where an agent
                # was killed before its rank had the ack.
                is_part = isinstance(message, Steps) and before.body != kept.body
                self.lost_rows += count_rows(message) if is_part else 0
                return
            self._read_back_last[kept.session] = kept
            self.in_file = max(0, self.in_file - 1)
        elif not isinstance(message, Hello):
            return  # a heartbeat or a reading of then
        with suppress(ValueError):  # the HELLO of a session was damaged: nothing can be sent of it
            self._sender.relay_message(Received(*kept[:4], message), kept.body)


def _is_about_once(message: Message) -> bool:
    """Whether an agent's message is no reading, of which only the newest counts."""
    if not isinstance(message, About):
        return False
    try:
        return not TRAITS[type(decode(message.body))].is_reading
    except ProtocolError:
        return False
