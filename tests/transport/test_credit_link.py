"""A viewer gets what it asked for, once; one that stopped costs nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from ddptop.protocol.messages import Credit, State
from ddptop.transport import credit as credit_module
from ddptop.transport.credit import FORGET_NS, LARGEST_FRAME_BYTES, CreditClient, CreditServer

ASK = Credit(0, 0, -1)


@pytest.fixture
def server(link):
    server = CreditServer(link.context, link.endpoint)
    yield server
    server.close()


@pytest.fixture
def client(link):
    client = CreditClient(link.endpoint)
    yield client
    client.close()
    client.close()


def ask(wire, server, client, credit=ASK):
    """Until the server knows of the credit."""
    wire.wait_for(lambda: client.grant(credit))
    wire.wait_for(lambda: server.drain(time.monotonic_ns()) or bool(server.waiting()))
    return server.waiting()[0]


def receive(wire, client):
    got = []
    wire.wait_for(lambda: got.append(client.receive()) or got[-1] is not None)
    return got[-1]


def test_a_frame_uses_up_the_credit(wire, server, client):
    viewer = ask(wire, server, client, Credit(7, 42, 3))
    assert viewer.credit == Credit(7, 42, 3)
    assert viewer.sent_ns is None
    assert server.send(viewer.name, State(1, 0, b"frame"), 5)
    assert server.waiting() == []
    assert receive(wire, client) == State(1, 0, b"frame")
    assert ask(wire, server, client).sent_ns == 5


def test_credits_do_not_add_up(wire, server, client):
    ask(wire, server, client, Credit(0, 1, -1))
    wire.wait_for(lambda: client.grant(Credit(0, 2, -1)))
    wire.wait_for(lambda: server.drain(time.monotonic_ns()) or server.waiting()[0].credit.cursor == 2)
    assert len(server.waiting()) == 1


def test_nothing_is_kept_for_a_collector_that_is_not_there(client):
    assert not client.grant(ASK)
    assert client.receive() is None


def test_the_largest_frame_passes(wire, server, client):
    viewer = ask(wire, server, client)
    frame = random.randbytes(LARGEST_FRAME_BYTES)
    assert server.send(viewer.name, State(1, 0, frame), 1)
    assert receive(wire, client).frame == frame


def test_a_viewer_that_left_is_forgotten_when_it_is_written_to(wire, link, server):
    client = CreditClient(link.endpoint)
    viewer = ask(wire, server, client)
    client.close()
    # ZeroMQ notices the closed connection in its own time.
    wire.wait_for(lambda: not server.send(viewer.name, State(1, 0, b""), 1) and not server.waiting())
    assert server.active_since(0) == set()


def test_a_silent_viewer_is_forgotten(wire, server, client):
    ask(wire, server, client)
    server.drain(time.monotonic_ns() + FORGET_NS + 1)
    assert server.waiting() == []


def test_hostile_viewers_are_counted_and_limited(wire, link, server, client, monkeypatch):
    monkeypatch.setattr(credit_module, "MAX_VIEWERS", 1)
    ask(wire, server, client)
    hostile = link.raw()
    from ddptop.protocol.codec import encode

    for frames in (
        [b""],
        [random.randbytes(30)],
        [encode(ASK)] * 2,
        [encode(State(1, 0, b""))],
        [encode(ASK)],
    ):
        hostile.send_multipart(frames)
    wire.wait_for(lambda: server.drain(time.monotonic_ns()) or server.refused == 5)
    assert len(server.waiting()) == 1


def test_a_viewer_that_is_stopped_leaves_its_place_where_all_are_taken(
    wire, link, server, client, monkeypatch
):
    monkeypatch.setattr(credit_module, "MAX_VIEWERS", 1)
    ask(wire, server, client)
    (stopped,) = server.waiting()
    late = CreditClient(link.endpoint)
    server.refused = 0
    now_ns = time.monotonic_ns()
    wire.wait_for(lambda: late.grant(Credit(0, 7, -1)) and (server.drain(now_ns) or server.refused > 0))
    assert [viewer.name for viewer in server.waiting()] == [stopped.name]
    stopped_ns = time.monotonic_ns() + credit_module.STOPPED_NS + 1
    wire.wait_for(
        lambda: (
            late.grant(Credit(0, 7, -1))
            and (server.drain(stopped_ns) or server.waiting()[0].name != stopped.name)
        )
    )
    assert [viewer.credit.cursor for viewer in server.waiting()] == [7]
    late.close()


def test_a_viewer_that_was_killed_leaves_its_place_to_the_next(wire, link, server, monkeypatch):
    """Also where it owes nothing: it had been sent the frame that it asked for."""
    monkeypatch.setattr(credit_module, "MAX_VIEWERS", 2)
    living = CreditClient(link.endpoint)
    ask(wire, server, living)
    code = (
        "import sys, time\nfrom ddptop.transport.credit import CreditClient\n"
        "from ddptop.protocol.messages import Credit\nclient = CreditClient(sys.argv[1])\n"
        "while not client.grant(Credit(0, 5, -1)): time.sleep(0.01)\ntime.sleep(600)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, link.endpoint])
    wire.wait_for(lambda: server.drain(1) or len(server.waiting()) == 2)
    for viewer in server.waiting():
        assert server.send(viewer.name, State(1, 0, b""), 1)
    killed.kill()
    killed.wait()
    late = CreditClient(link.endpoint)
    wire.wait_for(lambda: late.grant(Credit(0, 7, -1)) and (server.drain(2) or bool(server.waiting())))
    assert [viewer.credit.cursor for viewer in server.waiting()] == [7]
    assert len(server.active_since(0)) == 2  # the one that lives keeps its place
    assert receive(wire, living) == State(1, 0, b"")
    for client in (living, late):
        client.close()
