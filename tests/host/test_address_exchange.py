"""The collector's address on its way through the job's store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddptop.host import address_exchange
from ddptop.host.address_exchange import KEPT, PRESENT, AddressExchange, Job
from ddptop.host.collector_address import (
    CollectorAddress,
    read_address,
    read_role,
    write_address,
    write_role,
)
from tests.processes import until

KEY = "k" * 40
ADDRESS = CollectorAddress("id", "name", "node-a", "tcp://10.0.0.1:4711", KEY, KEY, KEY)
JOB = Job("job", "node-a", 29500, first=True)


class StoreInMemory:
    """One connection to a store that is a dictionary."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def claim(self, key: str) -> bool:
        self.values[key] = b"1" if key not in self.values else b"2"
        return self.values[key] == b"1"

    def get(self, key: str) -> bytes | None:
        if self.values.get("unreachable"):
            raise RuntimeError("Connection reset by peer")
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def close(self) -> None:
        pass


class OfHost:
    """The exchange of one host, its folder, and what it has decided."""

    def __init__(self, folder: Path, values: dict[str, Any], **keywords: Any) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.decided: list[bool] = []
        self.received: list[CollectorAddress] = []
        self.exchange = AddressExchange(
            folder,
            lambda _: StoreInMemory(values),
            lambda _, collects: self.decided.append(collects),
            self.received.append,
            **keywords,
        )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_exchange, "LATER_S", 0.05)


@pytest.fixture
def made() -> Iterator[list[OfHost]]:
    hosts: list[OfHost] = []
    yield hosts
    for host in hosts:
        host.exchange.end_thread()


def test_the_owner_of_the_stores_address_collects_and_the_others_get_its_address(
    tmp_path: Path, made: list[OfHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {}
    # Two launchers on one machine both own it: one of them collects.
    made += [OfHost(tmp_path / name, values) for name in "ab"]
    monkeypatch.setattr(address_exchange, "is_own_address", lambda _: True)
    for host in made:
        host.exchange.note_job(JOB)
        until(lambda host=host: host.decided, "a role")
    assert [host.decided for host in made] == [[True], [False]]
    monkeypatch.setattr(address_exchange, "is_own_address", lambda _: False)
    made.append(OfHost(tmp_path / "c", values))
    made[2].exchange.note_job(replace(JOB, first=False))

    write_address(made[0].folder, ADDRESS)
    for host in made[1:]:
        until(lambda host=host: read_address(host.folder) == ADDRESS, "the address")
        assert host.decided == [False]
    # The collector was restarted and has another port; meanwhile the hosts have met again.
    moved = replace(ADDRESS, endpoint="tcp://10.0.0.1:4712")
    made[2].exchange.note_job(replace(JOB, first=False))
    write_address(made[0].folder, moved)
    for host in made[1:]:
        until(lambda host=host: host.received[-1:] == [moved], "the new address")


def test_rank_0_collects_where_no_host_owns_the_address_or_the_store_is_away(
    tmp_path: Path, made: list[OfHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_exchange, "is_own_address", lambda _: False)
    monkeypatch.setattr(address_exchange, "LATE_S", 0.2)
    monkeypatch.setattr(address_exchange, "ALONE_S", 0.2)
    made += [OfHost(tmp_path / "a", {}), OfHost(tmp_path / "b", {"unreachable": True})]
    made[0].exchange.note_job(JOB)
    made[1].exchange.note_job(replace(JOB, first=False))
    until(lambda: made[0].decided and made[1].decided, "roles")
    assert (made[0].decided, made[1].decided) == ([True], [False])


def test_a_host_that_has_the_collector_keeps_it_when_the_newcomer_owns_the_store(
    tmp_path: Path, made: list[OfHost]
) -> None:
    """The newcomer decides nothing before the other ranks are there."""
    values: dict[str, Any] = {PRESENT: b"1"}
    made.append(OfHost(tmp_path / "a", values))
    made[0].exchange.note_job(replace(JOB, address="localhost", announced=2))
    values[KEPT] = b""
    assert made[0].decided == []
    values[PRESENT] = b"2"
    until(lambda: made[0].decided, "a role")
    assert made[0].decided == [False]


def test_a_role_that_is_known_is_kept_and_a_text_that_is_no_address_is_passed_over(
    tmp_path: Path, made: list[OfHost]
) -> None:
    values: dict[str, Any] = {"ddptop/job/collector": b"{}"}
    made += [OfHost(tmp_path / "a", values, collects=False), OfHost(tmp_path / "b", values, collects=True)]
    made[0].exchange.note_job(JOB)
    write_address(made[1].folder, ADDRESS)
    made[1].exchange.note_job(JOB)
    until(lambda: made[0].received == [ADDRESS], "the address")
    assert made[0].decided == made[1].decided == []


def test_the_role_of_an_agent(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert read_role(tmp_path) is None
    write_role(tmp_path, "")
    assert read_role(tmp_path) == ""
    write_role(tmp_path, "node-a:0")
    assert read_role(tmp_path) == "node-a:0"
