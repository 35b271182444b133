"""The agent's end of its link to the collector: relays what its ranks sent, unopened, and reports of its own.

Every numbered message is kept until the collector has acked it. The frames are in `bundles.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, NS
from ddptop.protocol.messages import Hello, Message, Received
from ddptop.transport.bundles import (
    INTRODUCE,
    MAX_BUNDLE_BYTES,
    MAX_ENTRIES,
    MAX_REPLY_BYTES,
    WINDOW_BYTES,
    BundleEntry,
    pack_bundle,
    unpack_reply,
)
from ddptop.transport.curve import ConnectionMonitor, KeyPair, make_client
from ddptop.transport.sockets import connect_dealer
from ddptop.transport.unacked import KeptMessage, Unacked

INTERVAL_NS = NS // 4
"""Longest that a message waits for others to be sent with; 250 ms is what a viewer does not notice."""

EMPTY_NS = NS // 2
"""A bundle goes out this often even if it is empty: it carries the clock exchange, and is a sign of life."""

MEMORY_BYTES = 64 << 20
"""Limit of messages in memory. Beyond it the oldest are dropped and counted, unless a file has them."""

SEND_HIGH, RECEIVE_HIGH = 4, 64
"""Bundles and replies in the socket. Few: a bundle that waits there delays all behind it, and its clock
exchange."""

RESEND_NS = 5 * NS
"""All is sent again when no ack got further for this long. TCP loses nothing on a connection; this is for a
reply that the collector could not send."""

RENEW_NS = 10 * NS
"""After this without a connection it is begun anew: libzmq does not try again where a key was refused, or
where something else than ZeroMQ answered."""

REWIND_NS = NS
"""Least time between two rewinds of one session: a burst of nacks about one hole answers one resend."""


class ClockSample(NamedTuple):
    """An exchange of times: by the agent's clock when a bundle was sent and its reply received, by the
    collector's when it was received and the reply sent."""

    sent_ns: int
    received_ns: int
    replied_ns: int
    back_ns: int


@dataclass(slots=True)
class Answers:
    """What the collector has answered since the last `exchange_messages`."""

    acked: list[tuple[int, int]] = field(default_factory=list)
    """(session, number): recorded up to it, more than before."""
    asked: list[tuple[int, int]] = field(default_factory=list)
    """(session, number of the ASK)."""
    clock: list[ClockSample] = field(default_factory=list)


