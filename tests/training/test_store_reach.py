"""Whether the address at which ranks meet can be reached."""

from __future__ import annotations

import socket

import pytest

from ddptop.training import store_reach
from ddptop.training.store_reach import StoreProbe, reach
from tests.processes import free_port, until


def test_what_is_not_reached_says_why() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert reach("127.0.0.1", listening.getsockname()[1]) == "reached"
    assert reach("127.0.0.1", free_port()) == "refused"
    assert reach("no-such-host.invalid", 29500) == "no_name"


def test_a_result_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reach, "FIRST_S", 0.0)
    probe = StoreProbe("127.0.0.1", str(free_port()))
    assert until(probe.poll, "a result") == "refused"
    assert probe.poll() == ""
    assert StoreProbe("127.0.0.1", "none").poll() == ""  # the script has its own rendezvous
