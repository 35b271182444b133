"""gloo's interface is chosen only where torch's own choice would be the loopback."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddptop.training.ddp import setup

TWO_HOSTS = ("127.0.1.1", "192.0.2.7")
"""Rank 0's host, where its own name is a loopback, and another."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A Debian host: its name stands for 127.0.1.1, its network is eth7."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(setup, "address_of_own_name", lambda: "127.0.1.1")
    monkeypatch.setattr(setup, "source_address", lambda target: "192.0.2.3")
    names = {"lo": "127.0.0.1", "eth7": "192.0.2.3"}
    known = {name: [SimpleNamespace(address=address)] for name, address in names.items()}
    monkeypatch.setattr(setup.psutil, "net_if_addrs", lambda: known)
    return monkeypatch


def test_the_interface_towards_the_other_host(host: pytest.MonkeyPatch) -> None:
    assert setup.for_gloo(TWO_HOSTS) == "eth7"


def test_nothing_is_chosen_where_torch_chooses_well(host: pytest.MonkeyPatch) -> None:
    assert setup.for_gloo(["127.0.1.1"]) is None, "one host"
    host.setattr(setup, "address_of_own_name", lambda: "192.0.2.3")
    assert setup.for_gloo(TWO_HOSTS) is None, "its name stands for its address"


def test_the_users_word_goes_first(host: pytest.MonkeyPatch) -> None:
    host.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert setup.for_gloo(TWO_HOSTS) is None


def test_where_no_way_leads_to_the_others_nothing_is_chosen(host: pytest.MonkeyPatch) -> None:
    host.setattr(setup, "source_address", lambda target: "")
    assert setup.for_gloo(TWO_HOSTS) is None


def test_the_way_to_this_host_leaves_from_the_loopback() -> None:
    assert setup.is_loopback(setup.source_address("127.0.0.1"))
    assert setup.source_address("no.such.host.invalid") == ""
    assert setup.source_address("x" * 64) == ""  # no name is so long: Python does not even ask
    assert setup.is_loopback("fe80::1%eth0") is False
