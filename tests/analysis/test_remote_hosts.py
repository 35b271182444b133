"""Hosts with agents: their states, their figures, what they report about processes, and their clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Event
from tests.analysis.conftest import NS, START_NS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.frame import Frame

HOSTS = ("node0", "node1", "node2")
FAR = HOSTS[1:]
APART = {"node0": 0, "node1": -5_000 * NS - 123, "node2": 5_000 * NS + 77}
DRIFT = {"node0": 0.0, "node1": 200.0, "node2": -150.0}
PLACES = ("data", "forward", "backward", "optimizer", "before_backward")


class Job:
    """Six ranks on three hosts, of which the first has the collector."""

    def __init__(self, make_world, **options) -> None:
        options = {"hosts": HOSTS, "offset_ns": APART, "drift_ppm": DRIFT, "own": True, **options}
        self.world = make_world(options.pop("size", 6), **options)
        self.reducer = Reducer()
        self.feed(self.world.run(), *(self.world.host_message(host) for host in FAR))
        self.feed(*self.world.introduce())

    def feed(self, *messages) -> None:
        for received in messages:
            self.reducer.feed(received)

    def train(self, steps: int, bound_ms: float = 0.2, *, wrong_ms: float = 0.0) -> None:
        """So many steps; every tenth one is followed by new comparisons of the clocks."""
        for at in range(steps):
            if at % 10 == 0:
                clocks = [self.world.compared(host, bound_ms, wrong_ms=wrong_ms) for host in FAR]
                self.feed(*clocks, *map(self.world.usage, FAR))
            self.feed(*self.world.steps(1))

    def wait(self, seconds: float, reporting: Sequence[str] = HOSTS) -> None:
        """Time passes without steps; some hosts report."""
        until_us = self.world.now_us + int(seconds * 1e6)
        while self.world.now_us < until_us:
            self.world.now_us += 250_000
            for rank in range(self.world.size):
                if self.world.host(rank) in reporting:
                    self.feed(self.world.progress(rank))
            self.feed(*(self.world.usage(host) for host in FAR if host in reporting))

    @property
    def frame(self) -> Frame:
        return self.reducer.frame(START_NS + self.world.now_us * 1000)

    def log(self, kind: str) -> list[str]:
        return [event.message for event in self.frame.events if event.kind == kind]


@pytest.mark.parametrize("place", PLACES)
def test_a_slow_rank_is_flagged_with_clocks_5000_s_apart_and_drifting(make_world, place) -> None:
    job = Job(make_world, delays={(3, place): 20_000})
    job.train(400)
    alone, near = make_world(6, own=True, delays={(3, place): 20_000}), Reducer()
    for received in (alone.run(), *alone.introduce(), *alone.steps(400)):
        near.feed(received)
    found, expected = job.frame, near.frame(START_NS + alone.now_us * 1000)
    assert found.straggler is not None and expected.straggler is not None
    assert found.straggler.rank == 3
    for name in ("cause", "place", "basis", "lateness_ms"):
        assert getattr(found.straggler, name) == getattr(expected.straggler, name)
    assert not found.group.clock_free
    for name in ("wait_ms", "transfer_ms", "exposed_wait_ms", "lateness_ms"):
        mine, theirs = getattr(found.ranks, name), getattr(expected.ranks, name)
        assert np.all(np.abs(mine - theirs) <= found.ranks.bound_ms), name
        np.testing.assert_allclose(mine, theirs, atol=0.01)  # the offsets are right, whatever the bounds say


@pytest.mark.parametrize("place", PLACES)
def test_with_a_bound_wider_than_the_delay_it_is_flagged_all_the_same(make_world, place) -> None:
    job = Job(make_world, delays={(3, place): 20_000})
    job.train(300, bound_ms=30.0, wrong_ms=25.0)
    found = job.frame
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.basis) == (3, "every_step")
    assert found.straggler.lateness_ms == pytest.approx(20.0, abs=0.1)
    assert found.group.clock_free
    assert np.isnan(found.ranks.lateness_ms).all() and np.isnan(found.ranks.last_pct).all()
    assert all(bucket.skew_ms is None and bucket.last_arriver is None for bucket in found.buckets)
    assert found.group.bound_ms == pytest.approx(60.1, abs=0.1)


def test_a_host_is_unreachable_then_lost_then_back(make_world) -> None:
    job = Job(make_world)
    job.train(20)
    before = set(job.frame.ranks.state)
    job.wait(2.9, HOSTS[:2])
    during = job.frame
    assert before == {"live"} and "unreachable" not in during.ranks.state
    job.wait(0.5, HOSTS[:2])
    cut = job.frame
    assert cut.ranks.state[4:] == ("unreachable", "unreachable")
    assert cut.run.state == "unreachable"
    assert [host.state for host in cut.hosts] == ["live", "live", "unreachable"]
    assert verdict(cut).kind == "unreachable"
    assert "host node2 is unreachable: ranks 4 5, last at step 20" in verdict(cut).sentence
    job.wait(7.0, HOSTS[:2])
    lost = job.frame
    assert lost.ranks.state[4:] == ("lost", "lost") and lost.run.state == "lost"
    assert verdict(lost).sentence.startswith("LOST · host node2 is lost: ranks 4 5, last at step 20")
    job.wait(1.0)
    back = job.frame
    assert {*back.ranks.state} == {"live"} and back.run.state == "live"
    assert [host.state for host in back.hosts] == ["live"] * 3
    assert job.log("host_unreachable") == ["host node2 is unreachable: ranks 4 5, last at step 20"]
    (line,) = job.log("host_lost")
    assert line == "host node2 is lost, silent for more than 10 s: ranks 4 5, last at step 20"
    assert job.log("host_back") == ["host node2 reports again after 11 s"]


def test_what_an_agent_reports_of_a_process_counts_as_the_collectors_own(make_world) -> None:
    job = Job(make_world)
    job.train(20)
    world = job.world
    job.feed(world.about(5, Usage(world.host_ns("node2", world.now_us), 5 << 30, 91.0)))
    event = Event("lost_rank", world.host_ns("node2", world.now_us), 5, -1, {"signal": "SIGKILL"})
    world.now_us += 40_000_000  # it comes late: the link was cut
    job.feed(world.about(5, event))
    found = job.frame
    assert found.ranks.rss_bytes[5] == 5 << 30
    assert found.ranks.state[5] == "lost"
    assert [(death.rank, death.signal) for death in found.deaths] == [(5, "SIGKILL")]
    assert job.reducer.state.ranks[5].gone_ns == pytest.approx(
        START_NS + (world.now_us - 40_000_000) * 1000, abs=1e5
    )
    taken = job.reducer.state.taken
    job.feed(world.about(5, world.run().message))  # nothing that an agent may report
    assert job.reducer.state.taken == taken + 1 and job.reducer.state.run.name == "toy"


def test_the_hosts_of_a_frame(make_world) -> None:
    job = Job(make_world, delays={(3, "data"): 20_000})
    job.train(200)
    job.feed(job.world.usage("node1", kept=7, local_recording="/tmp/x.ddptop", thinned=3))
    job.wait(0.5, HOSTS[:1])  # the log is checked twice a second
    found = job.frame
    assert [host.name for host in found.hosts] == [*HOSTS]
    own, slow, other = found.hosts
    assert own.collector and own.clock_offset_ms is None and not slow.collector
    assert (slow.ranks, slow.running, slow.state, slow.worst_rank) == (2, 2, "live", 3)
    assert slow.excess_ms == pytest.approx(20.0, abs=0.1)
    assert slow.clock_drift_ppm == pytest.approx(200.0) and slow.clock_bound_ms == pytest.approx(0.2)
    assert slow.clock_offset_ms == pytest.approx(APART["node1"] / 1e6, rel=1e-6)
    assert slow.clock_age_s is not None and slow.clock_age_s < 1
    assert (slow.cpu_pct, slow.cores, slow.memory_bytes, slow.round_trip_ms) == (12.5, 64, 1 << 38, 0.16)
    assert (slow.kept, slow.local_recording, slow.thinned) == (7, "/tmp/x.ddptop", 3)
    assert other.worst_rank in (4, 5) and other.kept == 0
    clock = snapshot(found)["clocks"][1]
    assert clock["host"] == "node1" and clock["drift_ppm"] == pytest.approx(200.0)
    (line,) = job.log("host_thinned")
    assert line == "host node1 leaves out bucket detail, because the collector asked for it"


def test_one_host_without_any_host_message(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    for received in (world.run(), *world.introduce(), *world.steps(20)):
        reducer.feed(received)
    (host,) = reducer.frame(START_NS + world.now_us * 1000).hosts
    assert (host.name, host.state, host.ranks, host.collector) == ("node0", "live", 2, True)
    assert host.clock_offset_ms is None and host.cpu_pct is None
