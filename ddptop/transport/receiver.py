"""Receives from the ranks of this host: every session's messages in order, none twice, none skipped over.

The rule is in `sessions.py`. A rank sends all that it keeps: only `seq == seen + 1` is accepted. A `base`
beyond that means that the hole will never be filled: reading continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgpack
import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.evidence import Ask
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES, MAX_STEP, MAX_WORLD, VERSION
from ddptop.protocol.messages import (
    CODES,
    Ack,
    Hello,
    Message,
    Progress,
    Received,
    Steps,
    select_kinds,
)
from ddptop.protocol.step_rows import valid_parts
from ddptop.transport.sessions import ReceivedSession, ReceivedSessions
from ddptop.transport.sockets import Refusals, bind_router, peer_pid, receive_frames

HIGH = 50
"""Messages per connection that wait in the socket; the rest stays in the senders' windows."""

MOST_DRAINED = 1000
"""Messages that are read at a time."""

FEWEST_BYTES = 2_000
"""STEPS of so many bytes that are read at a time take less CPU time when they are decoded together: eight of
one step 143 us in place of 215, eight of 150 steps 0.2 to 0.6 ms in place of 6 to 7 ms (load 4)."""

MAX_HEAD_BYTES = 48
"""Four msgpack integers and the array's own byte take at most 37."""

_HEAD_LIMITS = {f"max_{kind}_len": 0 for kind in ("map", "str", "bin", "ext")} | {"max_array_len": 4}

# The second byte of a message of one array: its type, without decoding it.
_STEPS = bytes([CODES[Steps]])

NUMBERED = select_kinds(lambda traits: traits.is_numbered and "rank" in traits.senders)


class MessageHead(NamedTuple):
    """First frame of a message on the acked link."""

    session: int
    rank: int
    seq: int
    base: int


class AcceptedMessage(NamedTuple):
    """A message that is new."""

    head: MessageHead
    body: bytes
    message: Message | None
    """None: it is numbered, and to be decoded."""


def read_head(data: bytes) -> MessageHead:
    """Parse and check a head. Raises ProtocolError."""
    if len(data) > MAX_HEAD_BYTES:
        raise ProtocolError(f"head of {len(data)} bytes")
    try:
        fields = msgpack.unpackb(data, **_HEAD_LIMITS)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError("head is no msgpack") from error
    if not isinstance(fields, list) or len(fields) != 4 or any(type(item) is not int for item in fields):
        raise ProtocolError("head is not four integers")
    head = MessageHead(*fields)
    if not (
        0 < head.session < 2**63
        and 0 <= head.rank < MAX_WORLD
        and 0 <= head.seq < MAX_STEP
        and 0 < head.base < MAX_STEP
    ):
        raise ProtocolError("head out of range")
    return head


