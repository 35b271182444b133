"""A launcher that waits for other hosts, with torch's own rendezvous."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters, registry

from ddptop.host.meeting import OpenRendezvous
from ddptop.training.torch_compat import launcher
from tests.processes import DEADLINE_S, until


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LOOK_S", 0.05)


def parameters(port: int, backend: str, **config: object) -> RendezvousParameters:
    return RendezvousParameters(backend, f"127.0.0.1:{port}", "job", 2, 2, f"node-{config['rank']}", **config)


def test_those_that_have_come_are_reported() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    reported: list[OpenRendezvous] = []
    ended: list[Exception] = []

    def meet() -> None:
        try:
            registry.get_rendezvous_handler(
                parameters(store.port, "c10d", rank=0, is_host=False)
            ).next_rendezvous()
        except RendezvousClosedError as error:
            ended.append(error)

    with launcher.reporting_rendezvous(lambda job: None, reported.append):
        waiting = threading.Thread(target=meet, daemon=True)
        waiting.start()
        one = OpenRendezvous(f"127.0.0.1:{store.port}", 2, 2, reached=True, come=("node-0",))
        until(lambda: reported[-1:] == [one], "a report of the first host")
        assert one.describe() == "waits for its hosts: 1 of 2 has come: node-0"
    registry.get_rendezvous_handler(parameters(store.port, "c10d", rank=1, is_host=False)).set_closed()
    waiting.join(DEADLINE_S)
    assert ended
    until(
        lambda: not any(thread.name == "ddptop-meeting" for thread in threading.enumerate()),
        "the end of the threads that look",
    )


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_a_host_of_the_endpoint_that_does_not_answer_is_reported(backend: str) -> None:
    """As while it is not started, or behind a firewall."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        reported: list[OpenRendezvous] = []
        asked = parameters(port, backend, rank=1, is_host=False, read_timeout=3, timeout=3)
        ended: list[Exception] = []

        def meet() -> None:
            try:
                registry.get_rendezvous_handler(asked).next_rendezvous()
            except Exception as error:
                ended.append(error)

        with launcher.reporting_rendezvous(lambda job: None, reported.append):
            thread = threading.Thread(target=meet, daemon=True)
            thread.start()
            missing = OpenRendezvous(f"127.0.0.1:{port}", 2, 2, reached=False)
            until(lambda: reported[-1:] == [missing], "a report of the endpoint")
            thread.join(DEADLINE_S)
        assert ended
        until(
            lambda: not any(each.name == "ddptop-meeting" for each in threading.enumerate()),
            "the end of the thread that looks",
        )
    sentence = "waits for its 2 hosts: 127.0.0.1:1, where they meet, does not answer"
    assert OpenRendezvous("127.0.0.1:1", 2, 2, reached=False).describe() == sentence


def test_a_sentence_names_some_hosts_of_many() -> None:
    come = tuple(f"node-{number}" for number in range(10))
    sentence = OpenRendezvous("node-0:29500", 4, 64, True, come).describe()
    assert sentence.startswith("waits for its hosts: 10 of 4 to 64 have come: node-0, node-1")
    assert sentence.endswith("node-7 and 2 more")
    untold = OpenRendezvous("node-0:29500", 4, 4, True).describe()
    assert untold == "waits for its 4 hosts; node-0:29500 answers, but does not tell which have come"
