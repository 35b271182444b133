"""What a host's agent keeps until the collector has acked it: messages of many sessions, by arrival.

Each session has a cursor: what lies before it is sent and not acked. A rewind puts it back to the oldest.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddptop.protocol.limits import NS
from ddptop.transport.bundles import BundleEntry

OVERHEAD_BYTES = 200
"""Bytes that Python's objects take for each message that is kept."""

SESSIONS_OF_A_RANK = 4
"""Sessions of a rank that are kept: more than `AckedReceiver` knows at a time."""

BEAT_NS = NS
"""Least time between two heartbeats of a rank of which other messages are sent too: half of what a collector
of thousands of ranks receives would be heartbeats."""

MAX_BACK = 2**32 - 1
"""A hole in a session's numbers that is wider cannot be said in a bundle."""


class KeptMessage(NamedTuple):
    """A message that the collector has not acked."""

    rank: int
    session: int
    seq: int
    body: bytes


@dataclass(slots=True, eq=False)
class _QueuedMessage:
    order: int
    """Number over all sessions, by arrival."""
    seq: int
    body: bytes | None
    """None: it is acked, or given up."""
    size: int


@dataclass(slots=True, eq=False)
class OutgoingSession:
    """A session: its HELLO (of the agent's own: HOST), and what of it is not acked."""

    rank: int
    hello: bytes
    greeted: bool = False
    """The HELLO is sent, and nothing has called for it since."""
    beat: bytes | None = None
    """The newest heartbeat that is not sent."""
    beat_ns: int = 0
    """When the last one was sent."""
    kept: list[_QueuedMessage] = field(default_factory=list)
    probes: bool = False
    """It was nacked: only the first message is sent until an ack shows that it is taken. A collector may
    refuse a session for long, and its messages are not to be in the way of the others'."""
    cursor: int = 0
    """Index in `kept` of the first that is not sent."""
    rewound_ns: int = 0


