"""Both ends of a link in one process, on an ipc socket of the test's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event, Received
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sender import AckedSender
from ddptop.transport.sockets import new_context
from tests import made_up_run

DEADLINE_S = 120.0
SESSION = 77


def wait_for(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Try again until it holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def hello(rank: int = 0, session: int = SESSION, run_id: str = "run") -> bytes:
    """An encoded HELLO of one of two ranks."""
    return encode(made_up_run.hello(rank, 2, session=session, run_id=run_id))


def numbered(number: int, padding: int = 0) -> bytes:
    """A message that can be told from the others."""
    return encode(Event("test", 1, 0, number, {"padding": "x" * padding}))


def numbers(arrived: list[Received]) -> list[int]:
    """Of the numbered messages, in order of arrival."""
    return [item.message.step for item in arrived if isinstance(item.message, Event)]


class Link:
    """One address, and whatever ends a test opens on it."""

    def __init__(self, directory: Path) -> None:
        self.endpoint = f"ipc://{directory}/ingest"
        self.context = new_context()
        self.arrived: list[Received] = []
        self._senders: list[AckedSender] = []
        self._receivers: list[AckedReceiver] = []

    def sender(self, *, rank: int = 0, session: int = SESSION, window_bytes: int = 1 << 20) -> AckedSender:
        sender = AckedSender(self.endpoint, lambda: hello(rank, session), window_bytes=window_bytes)
        self._senders.append(sender)
        return sender

    def receiver(self, **options: object) -> AckedReceiver:
        options = {"epoch": len(self._receivers) + 1} | options
        receiver = AckedReceiver(self.context, self.endpoint, **options)  # type: ignore[arg-type]
        self._receivers.append(receiver)
        return receiver

    def raw(self) -> zmq.Socket[bytes]:
        """A peer that keeps to no rule."""
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(self.endpoint)
        return socket

    def drain(self, receiver: AckedReceiver) -> None:
        self.arrived += [received for received, _ in receiver.drain_messages(time.monotonic_ns())]

    def settle(self, sender: AckedSender, receiver: AckedReceiver) -> None:
        """Until everything that was offered is acked."""

        def acked() -> bool:
            sender.exchange_messages()
            self.drain(receiver)
            return not sender.pending

        wait_for(acked)

    def close(self) -> None:
        for sender in self._senders:
            sender.close(0)
        for receiver in self._receivers:
            receiver.close()
        self.context.destroy(linger=0)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    made.close()


@pytest.fixture
def wire() -> Wire:
    return Wire()


class Wire:
    """What tests need of this file, which they cannot import."""

    session = SESSION
    hello = staticmethod(hello)
    numbered = staticmethod(numbered)
    numbers = staticmethod(numbers)
    wait_for = staticmethod(wait_for)
