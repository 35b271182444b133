"""The ranks of one made-up host on one connection of the acked link.

An ack does not say which of the sessions on a connection it is for, so nothing is kept to be sent again:
every message gives its own number as the oldest one that is still there. What a collector misses while it is
started anew is then counted as lost, as it would be of ranks that had to drop it.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque

import msgpack
import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Ask
from ddptop.protocol.limits import MAX_FRAME_BYTES, VERSION
from ddptop.protocol.link import Ack
from ddptop.protocol.messages import Card, Hello, Layout, Membership, Message
from ddptop.sources.simulation.story import Story
from ddptop.transport.sockets import arrived, connect

RANKS_PER_NODE = 8

SEND_HIGH = 64
"""Two messages of every rank and more: the rest waits in `_due`."""

MOST_DUE = 4_000
"""Messages that wait for a collector that takes none; then the oldest are given up."""


class Node:
    """Some ranks. All methods on one thread; none of them blocks."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, run_id: str, ranks: range, story: Story
    ) -> None:
        self.ranks = ranks
        self.asked = 0
        """Number of the collector's newest ASK."""
        self._run_id = run_id
        self._story = story
        self._host = f"node{ranks.start // RANKS_PER_NODE:03d}"
        self._due: deque[tuple[bytes, bytes]] = deque(maxlen=MOST_DUE)
        self._epoch: int | None = None
        self._socket = connect(
            context, endpoint, send_high=SEND_HIGH, receive_high=SEND_HIGH, max_bytes=MAX_FRAME_BYTES,
            heartbeat=True,
        )  # fmt: skip

    @property
    def pending(self) -> int:
        """Messages that are not sent yet."""
        return len(self._due)

    def begin(self, incarnation: int, monotonic_ns: int, unix_ns: int) -> None:
        """New processes: every rank introduces itself."""
        self._sessions = [secrets.randbits(62) + 1 for _ in self.ranks]
        self._next = [1] * len(self.ranks)
        self._hellos = [
            encode(self._hello(rank, session, incarnation, monotonic_ns, unix_ns))
            for rank, session in zip(self.ranks, self._sessions, strict=True)
        ]
        self._greet()

    def _hello(self, rank: int, session: int, incarnation: int, monotonic_ns: int, unix_ns: int) -> Hello:
        local = rank % RANKS_PER_NODE
        return Hello(
            version=VERSION,
            run_id=self._run_id,
            session=session,
            rank=rank,
            world_size=self._story.world,
            local_rank=local,
            incarnation=incarnation,
            host=self._host,
            pid=10_000 + rank,
            device=f"cuda:{local}",
            backend="nccl",
            road="reducer",
            monotonic_ns=monotonic_ns,
            unix_ns=unix_ns,
            budget_pct=1.0,
        )

    def _greet(self) -> None:
        for at, hello in enumerate(self._hellos):
            self._put(at, 0, hello)
            if self.ranks.start + at == 0:
                self._offer(at, encode(Card({"script": "simulated", "host": socket.gethostname()})))
            self._offer(at, encode(Membership(0, "0", "nccl", ())))
            self._offer(at, encode(Layout(1, self._story.buckets)))

    def offer(self, rank: int, message: Message) -> None:
        """A numbered message of a rank."""
        self._offer(rank - self.ranks.start, encode(message))

    def beat(self, rank: int, message: Message) -> None:
        """A heartbeat of a rank."""
        self._put(rank - self.ranks.start, 0, encode(message))

    def service(self) -> None:
        """Send what can be sent, and hear the collector."""
        while self._due:
            try:
                self._socket.send_multipart(self._due[0], zmq.NOBLOCK)
            except zmq.Again:
                break
            self._due.popleft()
        for message in arrived(self._socket):
            self._hear(message)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close(linger=1000)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Ask):
            self.asked = message.number
        elif isinstance(message, Ack) and message.epoch != self._epoch:
            before, self._epoch = self._epoch, message.epoch
            if before is not None:
                self._greet()

    def _offer(self, at: int, body: bytes) -> None:
        self._put(at, self._next[at], body)
        self._next[at] += 1

    def _put(self, at: int, number: int, body: bytes) -> None:
        head = msgpack.packb((self._sessions[at], self.ranks.start + at, number, max(1, number)))
        self._due.append((head, body))
