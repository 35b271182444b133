"""The report of a run over several hosts: its table of hosts, the silent ones, clocks that are unclear."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ddptop.report.content import as_data
from ddptop.report.text import text_page
from tests.analysis.test_remote_hosts import FAR, HOSTS, Job
from tests.made_up_run import report_from_messages

if TYPE_CHECKING:
    from ddptop.protocol.messages import Received
    from ddptop.report.content import Report


class Recorded(Job):
    """A job whose messages are kept."""

    def __init__(self, make_world, **options) -> None:
        self.messages: list[Received] = []
        super().__init__(make_world, **options)

    def feed(self, *messages) -> None:
        self.messages += messages

    def report(self) -> Report:
        return report_from_messages(self.messages)


def test_hosts_that_were_silent_are_named(make_world) -> None:
    job = Recorded(make_world, delays={(3, "data"): 20_000})
    job.train(100)
    job.wait(11.0, HOSTS[:2])
    job.wait(2.0)
    job.world.begin_us = [job.world.now_us] * 6
    job.train(100)
    job.feed(*(job.world.bye(rank) for rank in range(6)), job.world.run("finished", 0))
    found = job.report()
    assert [(host.name, host.silences) for host in found.hosts] == [("node0", 0), ("node1", 0), ("node2", 1)]
    slow = found.hosts[1]
    assert slow.worst_rank == 3 and slow.excess_ms == pytest.approx(20.0, abs=0.5)
    assert slow.clock_bound_ms == pytest.approx(0.2, abs=0.1) and found.hosts[0].clock_bound_ms is None
    (hosts,) = [finding for finding in found.verdict if finding.kind == "hosts"]
    assert hosts.sentence == "host node2 was unreachable once"
    assert hosts.detail[-1] == "host node2 reports again after 12 s"
    text = text_page(found, 100)
    assert "Hosts" in text and "host node2 was unreachable once" in text
    data = as_data(found)
    assert isinstance(data["hosts"], list) and len(data["hosts"]) == 3


def test_a_host_that_was_lost_at_the_end_is_the_end_of_the_run(make_world) -> None:
    job = Recorded(make_world)
    job.train(60)
    job.wait(12.0, HOSTS[:2])
    found = job.report()
    assert found.verdict[0].kind == "lost"
    assert "host node2 is lost: ranks 4 and 5, last at step 60" in found.verdict[0].sentence


def test_ranks_that_failed_after_a_host_was_lost_are_no_cause(make_world) -> None:
    job = Recorded(make_world)
    job.train(60)
    for rank in range(4):
        job.feed(job.world.bye(rank, "RuntimeError: Connection reset by peer"))
    job.wait(12.0, HOSTS[:1])
    job.feed(job.world.run("failed", 1))
    first = job.report().verdict[0]
    assert first.kind == "failed"
    assert first.sentence.startswith("host node2 is lost: ranks 4 and 5, last at step 60")
    assert first.sentence.endswith("ranks 0, 1, 2 and 3 followed")


def test_clocks_that_are_too_inaccurate_are_a_doubt(make_world) -> None:
    job = Recorded(make_world, delays={(3, "data"): 20_000})
    job.train(200, bound_ms=30.0)
    job.feed(*(job.world.bye(rank) for rank in range(6)), job.world.run("finished", 0))
    found = job.report()
    kinds = [finding.kind for finding in found.verdict]
    assert kinds[0] == "straggler" and kinds[-1] == "clocks"
    assert found.verdict[-1].sentence.startswith("the clocks' bound of ±60.1 ms is wider than the skew")
    assert {host.name for host in found.hosts} == {"node0", *FAR}
