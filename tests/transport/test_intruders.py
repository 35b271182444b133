"""Nobody gets in without the key of the socket's role; what is sent changes no figure and takes no memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from ddptop.protocol.hosts import Host
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import AGENTS, VIEWERS, Gate, KeyPair, load_keys, make_client, make_server
from ddptop.transport.sockets import bind_router, new_context
from tests.processes import free_port
from tests.transport.ends import Ends, event, fill, hello, relay
from tests.transport.intruders import FORGED, attack, fuzz, knock, usage

SCRIPT = Path(__file__).parent.parent / "scripts" / "bundle_ends.py"


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


class Watched:
    """Handshakes that failed at a server's socket."""

    def __init__(self, watched: zmq.Socket[bytes]) -> None:
        self._watched = watched
        self._events = watched.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        self.failed = 0

    def more(self) -> bool:
        while self._events.poll(0):
            self._events.recv_multipart()
            self.failed += 1
        return self.failed > 0

    def close(self) -> None:
        self._watched.disable_monitor()
        self._events.close()


def _null(peer: zmq.Socket[bytes], ends: Ends) -> None:
    """No security at all."""


def _plain(peer: zmq.Socket[bytes], ends: Ends) -> None:
    peer.plain_username, peer.plain_password = b"root", b"secret"


def _unknown(peer: zmq.Socket[bytes], ends: Ends) -> None:
    make_client(peer, ends.keys.public, KeyPair.new())


def _viewer(peer: zmq.Socket[bytes], ends: Ends) -> None:
    viewer = KeyPair.new()
    ends.gate.admit_keys(VIEWERS, [viewer.public])
    make_client(peer, ends.keys.public, viewer)


def _public_only(peer: zmq.Socket[bytes], ends: Ends) -> None:
    """The agents' public key, as seen by somebody, without its secret key."""
    make_client(peer, ends.keys.public, KeyPair(ends.agent_keys.public, KeyPair.new().secret))


def _other_server(peer: zmq.Socket[bytes], ends: Ends) -> None:
    """The agents' keys, but not the collector's."""
    make_client(peer, KeyPair.new().public, ends.agent_keys)


@pytest.mark.parametrize("prepare", [_null, _plain, _unknown, _viewer, _public_only, _other_server])
def test_nobody_feeds_without_the_agents_key(ends, prepare: Callable[[zmq.Socket[bytes], Ends], None]):
    watched = Watched(ends.receiver.socket)
    sender = ends.sender()
    intruder = ends.far.socket(zmq.DEALER)
    prepare(intruder, ends)
    intruder.connect(f"tcp://127.0.0.1:{ends.port}")
    intruder.send(FORGED)
    ends.until(watched.more)
    fill(sender, 1, range(1, 6))
    ends.until(lambda: sender.kept == 0)
    assert {item.session for item in ends.arrived} == {9, 100}
    assert ends.numbers(100) == [1, 2, 3, 4, 5]
    assert not intruder.poll(0)
    intruder.close(0)
    watched.close()


def test_the_key_of_an_agent_opens_no_screen_and_that_of_a_viewer_does(ends):
    viewer = KeyPair.new()
    ends.gate.admit_keys(VIEWERS, [viewer.public])
    screens = bind_router(
        ends.context,
        "tcp://127.0.0.1:*",
        high=10,
        max_bytes=1000,
        prepare=lambda server: make_server(server, ends.keys, VIEWERS),
    )
    port = int(screens.get(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])
    watched = Watched(screens)
    peers = []
    for keys in (ends.agent_keys, viewer):
        peer = ends.far.socket(zmq.DEALER)
        make_client(peer, ends.keys.public, keys)
        peer.connect(f"tcp://127.0.0.1:{port}")
        peer.send(keys.public.encode())
        peers.append(peer)
    ends.until(lambda: watched.more() and screens.poll(0))
    assert screens.recv_multipart()[1] == viewer.public.encode()
    assert ends.gate.refused == 1
    assert ends.gate.refused_why.startswith("viewers: CURVE from")
    watched.close()
    for peer in (*peers, screens):
        peer.close(0)


def test_without_a_gate_everybody_is_refused(ends):
    """A collector that forgot it must not let all in, as CURVE alone would."""
    context = new_context()
    server = bind_router(
        context,
        "tcp://127.0.0.1:*",
        high=10,
        max_bytes=1000,
        prepare=lambda made: make_server(made, ends.keys, AGENTS),
    )
    watched = Watched(server)
    port = int(server.get(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])
    peer = ends.far.socket(zmq.DEALER)
    make_client(peer, ends.keys.public, ends.agent_keys)
    peer.connect(f"tcp://127.0.0.1:{port}")
    peer.send(b"in")
    ends.until(watched.more)
    assert not server.poll(0)
    watched.close()
    peer.close(0)
    server.close(0)
    context.term()


