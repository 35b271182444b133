"""The network interface of a rank is looked up where nothing waits for it."""

from __future__ import annotations

import threading

import pytest

from ddptop.protocol.messages import Card, Progress, Scalar
from ddptop.training import network_used, start_report
from ddptop.training.guard import Guard
from ddptop.training.network_used import NetworkLookup
from ddptop.training.start_report import StartReport
from tests.processes import until
from tests.training.conftest import Ear

FAILS_AFTER_S = 20.0
"""Where something does wait for the name service."""


@pytest.fixture
def name_service(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The name service does not answer until this is set."""
    answers = threading.Event()

    def network_card() -> dict[str, Scalar]:
        answers.wait(FAILS_AFTER_S)
        return {"mtu": 9000}

    monkeypatch.setattr(network_used, "network_card", network_card)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    return answers


def test_a_name_service_without_an_answer_does_not_hold_up_the_reports(
    ear: Ear, monkeypatch: pytest.MonkeyPatch, name_service: threading.Event
) -> None:
    monkeypatch.setattr(start_report, "REPORT_AFTER_S", 0.0)
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(ear.directory))
    report = StartReport(0, 1, threading.get_ident())
    report.start()
    try:
        ear.next_said(0, Progress)
        assert [set(card.entries) for card in ear.said(0, Card)] == [{"torch", "ddptop", "python"}]
        name_service.set()
        assert ear.next_said(0, Card, already=1).entries["mtu"] == 9000
    finally:
        name_service.set()
        assert report.end_thread()
        assert report.sender is not None
        report.sender.close(0.0)


def test_what_is_found_is_given_once_and_nothing_waits_for_it(name_service: threading.Event) -> None:
    lookup = NetworkLookup()
    assert lookup.take_entries() == {}
    name_service.set()
    assert until(lookup.take_entries, "the entries") == {"mtu": 9000}
    assert lookup.take_entries() == {}


def test_a_failure_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UnicodeError("label too long")

    guard = Guard()
    monkeypatch.setattr(network_used, "guard", guard)
    monkeypatch.setattr(network_used, "network_card", fail)
    monkeypatch.setenv("MASTER_ADDR", "node0")
    lookup = NetworkLookup()
    until(lambda: guard.first, "a failure")
    assert (guard.first, guard.count) == ("UnicodeError: label too long", 1)
    assert lookup.take_entries() == {}


def test_on_one_host_no_thread_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    assert NetworkLookup().take_entries() == {"interface": "ib0"}