class Unacked:
    """Messages by session, with a bound on the memory that they take.

    Past `memory_bytes` the oldest are given up and counted in `dropped`; `leave` is given them before.
    """

    def __init__(
        self,
        memory_bytes: int,
        leave: Callable[[Sequence[KeptMessage]], object] | None = None,
    ) -> None:
        self._most_bytes = memory_bytes
        self._leave = leave
        self._order = 0
        self._in_memory: deque[tuple[int, _QueuedMessage]] = deque()
        """(session, message) by arrival; those that were acked since are skipped."""
        self.sessions: dict[int, OutgoingSession] = {}
        self.memory_bytes = 0
        """What the messages take that are in memory."""
        self.in_flight_bytes = 0
        """What those take that are sent and not acked."""
        self.dropped = 0

    def __len__(self) -> int:
        return sum(len(session.kept) for session in self.sessions.values())

    def begin_session(self, name: int, rank: int, hello: bytes) -> None:
        """Keep a session's HELLO. Earlier processes of the rank that have no messages left are forgotten."""
        outgoing = self.sessions.get(name)
        if outgoing is not None:
            outgoing.hello = hello
            return
        self.sessions[name] = OutgoingSession(rank, hello)
        # Insertion order is order of time: the earliest processes of a rank are forgotten.
        of_rank = [name for name, session in self.sessions.items() if session.rank == rank]
        for older in of_rank[:-SESSIONS_OF_A_RANK]:
            self.forget_session(older)

    def forget_session(self, name: int) -> None:
        """Forget a session, unless messages of it are kept."""
        outgoing = self.sessions.get(name)
        # With messages kept, the session is needed to send them.
        if outgoing is not None and not outgoing.kept:
            del self.sessions[name]

    def keep_message(self, name: int, seq: int, body: bytes) -> None:
        """Keep a message of a session that has begun; numbers ascend, a second one is ignored."""
        session = self.sessions[name]
        # A rank sends all again where an ack is late: what is here already is not kept twice.
        if session.kept and seq <= session.kept[-1].seq:
            return
        self._order += 1
        item = _QueuedMessage(self._order, seq, body, len(body) + OVERHEAD_BYTES)
        session.kept.append(item)
        self._in_memory.append((name, item))
        self.memory_bytes += item.size
        if self.memory_bytes > self._most_bytes:
            self._give_up_oldest()

    def messages_in_memory(self) -> Iterator[KeptMessage]:
        """The messages whose bodies are in memory, oldest first."""
        for name, item in self._in_memory:
            if item.body is not None:
                yield KeptMessage(self.sessions[name].rank, name, item.seq, item.body)

    def note_ack(self, name: int, seq: int) -> bool:
        """Let go of a session's messages up to `seq`; whether there were any."""
        session = self.sessions.get(name)
        if session is None:
            return False
        n = 0
        for item in session.kept:
            if item.seq > seq:
                break
            if item.body is not None:
                self.memory_bytes -= item.size
                item.body = None
            if n < session.cursor:
                self.in_flight_bytes -= item.size
            n += 1
        del session.kept[:n]
        session.cursor = max(0, session.cursor - n)
        # It takes them again: all of the others follow.
        session.probes &= n == 0
        # Acked messages in the middle stay until those before them go: each is removed once, not searched
        # for.
        while self._in_memory and self._in_memory[0][1].body is None:
            self._in_memory.popleft()
        return n > 0

    def rewind_session(self, name: int, now_ns: int, *, probes: bool = False) -> None:
        """All that is kept of a session is to be sent again, HELLO first; `probes`: one message at first."""
        session = self.sessions[name]
        session.probes = probes
        self.in_flight_bytes -= sum(item.size for item in session.kept[: session.cursor])
        session.cursor = 0
        session.greeted = False  # a collector that misses something may have missed the HELLO
        session.rewound_ns = now_ns

    def take_greetings(self, now_ns: int) -> list[BundleEntry]:
        """HELLOs and heartbeats that are to be sent; the HELLOs come first."""
        entries = [
            BundleEntry(name, session.rank, 0, 0, session.hello)
            for name, session in self.sessions.items()
            if not session.greeted
        ]
        for name, session in self.sessions.items():
            session.greeted = True
            reports = session.cursor < len(session.kept)
            # Alone, a heartbeat is the only sign of life: it is then sent at once.
            if session.beat is not None and now_ns - session.beat_ns >= (BEAT_NS if reports else 0):
                entries.append(BundleEntry(name, session.rank, 0, 0, session.beat))
                session.beat, session.beat_ns = None, now_ns
        return entries

    def take_unsent(self) -> Iterator[BundleEntry]:
        """The messages that are not sent, by arrival over all sessions: the collector puts the ranks' steps
        together. Those that are taken count as sent."""
        heap = [
            # Only the first message of each session is in the heap: the others follow it in their own order.
            (session.kept[session.cursor].order, name)
            for name, session in self.sessions.items()
            if session.cursor < len(session.kept) and not (session.probes and session.cursor)
        ]
        heapq.heapify(heap)
        while heap:
            _, name = heap[0]
            session = self.sessions[name]
            item = session.kept[session.cursor]
            back = item.seq - session.kept[session.cursor - 1].seq if session.cursor else 0
            session.cursor += 1
            self.in_flight_bytes += item.size
            assert item.body is not None
            yield BundleEntry(name, session.rank, item.seq, back if back <= MAX_BACK else 0, item.body)
            if session.cursor < len(session.kept) and not session.probes:
                heapq.heapreplace(heap, (session.kept[session.cursor].order, name))
            else:
                heapq.heappop(heap)

    def _give_up_oldest(self) -> None:
        """A quarter of what may be kept is given up, the oldest first."""
        leaving: list[KeptMessage] = []
        while self._in_memory and self.memory_bytes > self._most_bytes * 3 // 4:
            name, item = self._in_memory.popleft()
            if item.body is not None:
                leaving.append(KeptMessage(self.sessions[name].rank, name, item.seq, item.body))
                self._give_up(self.sessions[name], item)
        if self._leave is not None:
            self._leave(leaving)

    def _give_up(self, session: OutgoingSession, item: _QueuedMessage) -> None:
        """What comes after it does not wait for it."""
        index = session.kept.index(item)
        del session.kept[index]
        if index < session.cursor:
            session.cursor -= 1
            self.in_flight_bytes -= item.size
        self.memory_bytes -= item.size
        item.body = None
        self.dropped += 1
