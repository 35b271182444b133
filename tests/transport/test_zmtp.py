"""The rank's client of ZeroMQ's wire protocol, against libzmq's own ROUTER and ends that misbehave."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from ddptop.transport import zmtp
from ddptop.transport.zmtp import (
    COMMAND,
    GREETING,
    MORE,
    READY,
    Dealer,
    pack_command,
    pack_zmtp_frame,
)

MAX_BYTES = 1 << 20
DEADLINE_S = 120.0


class Router:
    """libzmq's ROUTER at a path; `bind` again after `socket.close()` is another one there."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket: zmq.Socket[bytes]

    def bind(self, **options: int) -> zmq.Socket[bytes]:
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.linger = 0
        for name, value in options.items():
            self.socket.set(getattr(zmq, name), value)
        self.socket.bind(self._endpoint)
        return self.socket

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/ingest"


@pytest.fixture
def router(endpoint: str) -> Iterator[Router]:
    made = Router(endpoint)
    yield made
    made.close()


@pytest.fixture
def listener(endpoint: str) -> Iterator[socket.socket]:
    """An end that speaks as a test lets it."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(endpoint.removeprefix("ipc://"))
        made.listen()
        made.settimeout(DEADLINE_S)
        yield made


@pytest.fixture
def dealer(endpoint: str) -> Iterator[Dealer]:
    made = Dealer(endpoint, max_bytes=MAX_BYTES)
    yield made
    made.close()


def serve(dealer: Dealer, condition: Callable[[], object]) -> None:
    """Serve the dealer, for which nothing arrives, until the condition holds."""
    end = time.monotonic() + DEADLINE_S
    while True:
        assert dealer.receive_messages() == []
        if condition():
            return
        assert time.monotonic() < end, "waited in vain"
        dealer.wait_until_ready(0.002)


def next_of(dealer: Dealer) -> list[list[bytes]]:
    """The messages that arrive next."""
    end = time.monotonic() + DEADLINE_S
    while not (received := dealer.receive_messages()):
        assert time.monotonic() < end, "waited in vain"
        dealer.wait_until_ready(0.002)
    return received


def next_at(server: zmq.Socket[bytes], dealer: Dealer) -> list[bytes]:
    """The message that arrives next at a ROUTER."""
    serve(dealer, lambda: server.poll(0))
    return server.recv_multipart()


def accept(listener: socket.socket, dealer: Dealer, answer: bytes = GREETING + READY) -> socket.socket:
    """The connection that the dealer makes, and these bytes over it."""
    listener.setblocking(False)
    accepted: list[socket.socket] = []

    def accepts() -> bool:
        try:
            accepted.append(listener.accept()[0])
        except BlockingIOError:
            return False
        return True

    serve(dealer, accepts)
    accepted[0].settimeout(DEADLINE_S)
    assert read(accepted[0], len(GREETING + READY)) == GREETING + READY
    accepted[0].sendall(answer)
    return accepted[0]


def read(connection: socket.socket, size: int) -> bytes:
    return connection.recv(size, socket.MSG_WAITALL)


@pytest.mark.parametrize("sizes", [(0,), (1, 0, 255), (256,), (3, 70_000), (MAX_BYTES, 17)])
def test_messages_of_all_sizes_pass_both_ways(router: Router, dealer: Dealer, sizes: tuple[int, ...]) -> None:
    server = router.bind()
    serve(dealer, lambda: dealer.is_ready)
    frames = [random.randbytes(size) for size in sizes]
    for _ in range(3):
        serve(dealer, lambda: dealer.send_message(*frames))
        route, *arrived = next_at(server, dealer)
        assert arrived == frames
        assert route[0] == 0  # libzmq has chosen it: no identity was sent
        server.send_multipart([route, *frames])
        assert next_of(dealer) == [frames]


def test_the_receiver_knows_which_process_sends(router: Router, dealer: Dealer) -> None:
    server = router.bind()
    serve(dealer, lambda: dealer.send_message(b"x"))
    serve(dealer, lambda: server.poll(0))
    server.recv()
    assert str(server.recv(copy=False).get("Peer-Address")).endswith(f":{os.getpid()}")


def test_heartbeats_of_a_router_are_answered(
    router: Router, dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq ends a connection over which something else comes than the PONG that it expects."""
    server = router.bind(HEARTBEAT_IVL=5, HEARTBEAT_TIMEOUT=int(DEADLINE_S * 1000))
    answers: list[bytes] = []
    monkeypatch.setattr(
        zmtp, "pack_command", lambda *parts: answers.append(pack_command(*parts)) or answers[-1]
    )
    serve(dealer, lambda: len(answers) >= 10)
    serve(dealer, lambda: dealer.send_message(b"x"))
    assert (next_at(server, dealer)[1:], dealer.connections) == ([b"x"], 1)


