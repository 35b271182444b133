"""Receives from the agents of other hosts: what their ranks sent, and their own reports.

Over TCP, with CURVE: the `Gate` of the context decides who may connect. The frames are in `bundles.py`, the
rule of what is accepted in `sessions.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import zmq

from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import Host
from ddptop.protocol.limits import MAX_SHOWN_WORLD, NS, VERSION
from ddptop.protocol.message_run import EncodedRun
from ddptop.protocol.messages import TRAITS, Hello, Message, message_code
from ddptop.transport.bundled_messages import (
    AcceptedEntries,
    Arrived,
    ConnectedAgent,
    Entries,
    decode_accepted,
    valid_entries,
)
from ddptop.transport.bundles import (
    HEAD_BYTES,
    INTRODUCE,
    MAX_WIRE_BYTES,
    WINDOW_BYTES,
    pack_columns,
    sent_ns,
)
from ddptop.transport.curve import AGENTS, KeyPair, make_server
from ddptop.transport.sessions import ReceivedSession, ReceivedSessions
from ddptop.transport.sockets import Refusals, bind_router, receive_frames, send_frames

# Few, so that a collector that falls behind makes the agents keep what they have, where it is acked or
# written.
HIGH = 16
"""Bundles and replies per connection that wait in the socket; the rest stays with the agents."""

SESSIONS_OF_AN_OWNER = 4
"""Known at a time of a rank, or of a host's agents: a host that comes back after elastic restarts reports of
processes that were replaced since."""

MAX_UNKNOWN = 4096
"""Sessions without HELLO that are nacked at a time on one connection."""

ECHO_NS = NS // 4
"""After this the time of a bundle is echoed even though nothing of it is recorded yet."""

MANY_AGENTS, HELD_NS = 16, NS
"""With more agents than this, each gets its acks so often: to send a reply costs as much as to receive a
bundle, of which an agent sends four a second. So all agents together can send ALL_WINDOWS_BYTES a second,
several times what one collector can take."""

TOGETHER_NS = NS // 5
"""With more agents what they sent is taken this often: 2,000 bundles a second then take two thirds of the
CPU time that they take 15 times a second, 256 half. They are read at once: their times compare clocks."""

ALL_WINDOWS_BYTES = 64 << 20
"""Shared by all agents: what they may have sent and not acked together, as far as WINDOW_BYTES goes."""

DRAIN_BYTES = 2 << 20
"""Bytes of bundles that are read at a time: decoded they take some ten times as much."""

# Those of which only the newest counts, so that they need neither a number nor an ack.
_NOT_NUMBERED = {traits.code for traits in TRAITS.values() if traits.is_reading and not traits.is_numbered}


class BundleReceiver(Refusals):
    """Receives bundles from the agents, and acks those messages that are safe. It has the methods of
    `AckedReceiver`, and none of them blocks.

    `endpoint`: `tcp://ADDRESS:PORT`, port `*` for one that is free (`self.port` has it). `context` is one
    that has a `Gate`; without it everybody is refused. `epoch` names this collector process. `seen` maps
    sessions to the highest number that is recorded already.
    `admit` is asked about every HELLO and HOST, with the host that it came from (None for a HOST), and raises
    ProtocolError to refuse it.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        keys: KeyPair,
        *,
        epoch: int,
        seen: Mapping[int, int] | None = None,
        admit: Callable[[Hello | Host, Host | None], None] | None = None,
    ) -> None:
        """Raises zmq.ZMQError where the address cannot be bound."""
        super().__init__()
        self._admit = admit
        self._epoch = epoch
        self._sessions = ReceivedSessions(seen, of_an_owner=SESSIONS_OF_AN_OWNER)
        self._agents: dict[bytes, ConnectedAgent] = {}
        """By route."""
        self._hosts: set[str] = set()
        self._to_echo: set[bytes] = set()
        self._echo_due_ns = self._held_until_ns = self._take_ns = 0
        self._waiting: list[Arrived] = []
        """Bundles that were read and are to be taken together."""
        self._waiting_bytes = 0
        self._to_ask: set[bytes] = set()
        self._unknown: dict[bytes, set[int]] = {}
        self.detail_every = 1
        """Announced in every reply: the group's largest sampling interval."""
        self.thin = 0
        """Announced likewise: how far the agents are to thin out bucket detail."""
        self.emptied = True
        """Whether the last `drain_bundles` has read all that had arrived."""
        self.socket = bind_router(
            context,
            endpoint,
            high=HIGH,
            max_bytes=MAX_WIRE_BYTES,
            prepare=lambda socket: make_server(socket, keys, AGENTS),
        )
        # Without it libzmq drops a reply to a connection that is gone without a word.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        bound = self.socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.port = int(bound.rstrip(b"\0").rpartition(b":")[2])

    def note_recorded(self, session: int, seq: int) -> None:
        """Note that an earlier collector has kept the session up to `seq`; before the first
        `drain_bundles`."""
        self._sessions.note_recorded(session, seq)

    def connected_agents(self) -> list[ConnectedAgent]:
        """The agents that are, or were, connected; the newest connection of each."""
        return list(self._agents.values())

    def agent_of(self, session: int) -> ConnectedAgent | None:
        """The agent over which the last message of a session came."""
        received = self._sessions.by_number.get(session)
        return None if received is None else self._agents.get(received.route)

    def drain_bundles(self, now_ns: int, limit: int = 100, *, at_once: bool = False) -> EncodedRun:
        """All messages in the bundles that have arrived; where agents are many, every TOGETHER_NS unless
        `at_once`. At most `limit` bundles are read, and not many more than DRAIN_BYTES are held.

        A rank's messages are as from `AckedReceiver`; an agent's own have rank -1 and the agent's session.
        """
        self._read_bundles(now_ns, limit)
        # Bundles that compare clocks were answered already while reading: holding the others costs no
        # accuracy.
        if now_ns < self.held_until_ns and not at_once and self._waiting_bytes <= DRAIN_BYTES:
            return NOTHING
        self._take_ns = now_ns + TOGETHER_NS
        if not self._waiting:
            return NOTHING
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        arrived, entries = valid_entries(waiting, self._note_refusal)
        if not arrived:
            return NOTHING
        accepted = self._accept_entries(arrived, entries, now_ns)
        del waiting, arrived, entries  # their messages are in one piece now
        return decode_accepted(accepted, now_ns, self._note_refusal) if len(accepted.bodies) else NOTHING

    @property
    def held_until_ns(self) -> int:
        """Before this moment `drain_bundles` only reads; 0: agents are few."""
        return self._take_ns if len(self._agents) > MANY_AGENTS else 0

    def mark_safe(self, session: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`; the next `acknowledge` says so."""
        self._sessions.mark_safe(session, seq)

    def acknowledge(self, *, safe: bool = True, at_once: bool = False) -> None:
        """Reply to the agents from which something came since the last reply.

        With `safe`, all that was drained so far is kept for good, and acked; where agents are many, every
        HELD_NS unless `at_once`. Without, acks wait; what is missing and what is asked is sent.
        """
        now_ns = time.monotonic_ns()
        # An ack that is held says more when it comes: the sessions' numbers have gone on meanwhile.
        safe &= at_once or len(self._agents) <= MANY_AGENTS or now_ns >= self._held_until_ns
        if safe:
            self._held_until_ns = now_ns + HELD_NS
        nacks: dict[bytes, list[int]] = {route: [*names] for route, names in self._unknown.items()}
        self._unknown.clear()
        acks: dict[bytes, list[int]] = {}
        for session in self._sessions.take_answers(safe=safe):
            acks.setdefault(session.route, []).extend((session.number, session.safe))
            if session.nack:
                nacks.setdefault(session.route, []).append(session.number)
        routes = acks.keys() | nacks.keys()
        # Without an ack the echo waits: most replies would then hold nothing else.
        if safe or now_ns >= self._echo_due_ns:
            routes |= self._to_echo
        asks, self._to_ask = self._to_ask, set()
        for route in routes | asks:
            self._send_reply(route, acks.get(route, ()), nacks.get(route, ()))

    def ask_rank(self, session: int, number: int) -> None:
        """Ask the rank behind a session what it is doing, with the next `acknowledge`; may get lost."""
        agent = self.agent_of(session)
        if agent is not None:
            agent.asks.append((session, number))
            self._to_ask.add(self._sessions.by_number[session].route)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket, leaving last replies that long to go out; the context is the caller's."""
        self.socket.close(linger=linger_ms)

    def _read_bundles(self, now_ns: int, limit: int) -> None:
        """Read the bundles that have arrived. One that compares clocks is answered at once."""
        self.emptied, receive = False, self.socket.recv
        for _ in range(limit):
            if self._waiting_bytes > DRAIN_BYTES:
                # `emptied` stays False: the caller comes back without waiting for the socket.
                return
            try:
                route, frame = receive(zmq.NOBLOCK), receive(zmq.NOBLOCK, copy=False)  # two frames at least
                read_ns = time.monotonic_ns()
                if frame.more:
                    # Read, though it is refused: the frames left would be taken for the next message's.
                    raise ProtocolError(f"{2 + len(receive_frames(self.socket))} frames")
                if len(frame) > HEAD_BYTES:
                    self._waiting.append((route, read_ns, frame))
                    self._waiting_bytes += len(frame)
                else:
                    self._note_clock(route, sent_ns(frame.bytes), read_ns, now_ns)
            except zmq.Again:
                self.emptied = True
                return
            # The socket itself is broken or closed, which no further message mends.
            except zmq.ZMQError:
                raise
            except Exception as error:  # noqa: BLE001  # no message may end the collector
                self._note_refusal(error)

    def _send_reply(self, route: bytes, acks: Sequence[int], nacks: Sequence[int]) -> None:
        agent = self._agents.get(route)
        t0_ns, t1_ns, asks = (agent.t0_ns, agent.read_ns, agent.asks) if agent is not None else (0, 0, [])
        if agent is not None:
            agent.t0_ns, agent.asks = 0, []
        self._to_echo.discard(route)
        window = min(max(ALL_WINDOWS_BYTES // max(1, len(self._agents)), WINDOW_BYTES[0]), WINDOW_BYTES[1])
        head = (self._epoch, self.detail_every, self.thin, window, t0_ns, t1_ns if t0_ns else 0)
        columns = (np.array(numbers, "<i8").tobytes() if numbers else b"" for numbers in (acks, nacks, asks))
        frame = pack_columns((*head, time.monotonic_ns()), *columns)
        try:
            send_frames(self.socket, route, frame)
        except zmq.ZMQError:  # it does not read, or is not connected: it sends again what is not acked
            return

    def _accept_entries(self, arrived: Sequence[Arrived], entries: Entries, now_ns: int) -> AcceptedEntries:
        """The entries that are accepted, in their order.

        Each by itself: a rule in columns beside that of `sessions.py` saved 0.7 us a message, which is one
        hundredth of a core with 4,096 ranks.
        """
        bodies, accept_next, find = entries.bodies, self._sessions.accept_next, self._sessions.by_number.get
        columns = (entries.sessions, entries.ranks, entries.seqs, entries.seqs_before())
        rows = [*zip(*(column.tolist() for column in columns), strict=True)]
        accepted: list[int] = []
        decoded: dict[int, Message] = {}
        begin = 0
        ends = np.cumsum(entries.counts).tolist()
        for arrival, t0_ns, end in zip(arrived, entries.t0_ns, ends, strict=True):
            route = arrival[0]
            for index in range(begin, end):
                name, rank, seq, after = rows[index]
                session = find(name)
                if (
                    session is None
                    or route not in self._agents
                    or not (seq or message_code(bodies[index]) in _NOT_NUMBERED)
                ):
                    message = self._take_introduction(route, session, rows[index], bodies[index], now_ns)
                    if message is not None:
                        decoded[len(accepted)] = message
                        accepted.append(index)
                elif session.rank != rank:
                    self._note_refusal(ProtocolError("session of another rank"))
                # Seen before it is decoded: what is refused now would be refused every time.
                elif not seq or accept_next(session, seq, after, route):
                    accepted.append(index)
            begin = end
            self._note_bundle(arrival, t0_ns, now_ns)
        heads = np.stack([entries.ranks, entries.sessions, entries.seqs])
        if len(accepted) == len(bodies):
            return AcceptedEntries(heads, bodies, decoded)
        return AcceptedEntries(
            heads[:, np.array(accepted, np.int64)], [bodies[place] for place in accepted], decoded
        )

    def _note_clock(self, route: bytes, t0_ns: int, read_ns: int, now_ns: int) -> None:
        """Note that a bundle compares clocks: the agent waits for this reply, which acks nothing."""
        agent = self._agents.get(route)
        if agent is not None:
            agent.heard_ns, agent.t0_ns, agent.read_ns = now_ns, t0_ns, read_ns
            self._send_reply(route, (), ())

    def _note_bundle(self, arrival: Arrived, t0_ns: int, now_ns: int) -> None:
        """Note that a bundle was taken: its agent is to be answered."""
        route, read_ns, _ = arrival
        agent = self._agents.get(route)
        if agent is None:
            return
        agent.heard_ns, agent.t0_ns, agent.read_ns = now_ns, t0_ns, read_ns
        if not self._to_echo:
            few = len(self._agents) <= MANY_AGENTS
            # With many agents acks come once a second, and carry the echo: a reply of its own would cost
            # as much again.
            self._echo_due_ns = read_ns + (ECHO_NS if few else ECHO_NS + HELD_NS)
        self._to_echo.add(route)

    def _take_introduction(
        self, route: bytes, session: ReceivedSession | None, row: Sequence[int], body: bytes, now_ns: int
    ) -> Message | None:
        """HELLO or HOST, returned where it makes the session known; what comes without one of these before it
        is nacked. `row`: session, rank, number, and the number before it."""
        name, rank, seq, _ = row
        try:
            message = decode(body) if seq == 0 else None
            if isinstance(message, Host) and rank == -1:
                self._introduce_agent(route, message, session, name, now_ns)
            elif route not in self._agents:
                # A rank cannot be let in before it is known through whose agent it comes.
                self._note_nack(route, INTRODUCE)
                return None
            elif isinstance(message, Hello):
                self._greet_rank(route, message, session, (name, rank))
            elif session is None:
                self._note_nack(route, name)
                return None
            elif session.rank != rank:
                raise ProtocolError("session of another rank")
            else:
                raise ProtocolError(f"{type(message).__name__} without a number")
        except Exception as error:  # noqa: BLE001  # an entry costs that entry
            self._note_refusal(error)
            return None
        # A repeated HELLO changes nothing and is not recorded a second time.
        return message if session is None else None

    def _note_nack(self, route: bytes, session: int) -> None:
        # A set: an agent sends hundreds of messages of one session before the nack reaches it.
        names = self._unknown.setdefault(route, set())
        if len(names) < MAX_UNKNOWN:
            names.add(session)

    def _introduce_agent(
        self, route: bytes, host: Host, session: ReceivedSession | None, name: int, now_ns: int
    ) -> None:
        if host.version != VERSION:
            raise ProtocolError(f"version {host.version}")
        if host.session != name:
            raise ProtocolError("HOST does not belong to its head")
        # Hosts are never forgotten while the run lasts, so that their number has a limit.
        if host.name not in self._hosts and len(self._hosts) >= MAX_SHOWN_WORLD:
            raise ProtocolError(f"more than {MAX_SHOWN_WORLD:,} hosts")
        if session is not None and session.rank != -1:
            raise ProtocolError("session of another rank")
        if self._admit is not None:
            self._admit(host, None)
        self._hosts.add(host.name)
        if session is None:
            self._sessions.begin_session(name, -1, route, owner=host.name)
        else:
            self._sessions.note_route(session, route)
        # Of each agent the newest connection counts; those of sessions that are forgotten count no more.
        self._agents = {
            other_route: agent
            for other_route, agent in self._agents.items()
            if agent.host.session != host.session and agent.host.session in self._sessions.by_number
        }
        self._agents[route] = ConnectedAgent(host, now_ns)

    def _greet_rank(
        self, route: bytes, hello: Hello, session: ReceivedSession | None, head: tuple[int, int]
    ) -> None:
        if hello.version != VERSION:
            raise ProtocolError(f"version {hello.version}")
        if (hello.session, hello.rank) != head:
            raise ProtocolError("HELLO does not belong to its head")
        if not hello.rank < hello.world_size <= MAX_SHOWN_WORLD:
            raise ProtocolError(f"rank {hello.rank} of {hello.world_size}")
        if session is not None and session.rank != hello.rank:
            raise ProtocolError("session of another rank")
        if self._admit is not None:
            # The agent's host is given, so that a rank cannot claim to be on another one.
            self._admit(hello, self._agents[route].host)
        if session is None:
            self._sessions.begin_session(hello.session, hello.rank, route, owner=hello.rank)
        else:
            self._sessions.note_route(session, route)


NOTHING = EncodedRun(np.empty((4, 0), np.int64), np.empty(0, np.int64), None, [], [])
