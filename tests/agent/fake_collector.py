"""A collector of the test's own, in a thread: it takes bundles, keeps what they hold, and acks it."""

from __future__ import annotations

import secrets
import threading
import time
from pathlib import Path

import zmq

from ddptop.host.collector_address import CollectorAddress, write_address
from ddptop.protocol.decoding import decode
from ddptop.protocol.hosts import About
from ddptop.protocol.messages import Event, Message, Received, Steps
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.curve import AGENTS, Gate, KeyPair
from ddptop.transport.sockets import new_context


class FakeCollector:
    """Receives from agents; a restarted one goes on with the same keys, port and records."""

    def __init__(self) -> None:
        self.keys, self.agent_keys = KeyPair.new(), KeyPair.new()
        self.port = 0
        self.received: list[Received] = []
        self.acks = True
        self.thin = 0
        self.detail_every = 1
        self.to_ask: list[tuple[int, int]] = []
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind, in a thread of its own."""
        self._end.clear()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(60)

    def stop(self) -> None:
        """Close the socket. What was received and not acked yet is kept all the same."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def write_address(self, folder: Path) -> None:
        """Put its address into a run's folder."""
        endpoint = f"tcp://127.0.0.1:{self.port}"
        address = CollectorAddress(
            "run", "name", "far", endpoint, self.keys.public, self.agent_keys.public, self.agent_keys.secret
        )
        write_address(folder, address)

    def steps(self) -> dict[int, list[int]]:
        """By rank: the steps that have arrived, in order."""
        steps: dict[int, list[int]] = {}
        for received in list(self.received):
            message = received.message
            if isinstance(message, Steps):
                steps.setdefault(received.rank, []).extend(
                    range(message.first_step, message.first_step + len(message.rows))
                )
        return steps

    def of(self, kind: type[Message]) -> list[Received]:
        """All messages of a type."""
        return [received for received in list(self.received) if isinstance(received.message, kind)]

    def events(self, kind: str) -> list[Event]:
        """Events about processes of ranks."""
        about = [decode(item.message.body) for item in self.of(About) if isinstance(item.message, About)]
        return [message for message in about if isinstance(message, Event) and message.kind == kind]

    def _run(self, ready: threading.Event) -> None:
        context = new_context()
        gate = Gate(context)
        gate.admit_keys(AGENTS, [self.agent_keys.public])
        seen: dict[int, int] = {}
        for received in self.received:
            seen[received.session] = max(received.seq, seen.get(received.session, 0))
        where = f"tcp://127.0.0.1:{self.port or '*'}"
        receiver = BundleReceiver(context, where, self.keys, epoch=secrets.randbits(60), seen=seen)
        self.port = receiver.port
        ready.set()
        poller = zmq.Poller()
        poller.register(gate.socket, zmq.POLLIN)
        poller.register(receiver.socket, zmq.POLLIN)
        while not self._end.is_set():
            poller.poll(20)
            gate.answer_questions()
            arrived = receiver.drain_bundles(time.monotonic_ns())
            self.received.extend(received for received, _ in arrived)
            receiver.thin, receiver.detail_every = self.thin, self.detail_every
            while self.to_ask:
                receiver.ask_rank(*self.to_ask.pop())
            receiver.acknowledge(safe=self.acks)
        receiver.close()
        gate.close()
        context.term()
