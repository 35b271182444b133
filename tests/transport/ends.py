"""Both ends of the link between hosts in one process, over TCP with CURVE."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import Host
from ddptop.protocol.messages import Event, Hello, Message, Received
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.bundle_sender import Answers, BundleSender
from ddptop.transport.curve import AGENTS, Gate, KeyPair, make_client
from ddptop.transport.sockets import new_context
from tests import made_up_run

OWN = 9
"""Session of the first agent; that of its rank r is 100 + r."""


def host(session: int = OWN, name: str = "far") -> Host:
    return Host(1, "run", session, name, 1, 1, 1, 2, 1 << 30, "boot")


def hello(rank: int, session: int | None = None, world: int = 4096) -> Hello:
    session = 100 + rank if session is None else session
    return made_up_run.hello(rank, world, session=session, host="far", run_id="run")


def event(number: int, padding: int = 0) -> Event:
    return Event("test", 1, 0, number, {"padding": "x" * padding} if padding else {})


class Ends:
    """A collector's end, its successors, and agents' ends, in one process."""

    def __init__(self) -> None:
        self.context, self.far = new_context(), new_context()
        self.keys, self.agent_keys = KeyPair.new(), KeyPair.new()
        self.gate = Gate(self.context)
        self.gate.admit_keys(AGENTS, [self.agent_keys.public])
        self.port = 0
        self.arrived: list[Received] = []
        self.safe = True
        self.receiver = self.new_receiver()
        self._senders: list[BundleSender] = []
        self.answers: dict[BundleSender, Answers] = {}

    def new_receiver(self, **options: object) -> BundleReceiver:
        """Another collector at the same port, as after a restart."""
        if self.port:
            self.receiver.close()
        endpoint = f"tcp://127.0.0.1:{self.port or '*'}"
        options = {"epoch": time.monotonic_ns()} | options
        end = time.monotonic() + 60
        while True:
            try:
                self.receiver = BundleReceiver(self.context, endpoint, self.keys, **options)  # type: ignore[arg-type]
                break
            except zmq.ZMQError:  # the one before is still closing
                assert time.monotonic() < end
                time.sleep(0.01)
        self.port = self.receiver.port
        return self.receiver

    def sender(
        self, introduces: Host | None = None, *, port: int | None = None, **options: object
    ) -> BundleSender:
        options = {"interval_ns": 1_000_000} | options
        sender = BundleSender(self.far, introduces or host(), **options)  # type: ignore[arg-type]
        sender.connect_to(f"tcp://127.0.0.1:{port or self.port}", self.keys.public, self.agent_keys)
        self._senders.append(sender)
        self.answers[sender] = Answers()
        return sender

    def raw(self, keys: KeyPair | None = None) -> zmq.Socket[bytes]:
        """An agent that keeps to no rule."""
        socket = self.far.socket(zmq.DEALER)
        socket.linger = 0
        make_client(socket, self.keys.public, keys or self.agent_keys)
        socket.connect(f"tcp://127.0.0.1:{self.port}")
        return socket

    def turn(self) -> None:
        """Each end once."""
        for sender in self._senders:
            new, all_ = sender.exchange_messages(), self.answers[sender]
            all_.acked += new.acked
            all_.asked += new.asked
            all_.clock += new.clock
        self.gate.answer_questions()
        self.arrived += [received for received, _ in self.receiver.drain_bundles(time.monotonic_ns())]
        self.receiver.acknowledge(safe=self.safe)

    def until(self, condition: Callable[[], object], deadline_s: float = 60) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            self.turn()
            time.sleep(0.001)

    def numbers(self, session: int) -> list[int]:
        return [item.seq for item in self.arrived if item.session == session and item.seq]

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self.receiver.close()
        self.gate.close()
        self.context.destroy(linger=0)
        self.far.destroy(linger=0)


def relay(sender: BundleSender, rank: int, seq: int, message: Message, session: int | None = None) -> None:
    session = 100 + rank if session is None else session
    sender.relay_message(Received(0, rank, session, seq, message), encode(message))


def fill(sender: BundleSender, ranks: int, numbers: range, padding: int = 0) -> None:
    for seq in numbers:
        for rank in range(ranks):
            if seq == 1:
                relay(sender, rank, 0, hello(rank))
            relay(sender, rank, seq, event(seq, padding))
