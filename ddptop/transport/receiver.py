"""The collector's end of the acked link: every session's messages in order, none twice, none skipped over.

Rule: only `seq == seen + 1` is accepted; a later one is discarded and nacked, so that nothing past a hole
is ever acked. A `base` beyond that means that the hole will never be filled: reading continues from there,
and the reducer sees the loss as a gap in step numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgpack
import zmq

from ddptop.protocol.codec import ProtocolError, UnknownType, decode, encode
from ddptop.protocol.evidence import Ask, Evidence
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, MAX_STEP, MAX_WORLD, VERSION
from ddptop.protocol.machine import Memory
from ddptop.protocol.messages import (
    Ack,
    Bye,
    Card,
    Event,
    Hello,
    Layout,
    Logged,
    Membership,
    Message,
    Progress,
    Received,
    Replica,
    Steps,
)
from ddptop.transport.sockets import bind, peer_pid

HIGH = 50
"""Messages per connection that wait in the socket; the rest stays in the senders' windows."""

MAX_HEAD_BYTES = 48
"""Four msgpack integers and the array's own byte take at most 37."""

SESSIONS_OF_A_RANK = 2
"""Known at a time: a rank's process, and the one before it, whose last messages may still be on their way.
A HELLO beyond that makes the oldest unknown, so that HELLOs without end take no memory."""

_HEAD_LIMITS = {f"max_{kind}_len": 0 for kind in ("map", "str", "bin", "ext")} | {"max_array_len": 4}

NUMBERED = (Steps, Event, Layout, Card, Bye, Evidence, Replica, Membership, Memory, Logged)


class Head(NamedTuple):
    """First frame of a message on the acked link."""

    session: int
    rank: int
    seq: int
    base: int


@dataclass(slots=True)
class _Session:
    rank: int
    seen: int
    """Highest number accepted or given up for lost."""
    safe: int
    """Highest number that was acked."""
    route: bytes
    """ZeroMQ's name of the connection that its last message came over."""
    nack: bool = False


def read_head(data: bytes) -> Head:
    """Parse and check a head. Raises ProtocolError."""
    if len(data) > MAX_HEAD_BYTES:
        raise ProtocolError(f"head of {len(data)} bytes")
    try:
        fields = msgpack.unpackb(data, **_HEAD_LIMITS)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError("head is no msgpack") from error
    if not isinstance(fields, list) or len(fields) != 4 or any(type(item) is not int for item in fields):
        raise ProtocolError("head is not four integers")
    head = Head(*fields)
    if not (
        0 < head.session < 2**63
        and 0 <= head.rank < MAX_WORLD
        and 0 <= head.seq < MAX_STEP
        and 0 < head.base < MAX_STEP
    ):
        raise ProtocolError("head out of range")
    return head