class AckedReceiver(Refusals):
    """Receives messages from ranks and acks those that are safe.

    `epoch` names this collector process. `seen` maps sessions to the highest number that a collector before
    this one has recorded, so that nothing is doubled. `run_id` refuses ranks of another run.
    With `hold_acks` messages are acked only by `acknowledge`, once they are safe; otherwise by
    `drain_messages`. They become safe all together (`acknowledge(safe=True)`), or session by session
    (`mark_safe`).
    `admit` is asked about every HELLO, with the pid of the process that sent it (None: not known), and raises
    ProtocolError to refuse it. `also`: further types of messages that ranks may send (simulated ones).
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
        also: tuple[type, ...] = (),
    ) -> None:
        super().__init__()
        self._admit = admit
        self._numbered = (*NUMBERED, *also)
        self._epoch = epoch
        self._sessions = ReceivedSessions(seen)
        self._run_id = run_id
        self._hold_acks = hold_acks
        self.detail_every = 1
        """Announced in every ACK: the group's largest sampling interval."""
        self.one_part = False
        """Whether of STEPS with wrong rows only the longest part is given: a link onwards takes each number
        once. Then each message is decoded by itself, without numpy."""
        self._doubted: set[int] = set()
        """Known sessions whose last STEPS were not valid: their next ones are decoded alone first, so that
        not all that are read with them are decoded twice."""
        self.socket = bind_router(context, endpoint, high=HIGH, max_bytes=MAX_RANK_MESSAGE_BYTES)

    def note_recorded(self, session: int, seq: int) -> None:
        """Note that an earlier collector has kept the session up to `seq`; before the first
        `drain_messages`."""
        self._sessions.note_recorded(session, seq)

    def drain_messages(self, now_ns: int, limit: int = MOST_DRAINED) -> list[tuple[Received, bytes]]:
        """All messages that have arrived, at most `limit`, each with its encoded body. Never blocks."""
        entries: list[AcceptedMessage] = []
        for _ in range(limit):
            try:
                frames = self._receive_frames()
            except zmq.Again:
                break
            try:
                entry = self._accept_message(frames)
            except Exception as error:  # noqa: BLE001  # no message may end the collector
                self._note_refusal(error)
                continue
            if entry is not None:
                entries.append(entry)
        # After all were read, so that many STEPS can be decoded together.
        steps, accepted = self._decode_steps(entries), []
        for index, ((session, rank, seq, _), body, message) in enumerate(entries):
            try:
                ready = message or steps.get(index)
                messages = self._decode_message(session, rank, body) if ready is None else [(ready, body)]
            except Exception as error:  # noqa: BLE001  # likewise
                self._note_refusal(error)
                continue
            accepted += [
                (Received(now_ns, rank, session, seq, decoded), its_body) for decoded, its_body in messages
            ]
        if not self._hold_acks:
            self.acknowledge()
        return accepted

    def mark_safe(self, session: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`; the next `acknowledge` says so to its rank.

        For an agent: the collector has acked it, or a recording of the agent's own has it.
        """
        self._sessions.mark_safe(session, seq)

    def acknowledge(self, *, safe: bool = True) -> None:
        """Answer the sessions from which messages came since the last answer.

        With `safe`, all that was drained so far is kept for good, and acked. Without, sessions with messages
        that are not yet safe wait for their ack; heartbeats, holes and what `mark_safe` named are answered.
        """
        for session in self._sessions.take_answers(safe=safe):
            self._send_ack(session.route, session.safe, session.nack)

    def ask_rank(self, session: int, number: int) -> None:
        """Ask the rank behind a session, if it has sent anything; never blocks, may get lost."""
        rank_session = self._sessions.by_number.get(session)
        if rank_session is not None:
            self._send_body(rank_session.route, encode(Ask(number)))

    def close(self) -> None:
        """Close the socket; the context is the caller's."""
        self.socket.close(linger=0)

    def _send_ack(self, route: bytes, seq: int, nack: bool) -> None:
        self._send_body(route, encode(Ack(self._epoch, seq, nack, self.detail_every)))

    def _send_body(self, route: bytes, body: bytes) -> None:
        try:
            self.socket.send_multipart([route, body], zmq.NOBLOCK)
        except zmq.ZMQError:  # full or closed: the sender asks again
            return

    def _receive_frames(self) -> list[zmq.Frame]:
        """The frames of the next message: the last one carries the sender's pid. Raises zmq.Again."""
        return receive_frames(self.socket)

    def _accept_message(self, frames: list[zmq.Frame]) -> AcceptedMessage | None:
        # The route comes first, from libzmq; head and body are the rank's.
        if len(frames) != 3:
            raise ProtocolError(f"{len(frames)} frames")
        route, body = frames[0].bytes, frames[2].bytes
        head = read_head(frames[1].bytes)
        session = self._sessions.by_number.get(head.session)
        if session is None or head.seq == 0:
            message = self._take_unnumbered(route, head, session, body, frames[2])
            return None if message is None else AcceptedMessage(head._replace(seq=0), body, message)
        if session.rank != head.rank:
            raise ProtocolError("session of another rank")
        # Before `accept_next`: what the rank has dropped must not keep this message out.
        self._sessions.give_up(session, head.base)
        # Counted as seen before it is decoded: what is refused now would be refused again every time.
        is_next = self._sessions.accept_next(session, head.seq, head.seq - 1, route)
        return AcceptedMessage(head, body, None) if is_next else None

    def _decode_steps(self, entries: Sequence[AcceptedMessage]) -> dict[int, Steps]:
        """The STEPS among these, where they are many and all valid; by place."""
        places = [i for i, (_, body, message) in enumerate(entries) if not message and body[1:2] == _STEPS]
        if not self.one_part and sum(len(entries[i].body) for i in places) >= FEWEST_BYTES:
            # Otherwise one rank that always sends a damaged row would have all be decoded twice, in each
            # round.
            places = [i for i in places if not self._is_wrong(entries[i])]
            with suppress(Exception):  # no message may end the collector: each is decoded alone
                return dict(zip(places, decode_steps([entries[i].body for i in places]), strict=True))
        return {}

    def _is_wrong(self, entry: AcceptedMessage) -> bool:
        """Whether these STEPS are of a session whose last ones were not valid, and are not valid either."""
        if entry.head.session not in self._doubted:
            return False
        with suppress(Exception):  # it is refused when it is decoded again
            decode(entry.body)
            self._doubted.discard(entry.head.session)
            return False
        return True

    def _decode_message(self, session: int, rank: int, body: bytes) -> Sequence[tuple[Message, bytes]]:
        try:
            return [(_check_allowed(decode(body), self._numbered), body)]
        except ProtocolError as error:
            if body[1:2] != _STEPS:
                raise
            # Cut to the sessions that are known, so that processes that come and go take no memory.
            self._doubted = (self._doubted | {session}) & self._sessions.by_number.keys()
            return [(part, encode(part)) for part in self._valid_parts(rank, body, error)]

    def _valid_parts(self, rank: int, body: bytes, error: ProtocolError) -> list[Steps]:
        """What is right of STEPS with wrong rows, which are counted; raises the error where nothing is."""
        parts, wrong = valid_parts(body)
        if not parts:
            raise error
        if self.one_part:
            parts = [max(parts, key=lambda part: len(part.rows))]
        self.refused += len(wrong)
        self.refused_why = f"step {wrong[-1]} of rank {rank}: {error}"
        return parts

    def _take_unnumbered(
        self, route: bytes, head: MessageHead, session: ReceivedSession | None, body: bytes, frame: zmq.Frame
    ) -> Message | None:
        if session is None and head.seq:
            # seq 0 in the ack: the rank begins at its oldest message, with its HELLO.
            self._send_ack(route, 0, True)  # it has not sent HELLO to this collector
            return None
        message = _check_allowed(decode(body), (Hello, Progress))
        if session is not None and session.rank != head.rank:
            raise ProtocolError("session of another rank")
        if not isinstance(message, Hello):
            if session is None:
                self._send_ack(route, 0, True)
                return None
            self._sessions.note_route(session, route)
            return message
        self._check_hello(message, head)
        # The kernel's word about the sender, which the sender cannot forge.
        if self._admit is not None:
            self._admit(message, peer_pid(frame))
        if session is None:
            self._sessions.begin_session(head.session, head.rank, route, owner=head.rank)
            return message
        self._sessions.note_route(session, route)
        # A repeated HELLO is no news: it would begin the rank a second time in the recording.
        return None

    def _check_hello(self, hello: Hello, head: MessageHead) -> None:
        if hello.version != VERSION:
            raise ProtocolError(f"version {hello.version}")
        if (hello.session, hello.rank) != (head.session, head.rank) or hello.rank >= hello.world_size:
            raise ProtocolError("HELLO does not belong to its head")
        if self._run_id is not None and hello.run_id != self._run_id:
            raise ProtocolError("HELLO of another run")


def decode_steps(bodies: Sequence[bytes]) -> list[Steps]:
    """Decode STEPS into columns, as `step_columns.decode_steps`."""
    from ddptop.protocol import step_columns  # numpy: a host's agent needs none

    return step_columns.decode_steps(bodies)


def _check_allowed(message: Message, types: tuple[type, ...]) -> Message:
    if not isinstance(message, types):
        raise ProtocolError(f"{type(message).__name__} is not for a rank to send here")
    return message
