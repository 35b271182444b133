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
    wire.wait_for(lambda: client.grant_credit(credit))
    wire.wait_for(lambda: server.drain_credits(time.monotonic_ns()) or bool(server.waiting_viewers()))
    return server.waiting_viewers()[0]


def receive(wire, client):
    got = []
    wire.wait_for(lambda: got.append(client.receive_frame()) or got[-1] is not None)
    return got[-1]


def test_a_frame_uses_up_the_credit(wire, server, client):
    viewer = ask(wire, server, client, Credit(7, 42, 3))
    assert viewer.credit == Credit(7, 42, 3)
    assert viewer.sent_ns is None
    assert server.send_frame(viewer.name, State(1, 0, b"frame"), 5)
    assert server.waiting_viewers() == []
    assert receive(wire, client) == State(1, 0, b"frame")
    assert ask(wire, server, client).sent_ns == 5


def test_credits_do_not_add_up(wire, server, client):
    ask(wire, server, client, Credit(0, 1, -1))
    wire.wait_for(lambda: client.grant_credit(Credit(0, 2, -1)))
    wire.wait_for(
        lambda: server.drain_credits(time.monotonic_ns()) or server.waiting_viewers()[0].credit.cursor == 2
    )
    assert len(server.waiting_viewers()) == 1


def test_nothing_is_kept_for_a_collector_that_is_not_there(client):
    assert not client.grant_credit(ASK)
    assert client.receive_frame() is None


def test_the_largest_frame_passes(wire, server, client):
    viewer = ask(wire, server, client)
    frame = random.randbytes(LARGEST_FRAME_BYTES)
    assert server.send_frame(viewer.name, State(1, 0, frame), 1)
    assert receive(wire, client).frame == frame


def test_a_viewer_that_left_is_forgotten_when_it_is_written_to(wire, link, server):
    client = CreditClient(link.endpoint)
    viewer = ask(wire, server, client)
    client.close()
    # ZeroMQ notices the closed connection in its own time.
    wire.wait_for(
        lambda: not server.send_frame(viewer.name, State(1, 0, b""), 1) and not server.waiting_viewers()
    )
    assert server.active_since(0) == set()


def test_a_silent_viewer_is_forgotten(wire, server, client):
    ask(wire, server, client)
    server.drain_credits(time.monotonic_ns() + FORGET_NS + 1)
    assert server.waiting_viewers() == []


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
    wire.wait_for(lambda: server.drain_credits(time.monotonic_ns()) or server.refused == 5)
    assert len(server.waiting_viewers()) == 1


def test_a_viewer_that_is_stopped_leaves_its_place_where_all_are_taken(
    wire, link, server, client, monkeypatch
):
    monkeypatch.setattr(credit_module, "MAX_VIEWERS", 1)
    ask(wire, server, client)
    (stopped,) = server.waiting_viewers()
    late = CreditClient(link.endpoint)
    server.refused = 0
    now_ns = time.monotonic_ns()
    wire.wait_for(
        lambda: late.grant_credit(Credit(0, 7, -1)) and (server.drain_credits(now_ns) or server.refused > 0)
    )
    assert [viewer.name for viewer in server.waiting_viewers()] == [stopped.name]
    stopped_ns = time.monotonic_ns() + credit_module.STOPPED_NS + 1
    wire.wait_for(
        lambda: (
            late.grant_credit(Credit(0, 7, -1))
            and (server.drain_credits(stopped_ns) or server.waiting_viewers()[0].name != stopped.name)
        )
    )
    assert [viewer.credit.cursor for viewer in server.waiting_viewers()] == [7]
    late.close()


def test_a_viewer_that_was_killed_leaves_its_place_to_the_next(wire, link, server, monkeypatch):
    """Also where it owes nothing: it had been sent the frame that it asked for."""
    monkeypatch.setattr(credit_module, "MAX_VIEWERS", 2)
    living = CreditClient(link.endpoint)
    ask(wire, server, living)
    code = (
        "import sys, time\nfrom ddptop.transport.credit import CreditClient\n"
        "from ddptop.protocol.messages import Credit\nclient = CreditClient(sys.argv[1])\n"
        "while not client.grant_credit(Credit(0, 5, -1)): time.sleep(0.01)\ntime.sleep(600)"
    )
    killed = subprocess.Popen([sys.executable, "-c", code, link.endpoint])
    wire.wait_for(lambda: server.drain_credits(1) or len(server.waiting_viewers()) == 2)
    for viewer in server.waiting_viewers():
        assert server.send_frame(viewer.name, State(1, 0, b""), 1)
    killed.kill()
    killed.wait()
    late = CreditClient(link.endpoint)
    wire.wait_for(
        lambda: (
            late.grant_credit(Credit(0, 7, -1))
            and (server.drain_credits(2) or bool(server.waiting_viewers()))
        )
    )
    assert [viewer.credit.cursor for viewer in server.waiting_viewers()] == [7]
    assert len(server.active_since(0)) == 2  # the one that lives keeps its place
    assert receive(wire, living) == State(1, 0, b"")
    for client in (living, late):
        client.close()