def test_a_heartbeat_is_answered_with_its_context(listener: socket.socket, dealer: Dealer) -> None:
    end = accept(listener, dealer)
    end.sendall(pack_command(b"PING", b"\x00\x05" + b"0123456789abcdef" + b"too long"))
    end.sendall(pack_command(b"NEWS", b"of a later version"))
    end.sendall(pack_zmtp_frame(0, b"message"))
    assert (next_of(dealer), dealer.connections) == ([[b"message"]], 1)
    pong = pack_command(b"PONG", b"0123456789abcdef")
    assert read(end, len(pong)) == pong
    end.close()


def test_it_connects_again_after_the_router_was_closed_and_bound_again(
    router: Router, dealer: Dealer
) -> None:
    for number in range(1, 4):
        server = router.bind()
        serve(dealer, lambda: dealer.send_message(b"x"))
        next_at(server, dealer)
        server.close()
        serve(dealer, lambda: not dealer.is_ready)
        assert dealer.connections == number
        assert not dealer.send_message(b"in between")


def test_what_is_taken_for_an_end_that_does_not_read_is_bounded_and_arrives(
    router: Router, dealer: Dealer
) -> None:
    server = router.bind(RCVHWM=1)
    serve(dealer, lambda: dealer.is_ready)
    taken = 0
    while dealer.send_message(taken.to_bytes(4, "big"), bytes(30_000)):
        taken += 1
        assert taken < 100, "it takes more than socket buffers of 3 MB"
    arrived: list[bytes] = []
    while len(arrived) < taken:
        arrived.append(next_at(server, dealer)[1])
    assert arrived == [number.to_bytes(4, "big") for number in range(taken)]
    assert dealer.connections == 1


WRONG = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n".ljust(64),
    "ZMTP 2": GREETING[:10] + b"\x01" + GREETING[11:],
    "another mechanism": GREETING[:12] + b"CURVE".ljust(20, b"\0") + bytes(32) + READY,
    "ERROR": GREETING + pack_command(b"ERROR", b"\x03no!"),
    "ERROR later": GREETING + READY + pack_command(b"ERROR", b"\x03no!"),
    "no READY": GREETING + pack_command(b"PING", bytes(2)),
    "message before READY": GREETING + pack_zmtp_frame(0, b"x"),
    "command without a name": GREETING + pack_zmtp_frame(COMMAND, b""),
    "reserved flags": GREETING + READY + b"\x08\x01x",
    "command of several frames": GREETING + READY + pack_zmtp_frame(COMMAND | MORE, b"\x01x"),
    "huge frame": GREETING + READY + b"\x02" + b"\x7f" + bytes(7),
    "frames without end": GREETING + READY + pack_zmtp_frame(MORE, b"") * (zmtp.MAX_FRAMES + 1),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_an_end_that_breaks_the_protocol_is_left_and_tried_again(
    listener: socket.socket, dealer: Dealer, answer: bytes
) -> None:
    for _ in range(2):
        with accept(listener, dealer, answer) as end:
            serve(dealer, lambda: dealer.fileno() < 0)
            assert end.recv(1) == b""


def test_pauses_grow_until_a_message_has_come(listener: socket.socket, dealer: Dealer) -> None:
    pauses = []
    for _ in range(5):
        pauses.append(dealer.pause_s)
        accept(listener, dealer).close()
        serve(dealer, lambda: not dealer.is_ready and dealer.fileno() < 0)
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]
    with accept(listener, dealer, GREETING + READY + pack_zmtp_frame(0, b"x")):
        assert next_of(dealer) == [[b"x"]]
        assert dealer.pause_s == 0.1


