"""The rank's end of the acked link: what is offered is kept until the collector has acked it.

Wire: two frames, [head, body]. The head is msgpack [session, rank, seq, base], where `seq` counts the
offered messages from 1 (0: HELLO and heartbeats, which are not acked) and `base` is the oldest message
still kept: what lies before it and has not arrived never will. The collector answers with one frame, an ACK,
and may send an ASK in between, which is answered in order with all else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgpack

from ddptop.protocol.codec import decode_answer, hello_head
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.evidence import Ask, asks_for_samples
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES
from ddptop.protocol.messages import Ack
from ddptop.transport.zmtp import Dealer

RESEND_S = 1.5
"""Everything is sent again when no ACK got further for this long. The collector acks what it has written,
four times a second; through an agent, of which it has more than 16, an ACK may take 1.25 s."""

RESEND_CLOSING_S = 0.25
"""RESEND_S at the end, when time is short: the collector acks a BYE as soon as it has read it."""

REWIND_S = 0.1
"""Least time between two rewinds: a burst of NACKs about one hole answers one resend."""

# A rank's end waits for acks in steps of this: the process that exits has at most 0.8 s.
CLOSE_POLL_S = 0.005


class AckedSender:
    """Delivers numbered messages across collector restarts. All methods on one thread.

    `hello` gives the encoded HELLO; it is asked at every new connection and every restart of the collector.
    `window_bytes` bounds what is kept unacked: past it the oldest message is dropped, which the collector
    sees as a gap in step numbers. It, not the connection, is where messages wait.
    """

    def __init__(self, endpoint: str, hello: Callable[[], bytes], *, window_bytes: int = 1 << 20) -> None:
        self._hello = hello
        self._window_bytes = window_bytes
        self._window: dict[int, bytes] = {}
        self._bytes = 0
        self._base = 1
        self._next = 1
        # A position in the window, not a queue of what is unsent: a rewind only moves it back.
        self._cursor = 1
        self._head = (0, 0)
        self._greeted = False
        self._beat: bytes | None = None
        self._epoch: int | None = None
        self._advanced = self._rewound = time.monotonic()
        self._resend_s = RESEND_S
        # A forked child has this object, too, and must not send on the connection of its parent.
        self._pid = os.getpid()
        self.asked = 0
        """Number of the collector's newest ASK for evidence; 0: none came."""
        self.asked_samples = 0
        """Number of its newest ASK for stack samples; 0: none came."""
        self.dropped = 0
        """Messages given up: pushed out of the window, or too large to be sent at all."""
        self._dealer = Dealer(endpoint, max_bytes=MAX_RANK_MESSAGE_BYTES)
        self._connections = 0
        """Number of the dealer's connection over which the HELLO was last sent, or is to be sent."""
        self._closed = False

    @property
    def pending(self) -> int:
        """Messages offered and not yet acked."""
        return len(self._window)

    def offer_message(self, body: bytes) -> None:
        """Number a message and keep it until it is acked; `exchange_messages` sends it."""
        if len(body) > MAX_RANK_MESSAGE_BYTES:  # the collector would close the connection over it, every time
            self.dropped += 1
            return
        # The wait for an ack begins with the first message that can be acked, not with the last ack.
        if not self._window:
            self._advanced = time.monotonic()
        self._window[self._next] = body
        self._next += 1
        self._bytes += len(body)
        # The newest message stays in any case: with one alone there is nothing older to give up.
        while self._bytes > self._window_bytes and self.pending > 1:
            self._forget_oldest()
            self.dropped += 1

    def greet_with(self, hello: Callable[[], bytes]) -> None:
        """Send this HELLO from the next connection on."""
        self._hello = hello

    def set_heartbeat(self, body: bytes) -> None:
        """Send this heartbeat with the next `exchange_messages`, if it can be sent then; never again."""
        self._beat = body

    def send_heartbeat(self) -> None:
        """Send it without reading what has arrived, which takes as long again in cold caches."""
        if self._connections == self._dealer.connections:
            self._send_due()
            self._dealer.flush()

    def exchange_messages(self) -> Ack | None:
        """Read acks and send what is due. Returns the newest ack, None if there was none.

        Never blocks; where it has just connected it waits for the collector's READY (`ANSWER_S`).
        """
        newest = None
        for frames in self._dealer.receive_messages():
            ack = self._read_answer(frames[0])
            if ack is not None:
                newest = ack
                self._note_ack(ack)
        now = time.monotonic()
        # A new connection may lead to a collector that has seen nothing.
        if self._connections != self._dealer.connections:
            self._connections = self._dealer.connections
            self._rewind_to_oldest(now)
        # Counted from the later of the two: an ack that is on its way shall have the time to come.
        elif self._window and now - max(self._advanced, self._rewound) > self._resend_s:
            self._rewind_to_oldest(now)
        self._send_due()
        self._dealer.flush()
        return newest

    def has_arrived(self) -> bool:
        """Whether `exchange_messages` would read something now."""
        return self._dealer.has_arrived()

    def drain_unacked(self, patience_s: float) -> None:
        """Go on until all is acked, at most `patience_s` seconds."""
        usual, self._resend_s = self._resend_s, RESEND_CLOSING_S
        end = time.monotonic() + patience_s
        self.exchange_messages()
        while self._window and (left_s := end - time.monotonic()) > 0:
            self._dealer.wait_until_ready(min(CLOSE_POLL_S, left_s))
            self.exchange_messages()
        self._resend_s = usual

    def close(self, drain_s: float) -> int:
        """Go on until all is acked, at most `drain_s` seconds; returns the number of messages left unacked.

        In a forked child it only closes the child's copy of the connection.
        """
        # From `close` on nothing may be sent: the descriptor may belong to something else by then.
        if os.getpid() == self._pid and not self._closed:
            self.drain_unacked(drain_s)
        self._closed = True
        self._dealer.close()
        return self.pending

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the connection. Its parent's thread goes on with the other."""
        self._closed = True
        self._dealer.close_in_child()

    def _read_answer(self, body: bytes) -> Ack | None:
        try:
            message = decode_answer(body)
        except ProtocolError:
            return None
        if isinstance(message, Ask):
            if asks_for_samples(message.number):
                self.asked_samples = message.number
            else:
                self.asked = message.number
        return message if isinstance(message, Ack) else None

    def _note_ack(self, ack: Ack) -> None:
        now = time.monotonic()
        # A late ack for what is acked already is no progress.
        if self._base <= ack.seq:
            self._advanced = now
        while self._window and self._base <= ack.seq:
            self._forget_oldest()
        restarted = self._epoch is not None and ack.epoch != self._epoch
        self._epoch = ack.epoch
        # A collector that has restarted knows nothing: all is sent again, from the HELLO on.
        # Not for each NACK: several about one hole are on their way at a time.
        if restarted or (ack.nack and now - self._rewound > REWIND_S):
            self._rewind_to_oldest(now)

    def _forget_oldest(self) -> None:
        self._bytes -= len(self._window.pop(self._base))
        self._base += 1
        self._cursor = max(self._cursor, self._base)

    def _rewind_to_oldest(self, now: float) -> None:
        self._cursor = self._base
        self._rewound = now
        self._greeted = False  # the collector that misses something may have missed the HELLO

    def _send_due(self) -> None:
        # Taken out before it is sent: one that cannot be sent now would be old next time.
        beat, self._beat = self._beat, None
        # First of all: whatever comes before the HELLO is nacked.
        if not self._greeted:
            if not self._dealer.is_ready:
                return
            hello = self._hello()
            self._head = hello_head(hello)
            if not self._send_frames(0, hello):
                return
            self._greeted = True
        while self._cursor < self._next:
            if not self._send_frames(self._cursor, self._window[self._cursor]):
                return
            self._cursor += 1
        # Last, since it says what the rank is at now, after these steps.
        if beat is not None:
            self._send_frames(0, beat)

    def _send_frames(self, seq: int, body: bytes) -> bool:
        return self._dealer.send_message(msgpack.packb((*self._head, seq, self._base)), body)