def test_the_gate_answers_only_what_is_a_question():
    context = new_context()
    gate = Gate(context)
    key = KeyPair.new()
    gate.admit_keys(AGENTS, [key.public])
    raw = context.socket(zmq.DEALER)
    raw.connect("inproc://zeromq.zap.01")
    right = [b"1.0", b"1", AGENTS.encode(), b"::1", b"", b"CURVE", zmq.utils.z85.decode(key.public.encode())]
    wrong = [
        [b""],
        [b"1.0"],
        [*right[:5], b"NULL"],
        [*right[:5], b"PLAIN", b"user", b"password"],
        [b"2.0", *right[1:]],
        [*right[:2], b"", *right[3:]],
        [*right[:2], b"other", *right[3:]],
        [*right[:6], b"x" * 32],
        [*right[:6], b""],
    ]
    codes = []
    for frames in (right, *wrong):
        raw.send_multipart([b"", *frames])
        gate.answer_questions()
        codes.append(raw.recv_multipart()[3])
    assert codes == [b"200"] + [b"400"] * len(wrong)
    assert gate.refused == len(wrong)
    for end in (raw, gate):
        end.close()
    context.term()


class Target:
    """A collector's end in a process of its own, and an agent that is right to report."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(0o700)
        self._folder = folder
        self.keys = load_keys(folder)
        self.port = free_port()
        command = [sys.executable, str(SCRIPT), "collector", str(folder), str(self.port)]
        self.process = subprocess.Popen(command, cwd=SCRIPT.parent.parent.parent)
        self.context = new_context()
        self._sender = BundleSender(self.context, Host(1, "run", 9, "far", 1, 1, 1, 2, 1, "b"), interval_ns=1)
        self._sender.connect_to(f"tcp://127.0.0.1:{self.port}", self.keys.collector.public, self.keys.agents)
        relay(self._sender, 0, 0, hello(0))
        self._number = 0
        self.check()

    def check(self) -> None:
        """What the right agent reports is recorded."""
        for _ in range(10):
            self._number += 1
            relay(self._sender, 0, self._number, event(self._number))
        end = time.monotonic() + 60
        while self._sender.kept:
            assert self.process.poll() is None, "the collector has ended"
            assert time.monotonic() < end, self._sender.trouble
            self._sender.exchange_messages()
            time.sleep(0.002)

    def recorded(self) -> list[tuple[int, int]]:
        """(session, number), in order."""
        lines = (self._folder / "record").read_text().splitlines()
        return [(int(session), int(number)) for session, number, _ in map(str.split, lines)]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._sender.close()
        self.context.destroy(linger=0)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    made = Target(tmp_path / "run")
    yield made
    made.close()


def test_bytes_without_keys_change_nothing(target):
    attack(target.port, 200, seed=1)
    target.check()
    assert target.recorded() == [(100, number) for number in range(1, 21)]


@pytest.mark.slow
def test_ten_thousand_connections_take_no_memory(target, capsys):
    attack(target.port, 2000, seed=2)
    target.check()
    before = usage(target.process.pid)
    for seed in range(3, 8):
        attack(target.port, 2000, seed)
    target.check()
    after = usage(target.process.pid)
    with capsys.disabled():
        print(f"\n10,000 connections: {before[0]:.1f} MB, then {after[0]:.1f} MB; descriptors {after[1]}")
    assert after[0] < before[0] + 4
    assert after[1] <= before[1] + 5
    assert {session for session, _ in target.recorded()} == {100}


@pytest.mark.slow
def test_a_thousand_unknown_keys_take_no_memory(target, capsys):
    knock(target.context, target.port, target.keys.collector.public, 200)
    before = usage(target.process.pid)
    knock(target.context, target.port, target.keys.collector.public, 1000)
    target.check()
    after = usage(target.process.pid)
    with capsys.disabled():
        print(f"\n1,000 unknown keys: {before[0]:.1f} MB, then {after[0]:.1f} MB; descriptors {after[1]}")
    assert after[0] < before[0] + 4
    assert {session for session, _ in target.recorded()} == {100}


def test_damaged_bundles_do_not_end_the_collector_nor_touch_the_sessions_of_others(target):
    fuzz(target.context, target.port, target.keys, 500, seed=1)
    target.check()
    assert [number for session, number in target.recorded() if session == 100] == [*range(1, 21)]


@pytest.mark.slow
def test_fifty_thousand_damaged_bundles_take_no_memory(target, capsys):
    fuzz(target.context, target.port, target.keys, 5000, seed=2)
    before = usage(target.process.pid)
    for seed in range(3, 13):
        fuzz(target.context, target.port, target.keys, 5000, seed)
    target.check()
    after = usage(target.process.pid)
    with capsys.disabled():
        print(f"\n50,000 damaged bundles: {before[0]:.1f} MB, then {after[0]:.1f} MB")
    assert after[0] < before[0] + 8
    assert [number for session, number in target.recorded() if session == 100] == [*range(1, 21)]