def test_bytes_that_come_one_by_one_are_put_together(listener: socket.socket, dealer: Dealer) -> None:
    body = random.randbytes(300)
    with accept(listener, dealer, b"") as end:
        received = []
        for byte in GREETING + READY + pack_zmtp_frame(MORE, b"a") + pack_zmtp_frame(0, body):
            end.sendall(bytes((byte,)))
            received += dealer.receive_messages()
        assert received == [[b"a", body]]


def test_damaged_bytes_raise_nothing(listener: socket.socket, dealer: Dealer) -> None:
    chance = random.Random(7)
    right = (
        GREETING
        + READY
        + pack_command(b"PING", bytes(6))
        + pack_zmtp_frame(MORE, b"a")
        + pack_zmtp_frame(0, b"b" * 300)
    )
    for _ in range(30):
        data = bytearray(right)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        dealer.due_s = 0.0
        end = accept(listener, dealer, bytes(data))
        end.close()
        while dealer.fileno() >= 0:
            dealer.receive_messages()


@pytest.mark.parametrize("name", ["missing", "file", "not-accepted", "x" * 120])
def test_a_path_where_nobody_accepts_is_tried_without_waiting(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(str(tmp_path / "not-accepted"))
        full.listen(0)
        waiting.connect(str(tmp_path / "not-accepted"))
        dealer = Dealer(f"ipc://{tmp_path}/{name}", max_bytes=99)
        for _ in range(3):
            dealer.due_s = 0.0
            assert dealer.receive_messages() == []
            assert not dealer.is_ready
            assert not dealer.send_message(b"x")
        dealer.close()
        assert dealer.receive_messages() == []


SIGPIPE = """
import os, signal, socket, sys
from ddptop.transport.zmtp import GREETING, READY, Dealer
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
dealer = Dealer("ipc://" + sys.argv[1], max_bytes=99)
dealer.receive_messages()
end = listener.accept()[0]
end.sendall(GREETING + READY)
dealer.receive_messages()
end.close()
assert dealer.send_message(b"x")
dealer.flush()
print(dealer.is_ready)
"""


def test_a_closed_end_does_not_end_a_process_that_takes_sigpipe(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SIGPIPE, str(tmp_path / "ingest")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_forked_child_that_closes_leaves_the_connection_to_its_parent(
    listener: socket.socket, dealer: Dealer
) -> None:
    with accept(listener, dealer) as end:
        serve(dealer, lambda: dealer.is_ready)
        child = os.fork()
        if child == 0:
            dealer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert dealer.send_message(b"x")
        dealer.flush()
        assert read(end, 3) == pack_zmtp_frame(0, b"x")
        assert not os.get_inheritable(dealer.fileno())


def test_a_fork_during_a_system_call_of_the_parents_thread_closes_the_childs_copy(
    listener: socket.socket, dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That thread has exported a buffer, which cannot change its size, and never releases it in the child."""
    exits: list[int] = []

    class ForksInSend(socket.socket):
        def send(self, data: Any, *flags: int) -> int:
            number = self.fileno()
            with memoryview(data):
                child = os.fork()
                if child == 0:
                    dealer.close_in_child()
                    os._exit(int(Path(f"/proc/self/fd/{number}").exists() or dealer.send_message(b"y")))
            exits.append(os.waitpid(child, 0)[1])
            return super().send(data, *flags)

    monkeypatch.setattr(zmtp.socket, "socket", ForksInSend)
    with accept(listener, dealer) as end:
        serve(dealer, lambda: dealer.is_ready)
        assert dealer.send_message(b"x")
        dealer.flush()
        assert read(end, 3) == pack_zmtp_frame(0, b"x")
    assert exits and not any(exits)


def test_a_script_that_closes_all_descriptors_keeps_what_it_opens_then(
    listener: socket.socket, dealer: Dealer, tmp_path: Path
) -> None:
    with accept(listener, dealer):
        number = dealer.fileno()
        with (tmp_path / "file").open("wb") as file:
            os.dup2(file.fileno(), number)  # in its place
        serve(dealer, lambda: dealer.fileno() < 0)
        assert os.fstat(number).st_ino == (tmp_path / "file").stat().st_ino
        os.close(number)
    with accept(listener, dealer):
        serve(dealer, lambda: dealer.is_ready)