class AckedReceiver:
    """Receives messages from ranks and acks those that are safe.

    `epoch` names this collector process. `seen` maps sessions to the highest number that a collector before
    this one has recorded, so that nothing is doubled. `run_id` refuses ranks of another run.
    With `hold_acks` messages are acked only by `acknowledge`, once they are safe; otherwise by `drain`.
    `admit` is asked about every HELLO, with the pid of the process that sent it (None: not known), and raises
    ProtocolError to refuse it.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        epoch: int,
        seen: Mapping[int, int] | None = None,
        run_id: str | None = None,
        hold_acks: bool = False,
        admit: Callable[[Hello, int | None], None] | None = None,
    ) -> None:
        self._admit = admit
        self._epoch = epoch
        self._seen = dict(seen or {})
        self._run_id = run_id
        self._hold_acks = hold_acks
        self._sessions: dict[int, _Session] = {}
        self._sessions_of: dict[int, list[int]] = {}
        """By rank, oldest first."""
        self._to_ack: set[int] = set()
        self.detail_every = 1
        """Announced in every ACK: the group's largest sampling interval."""
        self.refused = 0
        """Messages that were not valid."""
        self.refused_why = ""
        """Why the last of them was refused."""
        self.unknown = 0
        """Messages of a type that this version does not know."""
        self.socket = bind(context, endpoint, high=HIGH, max_bytes=MAX_RANK_MESSAGE_BYTES, heartbeat=True)

    def recall(self, session: int, seq: int) -> None:
        """A collector before this one has kept the session up to `seq`; before the first `drain`."""
        self._seen[session] = max(seq, self._seen.get(session, 0))

    def drain(self, now_ns: int, limit: int = 1000) -> list[tuple[Received, bytes]]:
        """All messages that have arrived, at most `limit`, each with its encoded body. Never blocks."""
        accepted: list[tuple[Received, bytes]] = []
        for _ in range(limit):
            try:
                frames = self._receive()
            except zmq.Again:
                break
            try:
                received = self._accept(frames, now_ns)
            except UnknownType:
                self.unknown += 1
            except Exception as error:  # noqa: BLE001  # no message may end the collector
                self.refused += 1
                self.refused_why = str(error) if isinstance(error, ProtocolError) else repr(error)
            else:
                if received is not None:
                    accepted.append(received)
        if not self._hold_acks:
            self.acknowledge()
        return accepted

    def acknowledge(self, *, safe: bool = True) -> None:
        """Answer the sessions from which messages came since the last answer.

        With `safe`, all that was drained so far is kept for good, and acked. Without, sessions with messages
        that are not yet safe wait for their ack; heartbeats and holes are answered.
        """
        waiting = set()
        for name in self._to_ack:
            session = self._sessions[name]
            if safe:
                session.safe = session.seen
            elif session.safe < session.seen:
                waiting.add(name)
                if not session.nack:
                    continue
            self._answer(session.route, session.safe, session.nack)
            session.nack = False
        self._to_ack = waiting

    def ask(self, session: int, number: int) -> None:
        """Ask the rank behind a session for EVIDENCE, if it has sent anything; never blocks, may get lost."""
        known = self._sessions.get(session)
        if known is not None:
            self._send(known.route, encode(Ask(number)))

    def close(self) -> None:
        """Close the socket; the context is the caller's."""
        self.socket.close(linger=0)

    def _answer(self, route: bytes, seq: int, nack: bool) -> None:
        self._send(route, encode(Ack(self._epoch, seq, nack, self.detail_every)))

    def _send(self, route: bytes, body: bytes) -> None:
        try:
            self.socket.send_multipart([route, body], zmq.NOBLOCK)
        except zmq.ZMQError:  # full or closed: the sender asks again
            return

    def _receive(self) -> list[bytes | zmq.Frame]:
        """The frames of the next message, the last one uncopied: it carries the sender's pid.

        Raises zmq.Again.
        """
        frames: list[bytes | zmq.Frame] = [self.socket.recv(zmq.NOBLOCK)]
        while self.socket.getsockopt(zmq.RCVMORE):
            frames.append(self.socket.recv(zmq.NOBLOCK, copy=len(frames) != 2))
        return frames

    def _accept(self, frames: list[bytes | zmq.Frame], now_ns: int) -> tuple[Received, bytes] | None:
        if len(frames) != 3:
            raise ProtocolError(f"{len(frames)} frames")
        route, head_frame, frame = frames
        assert isinstance(route, bytes) and isinstance(head_frame, bytes) and isinstance(frame, zmq.Frame)
        body = frame.bytes
        head = read_head(head_frame)
        session = self._sessions.get(head.session)
        if session is None or head.seq == 0:
            message = self._unnumbered(route, head, session, body, frame)
            return None if message is None else (Received(now_ns, head.rank, head.session, 0, message), body)
        if session.rank != head.rank:
            raise ProtocolError("session of another rank")
        session.route = route
        self._to_ack.add(head.session)
        session.seen = max(session.seen, head.base - 1)
        if head.seq != session.seen + 1:
            session.nack |= head.seq > session.seen
            return None
        # Counted as seen before it is decoded: what is refused now would be refused again every time.
        session.seen = head.seq
        return Received(now_ns, head.rank, head.session, head.seq, _allowed(decode(body), NUMBERED)), body

    def _unnumbered(
        self, route: bytes, head: Head, session: _Session | None, body: bytes, frame: zmq.Frame
    ) -> Message | None:
        if session is None and head.seq:
            self._answer(route, 0, True)  # it has not sent HELLO to this collector
            return None
        message = _allowed(decode(body), (Hello, Progress))
        if session is not None and session.rank != head.rank:
            raise ProtocolError("session of another rank")
        if not isinstance(message, Hello):
            if session is None:
                self._answer(route, 0, True)
                return None
            session.route = route
            self._to_ack.add(head.session)
            return message
        self._check_hello(message, head)
        if self._admit is not None:
            self._admit(message, peer_pid(frame))
        known = session is not None
        session = session or self._know(head, route)
        session.route = route
        self._to_ack.add(head.session)
        return None if known else message

    def _know(self, head: Head, route: bytes) -> _Session:
        """Begin a session, and forget the oldest one of the rank where that is one too many."""
        of_rank = self._sessions_of.setdefault(head.rank, [])
        of_rank.append(head.session)
        if len(of_rank) > SESSIONS_OF_A_RANK:
            oldest = of_rank.pop(0)
            self._to_ack.discard(oldest)
            del self._sessions[oldest]
        seen = self._seen.pop(head.session, 0)
        session = self._sessions[head.session] = _Session(head.rank, seen, seen, route)
        return session

    def _check_hello(self, hello: Hello, head: Head) -> None:
        if hello.version != VERSION:
            raise ProtocolError(f"version {hello.version}")
        if (hello.session, hello.rank) != (head.session, head.rank) or hello.rank >= hello.world_size:
            raise ProtocolError("HELLO does not belong to its head")
        if self._run_id is not None and hello.run_id != self._run_id:
            raise ProtocolError("HELLO of another run")


def _allowed(message: Message, types: tuple[type, ...]) -> Message:
    if not isinstance(message, types):
        raise ProtocolError(f"{type(message).__name__} is not for a rank to send here")
    return message