class BundleSender:
    """Relays to the collector. All methods on one thread; none of them blocks.

    Past `memory_bytes` the oldest messages are given up and counted in `dropped`; `leave` is given them.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: Host,
        *,
        interval_ns: int = INTERVAL_NS,
        memory_bytes: int = MEMORY_BYTES,
        leave: Callable[[Sequence[KeptMessage]], object] | None = None,
    ) -> None:
        """`host` introduces the agent; its session is that of `report_message`."""
        self._context = context
        self._own_session = host.session
        self._interval_ns = interval_ns
        self._unacked = Unacked(memory_bytes, leave)
        # The agent's own reports are a session like any rank's, so that one rule acks both.
        self._unacked.begin_session(host.session, -1, encode(host))
        self._numbered = 0
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: ConnectionMonitor | None = None
        self._target: tuple[str, str, KeyPair] | None = None
        self._renew_ns = 0
        self._connections = 0
        self._is_new = False
        """The collector has not answered yet on this connection."""
        self.window_bytes = WINDOW_BYTES[0]
        """What may be in flight, as the collector shares it out."""
        self._waits_for_ack = False
        """Messages wait for an ack before they are sent."""
        self._nacked: set[int] = set()
        """Sessions (or INTRODUCE) that are to be rewound."""
        self._answers = Answers()
        """Since the last `exchange_messages`."""
        self._usage: bytes | None = None
        self._urgent = False
        self._due_ns = 0
        self._sent_ns = 0
        self._advanced_ns = 0
        self.epoch: int | None = None
        """Random number of the collector process; None: it has not answered yet."""
        self.detail_every = 1
        """Bucket detail is taken in one of so many steps, as the collector announces it to the ranks."""
        self.thin = 0
        """How far bucket detail is to be thinned out; 0: not at all."""
        self.replied_ns: int | None = None
        """When the collector last answered, by CLOCK_MONOTONIC; None: never."""
        self._too_large = 0

    @property
    def kept(self) -> int:
        """Messages that the collector has not acked."""
        return len(self._unacked)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the messages that are sent and not acked."""
        return self._unacked.in_flight_bytes

    @property
    def dropped(self) -> int:
        """Messages given up."""
        return self._unacked.dropped + self._too_large

    @property
    def memory_bytes(self) -> int:
        """Bytes of the messages that are kept in memory."""
        return self._unacked.memory_bytes

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a collector with the right key."""
        return self._monitor is not None and self._monitor.connected

    @property
    def trouble(self) -> str | None:
        """Why there is no connection, in one line; None: there is one."""
        return "no address of a collector yet" if self._monitor is None else self._monitor.trouble

    @property
    def socket(self) -> zmq.Socket[bytes] | None:
        """The socket to poll for replies; None before `connect_to`, and another one after each."""
        return self._socket

    def connect_to(self, endpoint: str, server_key: str, keys: KeyPair) -> None:
        """Connect to a collector (again and again until it answers), in place of the one before.

        Raises zmq.ZMQError, ValueError for an address or key that is none.
        """
        # A new address has a new socket: the old one would go on trying the old address.
        self._disconnect()
        self._target = (endpoint, server_key, keys)
        self._renew_ns = time.monotonic_ns() + RENEW_NS
        self._socket = connect_dealer(
            self._context,
            endpoint,
            send_high=SEND_HIGH,
            receive_high=RECEIVE_HIGH,
            max_bytes=MAX_REPLY_BYTES,
            prepare=self._prepare_socket,
        )

    def relay_message(self, received: Received, body: bytes) -> None:
        """A message as `AckedReceiver.drain_messages` gave it: HELLO, heartbeat, or one to keep until it is
        acked."""
        if isinstance(received.message, Hello):
            self._unacked.begin_session(received.session, received.rank, body)
            self._urgent = True
        elif received.session not in self._unacked.sessions:
            raise ValueError(f"session {received.session} has sent no HELLO")
        elif received.seq == 0:
            self._unacked.sessions[received.session].beat = body
        else:
            self._unacked.keep_message(received.session, received.seq, body)

    def report_message(self, message: Message, *, urgent: bool = False) -> None:
        """Number a message of the agent's own (ABOUT, CLOCK, EVENT) and keep it until it is acked."""
        body = encode(message)
        # The collector refuses a bundle with a longer message as a whole, and would at each resend.
        if len(body) > MAX_RANK_MESSAGE_BYTES:
            self._too_large += 1
            return
        self._numbered += 1
        self._unacked.keep_message(self._own_session, self._numbered, body)
        self._urgent |= urgent

    def set_usage(self, message: HostUsage) -> None:
        """Send this reading with the next bundle; a newer one replaces it."""
        self._usage = encode(message)

    def flush(self) -> None:
        """Let the next `exchange_messages` send at once: a rank's process waits for an ack before it ends."""
        self._urgent = True

    def forget_session(self, session: int) -> None:
        """Forget a process that has ended: its HELLO is not sent again. What is not acked of it is still
        sent."""
        if session != self._own_session:
            self._unacked.forget_session(session)

    def unacked_messages(self) -> list[KeptMessage]:
        """The messages that are kept in memory, oldest first: for a recording of the agent's own that begins
        now."""
        return [*self._unacked.messages_in_memory()]

    def session_hellos(self) -> list[tuple[int, int, bytes]]:
        """(session, rank, HELLO or HOST) of the sessions that are known, the agent's own first."""
        return [(name, session.rank, session.hello) for name, session in self._unacked.sessions.items()]

    def exchange_messages(self, now_ns: int | None = None) -> Answers:
        """Read replies and send what is due."""
        if self._socket is None or self._monitor is None:
            return Answers()
        self._monitor.read_events()
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        if self._monitor.connections != self._connections:
            self._connections = self._monitor.connections
            self._is_new = True
            # A new connection may lead to a collector that knows nothing: all that is not acked is sent
            # again.
            self.window_bytes = WINDOW_BYTES[0]
            self._rewind_all(now_ns)
        self._read_replies()
        answers, self._answers = self._answers, Answers()
        if self._nacked:
            self._rewind_nacked(now_ns)
        # With nothing in flight there is nothing whose ack could be late.
        if not self.in_flight_bytes:
            self._advanced_ns = now_ns
        elif now_ns - self._advanced_ns > RESEND_NS:
            self._rewind_all(now_ns)
        if self._monitor.connected:
            self._renew_ns = now_ns + RENEW_NS
            self._send_due(now_ns)
        elif now_ns > self._renew_ns and self._target is not None:
            self._renew_ns = now_ns + RENEW_NS
            with suppress(zmq.ZMQError):  # there is none any more
                self._socket.disconnect(self._target[0])
            self._socket.connect(self._target[0])
        return answers

    def compare_clocks(self, within_s: float) -> None:
        """Send an empty bundle, which is answered at once, and wait for the answer, so long at most in all.

        The next `exchange_messages` returns what has come. Both times are then those of the socket, not of a
        round."""
        # A collector that does not know this agent on this connection answers no empty bundle.
        if self._socket is None or self._is_new or not self.connected:
            return
        end_s = time.monotonic() + within_s
        time.sleep(random.random() * within_s / 2)  # at a fixed moment the collector may always be busy
        self._read_replies()
        if not self._is_ready(zmq.POLLOUT):
            return
        compared = len(self._answers.clock)
        with suppress(zmq.Again):
            self._socket.send(pack_bundle(time.monotonic_ns(), ()), zmq.NOBLOCK)
        while len(self._answers.clock) == compared and (left_s := end_s - time.monotonic()) > 0:
            if self._socket.poll(int(1000 * left_s) + 1):
                self._read_replies()

    def close(self) -> None:
        """Close the socket; the context is the caller's."""
        self._disconnect()

    def _prepare_socket(self, socket: zmq.Socket[bytes]) -> None:
        assert self._target is not None
        _, server_key, keys = self._target
        make_client(socket, server_key, keys)
        self._monitor = ConnectionMonitor(socket)
        self._connections = 0

    def _disconnect(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = self._monitor = None

    def _is_ready(self, event: int) -> bool:
        """Whether the socket can be read or written: costs a tenth of an attempt."""
        assert self._socket is not None
        events = self._socket.get(zmq.EVENTS)
        assert isinstance(events, int)
        return bool(events & event)

    def _read_replies(self) -> None:
        assert self._socket is not None
        while self._is_ready(zmq.POLLIN):
            self._note_reply(self._socket.recv_multipart(zmq.NOBLOCK)[0], self._answers)

    def _note_reply(self, data: bytes, answers: Answers) -> None:
        back_ns = time.monotonic_ns()
        try:
            reply = unpack_reply(data)
        except ProtocolError:
            return
        # On a new connection everything is sent again in any case.
        restarted = not self._is_new and reply.epoch != self.epoch
        self._is_new = False
        self.epoch, self.detail_every, self.thin = reply.epoch, reply.detail_every, reply.thin
        self.replied_ns, self.window_bytes = back_ns, reply.window_bytes
        if reply.t0_ns:
            answers.clock.append(ClockSample(reply.t0_ns, reply.t1_ns, reply.t2_ns, back_ns))
        for name, seq in reply.acks:
            # An ack that is late, after a rewind, takes nothing off: it is no progress.
            if self._unacked.note_ack(name, seq):
                answers.acked.append((name, seq))
                self._advanced_ns = back_ns
                # At once, because the window that was full has room again.
                self._urgent |= self._waits_for_ack
        answers.asked += reply.asks
        if restarted:
            self._rewind_all(back_ns)
        self._nacked.update(reply.nacks)

    def _rewind_nacked(self, now_ns: int) -> None:
        """Send again what is missing. Many nacks about one hole are on their way at a time."""
        for name in [*self._nacked]:
            # INTRODUCE stands for all sessions; the agent's own one tells when that was last done.
            session = self._unacked.sessions.get(self._own_session if name == INTRODUCE else name)
            if session is not None and now_ns - session.rewound_ns < REWIND_NS:
                continue
            self._nacked.discard(name)
            if name == INTRODUCE:
                self._rewind_all(now_ns)
            elif session is not None:
                self._unacked.rewind_session(name, now_ns, probes=True)
                self._urgent = True

    def _rewind_all(self, now_ns: int) -> None:
        for name in self._unacked.sessions:
            self._unacked.rewind_session(name, now_ns)
        self._nacked.clear()
        self._advanced_ns = now_ns
        self._urgent = True

    def _send_due(self, now_ns: int) -> None:
        assert self._socket is not None
        while self._urgent or now_ns >= self._due_ns:
            if not self._is_ready(zmq.POLLOUT):
                return
            entries, has_more = self._next_entries(now_ns)
            if not entries and now_ns - self._sent_ns < EMPTY_NS:
                return
            try:
                self._socket.send(pack_bundle(time.monotonic_ns(), entries), zmq.NOBLOCK)
            except zmq.Again:
                # What was taken for it is sent again when the connection is back.
                self._rewind_all(now_ns)
                return
            self._sent_ns = now_ns
            self._urgent = has_more
            self._due_ns = now_ns + self._interval_ns

    def _next_entries(self, now_ns: int) -> tuple[list[BundleEntry], bool]:
        """What the next bundle holds, and whether there is more than fits in."""
        entries = self._unacked.take_greetings(now_ns)
        if self._usage is not None:
            entries.append(BundleEntry(self._own_session, -1, 0, 0, self._usage))
            self._usage = None
        size = sum(len(entry.body) for entry in entries)
        # These go out whatever the window has room for: they are a sign of life, and nobody acks them.
        self._waits_for_ack = self.in_flight_bytes >= self.window_bytes
        if self._waits_for_ack:
            return entries, False
        for entry in self._unacked.take_unsent():
            entries.append(entry)
            size += len(entry.body)
            # Room for one more message of any size, so that no bundle exceeds MAX_BUNDLE_BYTES.
            if size >= MAX_BUNDLE_BYTES - MAX_RANK_MESSAGE_BYTES or len(entries) >= MAX_ENTRIES:
                return entries, True
            if self.in_flight_bytes >= self.window_bytes:
                self._waits_for_ack = True
                break
        return entries, False
