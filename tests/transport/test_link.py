"""The link of the tests does what it says."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.link import Link


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it receives; its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(end: socket.socket) -> None:
        with end:
            try:
                while data := end.recv(1 << 16):
                    end.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                end, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(end,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def round_trip(end: socket.socket, data: bytes) -> float:
    began = time.monotonic()
    end.sendall(data)
    got = b""
    while len(got) < len(data):
        got += end.recv(1 << 16)
    assert got == data
    return time.monotonic() - began


def test_all_passes_in_order_after_the_delays_of_both_ways(echo):
    slow = Link(("127.0.0.1", echo), delay_s=0.03, back_delay_s=0.02)
    with slow as link, socket.create_connection(("127.0.0.1", link.port), 30) as end:
        assert round_trip(end, bytes(range(256)) * 2000) >= 0.05
        link.delay_s, link.back_delay_s, link.loss = 0.0, 0.0, 1.0
        assert round_trip(end, b"lost, and sent again, both ways") >= 0.4
        link.loss, link.rate_bytes_s = 0.0, 1e6
        assert round_trip(end, b"x" * 100_000) >= 0.1


def test_what_is_sent_while_it_is_cut_passes_when_it_is_back(echo):
    with Link(("127.0.0.1", echo)) as link, socket.create_connection(("127.0.0.1", link.port), 30) as end:
        round_trip(end, b"before")
        link.cut()
        end.sendall(b"meanwhile")
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(100)
        end.settimeout(30)
        link.restore()
        assert end.recv(100) == b"meanwhile"


def test_killed_connections_are_reset_and_new_ones_pass(echo):
    with Link(("127.0.0.1", echo)) as link:
        with socket.create_connection(("127.0.0.1", link.port), 30) as end:
            round_trip(end, b"before")
            link.kill()
            with pytest.raises(ConnectionResetError):
                end.recv(100)
        with socket.create_connection(("127.0.0.1", link.port), 30) as end:
            round_trip(end, b"after")
        assert link.accepted == 2


def test_it_is_a_process_too(echo):
    command = [sys.executable, "-m", "tests.link", "0", f"127.0.0.1:{echo}", "--delay-ms", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), 30) as end:
            round_trip(end, b"through a process")
            process.stdin.write("cut\nrestore\n")
            process.stdin.flush()
            assert [process.stdout.readline() for _ in range(2)] == ["ok\n", "ok\n"]
            round_trip(end, b"still there")
        process.stdin.close()
        assert process.wait(30) == 0
