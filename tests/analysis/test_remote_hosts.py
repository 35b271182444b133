"""Hosts with agents: their states, their figures, what they report about processes, and their clocks."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.health.links import (
    LEAST_LINKS,
    explained_by_link,
    names_of_addresses,
    usual_round_trip_us,
)
from ddptop.analysis.hosts import BACK_NS
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.stall.current import MOST_CUT_OFF_NS
from ddptop.frames.frame import Straggler
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import Evidence, GroupState
from ddptop.protocol.hosts import HostLink
from ddptop.protocol.limits import DEFAULT_STALL_S
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Event, Received
from tests.analysis.stalling import op, waits
from tests.made_up_run import NS, START_NS, feed_together, report_from_messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.frame import Frame

HOSTS = ("node0", "node1", "node2")
FAR = HOSTS[1:]
APART = {"node0": 0, "node1": -5_000 * NS - 123, "node2": 4_999 * NS + 77}
DRIFT = {"node0": 0.0, "node1": 200.0, "node2": -150.0}
PLACES = ("data", "forward", "backward", "optimizer", "before_backward")


class Job:
    """Six ranks on three hosts, of which the first has the collector."""

    def __init__(self, make_world, **options) -> None:
        options = {"hosts": HOSTS, "offset_ns": APART, "drift_ppm": DRIFT, "own": True, **options}
        self.reducer = Reducer(stall_s=options.pop("stall_s", DEFAULT_STALL_S))
        self.fed: list[Received] = []
        self.world = make_world(options.pop("size", 6), **options)
        self.feed(self.world.run(), *(self.world.host_message(host) for host in FAR))
        self.feed(*self.world.introduce())

    def feed(self, *messages) -> None:
        self.fed += messages
        feed_together(self.reducer, messages)

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
    job.train(200)
    alone, near = make_world(6, own=True, delays={(3, place): 20_000}), Reducer()
    feed_together(near, [alone.run(), *alone.introduce(), *alone.steps(200)])
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
    job.train(200, bound_ms=30.0, wrong_ms=25.0)
    found = job.frame
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.basis) == (3, "every_step")
    assert found.straggler.lateness_ms == pytest.approx(20.0, abs=0.1)
    assert found.group.clock_free
    assert np.isnan(found.ranks.lateness_ms).all() and np.isnan(found.ranks.last_pct).all()
    assert all(bucket.skew_ms is None and bucket.last_arriver is None for bucket in found.buckets)
    assert found.group.bound_ms == pytest.approx(60.1, abs=0.1)
    reason = found.group.clock_reason
    assert reason is not None and reason.startswith("the clocks' bound of ±60.1 ms is wider than the skew")
    timeline = job.reducer.frame(START_NS + job.world.now_us * 1000, want="timeline").timeline
    assert timeline is not None and timeline.clock_free and timeline.last is None


def test_the_collectives_say_which_of_three_clocks_is_wrong(make_world) -> None:
    job = Job(make_world)
    job.world.drift_ppm = {}
    for _ in range(120):
        job.feed(job.world.compared("node1", 0.2, wrong_ms=50.0), job.world.compared("node2", 0.2))
        job.feed(*job.world.steps(1))
    assert job.frame.group.clock_free
    (line,) = job.log("clocks")
    assert line.startswith("the clock of host node1 contradicts the collectives by 49.0 ms")
    assert verdict(job.frame).kind != "clocks"  # own times need no clock


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
    assert "host node2 is unreachable: ranks 4 and 5, last at step 20" in verdict(cut).sentence
    job.wait(7.0, HOSTS[:2])
    lost = job.frame
    assert lost.ranks.state[4:] == ("lost", "lost") and lost.run.state == "lost"
    assert verdict(lost).sentence.startswith("LOST · host node2 is lost: ranks 4 and 5, last at step 20")
    job.wait(1.5)
    back = job.frame
    assert {*back.ranks.state} == {"live"} and back.run.state == "live"
    assert [host.state for host in back.hosts] == ["live"] * 3
    assert job.log("host_unreachable") == ["host node2 is unreachable: ranks 4 and 5, last at step 20"]
    (line,) = job.log("host_lost")
    assert line == "host node2 is lost, silent for more than 10 s: ranks 4 and 5, last at step 20"
    assert job.log("host_back") == ["host node2 reports again after 11 s"]


@pytest.mark.parametrize("returns", [True, False])
def test_a_report_ends_with_a_lost_host_only_if_it_has_not_come_back(make_world, returns: bool) -> None:
    job = Job(make_world)
    job.train(20)
    job.wait(40.0, HOSTS[:2])
    if returns:
        job.wait(1.5)
        job.train(20)
    report = report_from_messages(job.fed)
    assert report.run.state == "lost"
    end = next(finding.sentence for finding in report.verdict if finding.kind == "lost")
    assert ("node2 is lost" in end) != returns
    assert ("the recording stops in the middle of the run" in end) == returns


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


def stalled(make_world, steps: int = 40, **options) -> Job:
    """Six ranks that have trained; from now on they wait."""
    job = Job(make_world, **options)
    job.train(steps)
    return job


def test_ranks_of_an_unreachable_host_are_not_blamed_but_the_host_is_named(make_world) -> None:
    job = stalled(make_world)
    job.wait(16.0, HOSTS[:2])
    found = job.frame
    assert found.stall is not None and found.stall.kind == "unreachable"
    assert found.stall.ranks == (4, 5) and found.stall.waiting == (0, 1, 2, 3)
    assert found.stall.sentence == "host node2 is unreachable: ranks 4 and 5, last at step 40"
    assert found.run.state == "lost" and "host node2" in verdict(found).sentence
    assert not job.log("stall") and not [alert for alert in found.alerts if alert.kind == "stall"]


def test_a_cut_link_is_named_as_such_while_the_others_train_on(make_world) -> None:
    job = stalled(make_world)
    far = {rank for rank in range(6) if job.world.host(rank) == "node2"}
    job.world.delays[0, "data"] = 300_000
    for _ in range(60):  # 19 s
        job.feed(*(one for one in job.world.steps(1) if one.rank not in far))
    found = job.frame
    assert found.stall is None
    assert {*found.ranks.state} == {"live", "lost"}
    assert verdict(found).sentence.endswith("the other ranks train on, so only its reports are missing")


def test_a_host_whose_agent_gets_no_processor_time_is_not_unreachable_while_steps_finish(make_world) -> None:
    job = stalled(make_world, stall_s=4.0)
    far = {rank for rank in range(6) if job.world.host(rank) == "node2"}
    job.world.delays[0, "data"] = 300_000
    for _ in range(18):  # 5.8 s
        job.feed(*(one for one in job.world.steps(1) if one.rank not in far))
        assert {*job.frame.ranks.state} <= {"live", "stale"} and job.frame.stall is None
        assert verdict(job.frame).kind != "unreachable"
    assert not job.log("host_unreachable")
    job.wait(4.2, HOSTS[:2])  # now it is cut off: no rank finishes a step
    assert verdict(job.frame).sentence.endswith("host node2 is unreachable: ranks 4 and 5, last at step 40")
    assert len(job.log("host_unreachable")) == 1
    job.wait(6.0, HOSTS[:2])
    assert "host node2 is lost: ranks 4 and 5, last at step 40" in verdict(job.frame).sentence


@pytest.mark.parametrize("step_s", [0.3, 2.0, 5.0])
def test_a_silent_host_is_logged_once_whatever_the_length_of_steps(make_world, step_s: float) -> None:
    job = stalled(make_world)
    far = {rank for rank in range(6) if job.world.host(rank) == "node2"}
    job.world.delays[0, "data"] = int(step_s * 1e6)
    for _ in range(round(30 / step_s)):
        job.feed(*(one for one in job.world.steps(1) if one.rank not in far))
    of_host = {
        kind: sum("node2" in text for text in job.log(f"host_{kind}"))
        for kind in ("unreachable", "lost", "back")
    }
    assert of_host["unreachable"] <= 1 and (of_host["lost"], of_host["back"]) == (1, 0)


def test_steps_on_their_way_when_the_link_was_cut_do_not_mean_that_the_others_train_on(make_world) -> None:
    job = stalled(make_world)
    far = {rank for rank in range(6) if job.world.host(rank) == "node2"}
    for _ in range(6):
        job.feed(*(one for one in job.world.steps(1) if one.rank not in far))
    job.wait(6.0, HOSTS[:2])
    assert {*job.frame.ranks.state} == {"live", "unreachable"}
    assert "train on" not in verdict(job.frame).sentence


def test_a_rank_that_is_behind_is_blamed_also_where_a_host_is_silent(make_world) -> None:
    job = stalled(make_world)
    job.feed(*(one for one in job.world.steps(1) if one.rank not in (1, 4, 5)))
    until_us = job.world.now_us + 17_000_000
    while job.world.now_us < until_us:
        job.world.now_us += 500_000
        for rank in range(4):
            job.feed(job.world.progress(rank, step=40 if rank == 1 else 41))
        job.feed(job.world.usage("node1"))
    found = job.frame
    assert found.stall is not None and found.stall.kind == "missing"
    assert found.stall.ranks == (1,)


@pytest.mark.parametrize("missing", [0, 1])
def test_the_worst_rank_of_a_host_is_the_one_that_a_stall_is_due_to_not_its_slowest(
    make_world, missing: int
) -> None:
    job = stalled(make_world, delays={(1 - missing, "data"): 20_000})
    assert job.frame.hosts[0].worst_rank == 1 - missing
    job.feed(*(one for one in job.world.steps(1) if one.rank != missing))
    job.world.progress = partial(behind, job.world.progress, missing)
    job.wait(17.0)
    found = job.frame
    assert found.stall is not None and found.stall.ranks == (missing,)
    assert found.hosts[0].worst_rank == missing
    assert found.hosts[0].excess_ms == pytest.approx(float(found.ranks.excess_ms[missing]))


def test_a_rank_that_waits_itself_is_not_blamed_where_a_host_is_silent(make_world) -> None:
    """What it waits for may be what the host has not sent: the others have had theirs."""
    job = stalled(make_world)
    job.feed(*(one for one in job.world.steps(1) if one.rank not in (1, 4, 5)))
    job.world.progress = partial(behind, job.world.progress, 1)
    job.wait(17.0, HOSTS[:2])
    for rank in range(4):
        sequence = 80 if rank == 1 else 82
        now_ns = job.world.host_ns(job.world.host(rank), job.world.now_us)
        words = ("", (GroupState("0", "gloo", 6, sequence, -1),), waits(), (op(sequence),))
        job.feed(job.world.received(rank, Evidence(now_ns, 7, 40 + (rank != 1), 3, 0, *words)))
    stall = job.frame.stall
    assert stall is not None and (stall.kind, stall.ranks) == ("unreachable", (4, 5))


def test_a_process_that_ended_is_the_cause_and_not_the_silence_of_a_host(make_world) -> None:
    job = stalled(make_world)
    world = job.world
    event = Event("lost_rank", world.host_ns("node1", world.now_us), 3, -1, {"signal": "SIGKILL"})
    job.feed(world.about(3, event))
    job.wait(16.0, HOSTS[:2])
    found = job.frame
    assert found.stall is not None and found.stall.kind == "dead" and found.stall.ranks[0] == 3
    assert "rank 3 was killed by SIGKILL" in verdict(found).sentence


def test_ranks_that_lost_their_peers_are_not_the_cause_where_a_host_is_lost(make_world) -> None:
    job = stalled(make_world)
    job.feed(job.world.bye(0, "RuntimeError: Connection closed by peer"))
    job.wait(11.0, HOSTS[:2])
    found = job.frame
    assert found.run.state == "lost"
    assert "host node2 is lost: ranks 4 and 5" in verdict(found).sentence


def test_all_ranks_of_one_host_behind_are_called_by_the_host(make_world) -> None:
    job = stalled(make_world)
    job.feed(*(one for one in job.world.steps(1) if job.world.host(one.rank) != "node1"))
    until_us = job.world.now_us + 22_000_000
    while job.world.now_us < until_us:
        job.world.now_us += 500_000
        for rank in range(6):
            behind = job.world.host(rank) == "node1"
            job.feed(job.world.progress(rank, step=40 if behind else 41, sequence=80 if behind else 82))
        job.feed(*map(job.world.usage, FAR))
    found = job.frame
    assert found.stall is not None and found.stall.ranks == (2, 3)
    assert found.stall.sentence.startswith("host node1 (ranks 2 and 3) is missing")


def test_a_clock_that_drifts_for_days_makes_no_stall(make_world) -> None:
    """The collector's clock gains 17 s a day on node1: the delay of its messages is no constant."""
    job = stalled(make_world)
    job.world.now_us += 30 * 3600 * 10**6
    job.feed(*(job.world.compared(host, 0.2) for host in FAR))
    job.wait(0.5)
    job.world.begin_us = [job.world.now_us] * 6
    job.train(3)
    job.wait(1.0)
    for rank_state in job.reducer.state.ranks:
        assert abs(rank_state.moved_ns - (START_NS + job.world.now_us * 1000 - 10**9)) < 0.2 * NS


@pytest.mark.parametrize("size", [2, 4, 6, 8])
def test_a_restart_that_hosts_count_differently_is_one_group(make_world, size) -> None:
    """Only the host whose rank failed counts a restart; a world may shrink or grow with it."""
    job = stalled(make_world)
    hosts = HOSTS[: min(3, size // 2)]
    later = make_world(size, hosts=hosts, own=True, session_base=300, now_us=job.world.now_us)
    for at, rank in enumerate(sorted(range(size), key=lambda rank: rank % 3)):  # in any order
        later.incarnation = 1 if later.host(rank) == "node0" else 0
        later.unix_ns = job.world.unix_ns + 600 * NS + at * NS // 10
        job.feed(later.hello(rank), later.layout(rank))
    job.feed(*later.steps(20))
    found = job.reducer.frame(START_NS + later.now_us * 1000)
    assert found.run.world_size == size and len(found.ranks.state) == size
    assert {*found.ranks.state} == {"live"}
    assert found.group.step == 19 and found.group.incarnation == 1


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_node_that_leaves_or_comes_without_a_failure(make_world, size) -> None:
    """torchrun counts no restart then: the processes are new all the same."""
    job = stalled(make_world)
    hosts = (*HOSTS, "node3")[: size // 2]
    later = make_world(size, hosts=hosts, own=True, session_base=300, now_us=job.world.now_us)
    later.unix_ns += 600 * NS
    job.feed(*later.introduce(), *later.steps(20))
    found = job.reducer.frame(START_NS + later.now_us * 1000)
    assert (found.run.world_size, found.group.step, {*found.ranks.state}) == (size, 19, {"live"})
    assert [host.name for host in found.hosts if host.ranks] == [*hosts]
    (line,) = job.log("resized")
    assert line == f"the group has {size} ranks from here on, 6 before"


def test_one_host_without_any_host_message(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(20)])
    (host,) = reducer.frame(START_NS + world.now_us * 1000).hosts
    assert (host.name, host.state, host.ranks, host.collector) == ("node0", "live", 2, True)
    assert host.clock_offset_ms is None and host.cpu_pct is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"resent": 20}, "network from host node1 to host node2: 2.0% of 1,000 segments lost and sent again"),
        (
            {"least_us": 9_000},
            "network from host node1 to host node2: round trip 9.0 ms at least, 0.2 ms on other links",
        ),
        ({"resent": 4}, None),
        ({"least_us": 2_000}, None),
    ],
)
def test_a_link_that_loses_segments_or_is_slow_is_named_with_its_two_ends(make_world, changes, words) -> None:
    job = Job(make_world)

    def links(host: str, **of_worst: int) -> tuple[HostLink, ...]:
        others = [HostLink(host, other, 2, 900, 200, 1000, 0, 10**8) for other in HOSTS if other != host]
        return others[1]._replace(**of_worst), others[0]

    def read() -> None:
        job.wait(1.25, FAR)
        job.feed(job.world.usage("node2", links=links("node2")))
        job.feed(job.world.usage("node1", links=links("node1", **changes)))
        job.wait(1.25, FAR)

    read()
    assert job.log("network") == [], "once may be chance"
    for _ in range(3):
        read()
    assert job.log("network") == ([words] if words else [])
    assert [alert.message for alert in job.frame.alerts if alert.kind == "network"] == job.log("network")
    job.train(100)
    found = job.frame
    known = {
        "step_ms_p50": 50.0,
        "no_straggler_ms": 49.0,
        "no_straggler_low_ms": 48.5,
        "no_straggler_high_ms": 49.5,
    }
    slow, quick = (
        replace(found, group=replace(found.group, **known, both_ms=both_ms)) for both_ms in (34.0, 47.5)
    )
    lossy = "resent" in changes and words is not None
    assert verdict(quick).kind == ("network" if lossy else "even"), "a long round trip costs nothing here"
    assert (verdict(slow).kind == "network") == (words is not None)
    assert not words or verdict(slow).line() == f"▲ {words} · transfer 30% of the step"
    known, host_of = job.reducer.state.hosts, [job.world.host(rank) for rank in range(6)]
    late = Straggler(4, None, 20.0, 0.5, 10.0, 30.0, 95.0, None, {}, basis="arrivals")
    excused = {rank for rank in range(6) if explained_by_link(known, replace(late, rank=rank), host_of)}
    assert excused == ({rank for rank in range(6) if host_of[rank] != "node0"} if words else set())
    assert not explained_by_link(known, replace(late, basis="every_step"), host_of), (
        "own times hold no network"
    )


def test_of_three_hosts_one_that_is_slow_to_both_others_is_named(make_world) -> None:
    job = Job(make_world)
    for _ in range(3):
        for host in FAR:
            far = {other: 20_000 if "node2" in (host, other) else 200 for other in HOSTS if other != host}
            links = tuple(HostLink(host, other, 2, us, us, 1000, 0, 10**8) for other, us in far.items())
            job.feed(job.world.usage(host, links=links))
        job.wait(2.5, FAR)
    words = [line.split(": ", 1) for line in job.log("network")]
    assert {tail for _, tail in words} == {"round trip 20.0 ms at least, 0.2 ms on other links"}
    ends = ("node1 to host node2", "node2 to host node0", "node2 to host node1")
    assert sorted(head for head, _ in words) == [f"network from host {each}" for each in ends]


@pytest.mark.parametrize("count", range(14))
def test_links_are_compared_with_the_lower_quartile_of_all(count: int) -> None:
    all_us = np.random.default_rng(count).integers(100, 900, count)
    links = [HostLink("node1", "node2", 1, int(us), int(us), 900, 0, 10**8) for us in all_us]
    parts = {"node1": links[: count // 2], "node2": links[count // 2 :]}
    hosts = SimpleNamespace(known={name: SimpleNamespace(links=part) for name, part in parts.items()})
    expected = np.quantile(all_us, 0.25, method="lower") if count >= LEAST_LINKS else 0
    assert usual_round_trip_us(hosts) == expected


@pytest.mark.parametrize(("world", "far_us"), [(3, 20_000), (2, 20_000), (3, 4_000), (2, 4_000)])
def test_of_a_ring_of_hosts_the_slow_direction_is_named(make_world, world: int, far_us: int) -> None:
    job, ring = Job(make_world), HOSTS[-world:]
    job.feed(job.world.host_message("node0", own=True))
    for _ in range(3):
        for number, host in enumerate(ring):
            us = far_us if number == 0 or world == 2 else 200
            link = HostLink(host, ring[number - 1], 1, us, us, 900, 0, 10**8)
            usage = job.world.usage(host, links=(link,))
            job.feed(usage._replace(session=0) if host == "node0" else usage)
        job.wait(2.5, FAR)
    words = f"round trip {far_us / 1e3:.1f} ms at least" + (", 0.2 ms on other links" if world == 3 else "")
    ends = [(ring[0], ring[-1]), (ring[1], ring[0])][: 4 - world]
    expected = [f"network from host {here} to host {there}: {words}" for here, there in ends]
    assert sorted(job.log("network")) == ([] if (world, far_us) == (2, 4_000) else sorted(expected))


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        ([(533, 4), (666, 3), (590, 3), (421, 4), (577, 3)], "0.6% of 2,210 segments lost"),
        ([(533, 1), (666, 1), (590, 0), (421, 1), (577, 1)], ""),
        ([(2000, 2), (2000, 3), (2000, 4), (2000, 2), (2000, 3)], ""),
        ([(533, 9), (666, 0), (590, 0), (421, 0), (577, 0)], ""),
        ([(0, 4), (0, 3), (0, 4), (0, 4), (0, 4)], ""),
    ],
)
def test_a_link_that_is_gone_now_and_then_is_named_by_what_it_loses_in_20_s(
    make_world, readings, words
) -> None:
    """The first are of a real link between three hosts, cut for 1 s of every 5."""
    job = Job(make_world)
    for sent, resent in readings:
        link = HostLink("node1", "node2", 1, 9000, 16, sent, resent, 10**8)
        job.feed(job.world.usage("node1", links=(link,)))
        job.wait(2.5, FAR)
    found = job.log("network")
    assert [
        text.startswith("network from host node1 to host node2: ") and words in text for text in found
    ] == ([True] if words else [])


@pytest.mark.parametrize(
    ("silent_ms", "resent", "words"),
    [
        ([0, 1210, 0, 1180], 4, "cut for up to 1.2 s in 2 of the last 4 readings"),
        ([0, 1210, 0, 0, 0, 0], 4, ""),
        ([0, None, 5800, 0, None, 5800], 4, "cut for up to 5.8 s in 2 of the last 4 readings"),
        ([0, None, 5800, None, None, None, 5800], 4, ""),
        ([0, 210, 205, 210, 190], 4, ""),
        ([0, 1210, 0, 1180], 0, "cut for up to 1.2 s in 2 of the last 4 readings"),
    ],
)
def test_a_link_that_does_not_answer_now_and_then_is_cut_however_few_segments_are_lost(
    make_world, silent_ms, resent, words
) -> None:
    """Once is no alert; neither is a single timeout. None: nothing was sent in this reading."""
    job = Job(make_world)
    for each in silent_ms:
        link = HostLink("node1", "node2", 1, 9000, 16, 3000, resent, 10**8, each or 0)
        job.feed(job.world.usage("node1", links=() if each is None else (link,)))
        job.wait(2.5, FAR)
    assert job.log("network") == ([f"network from host node1 to host node2: {words}"] if words else [])
    assert not words or next(one for one in job.frame.alerts if one.kind == "network").evidence["lost"]


@pytest.mark.parametrize("resent", [0, 20])
def test_whether_a_link_loses_segments_is_no_matter_of_the_hosts_name(make_world, resent) -> None:
    job = Job(make_world)
    for _ in range(3):
        link = HostLink("node1", "lost-and-found", 1, 9000, 9000, 1000, resent, 10**8)
        job.feed(job.world.usage("node1", links=(link,)))
        job.wait(2.5, FAR)
    (alert,) = (one for one in job.frame.alerts if one.kind == "network")
    assert (alert.evidence["peer"], alert.evidence["lost"]) == ("lost-and-found", resent > 0)


@pytest.mark.parametrize("says", [True, False], ids=["the host says it", "its links went out from there"])
def test_a_host_and_its_address_are_one_also_while_it_is_cut_off(make_world, says) -> None:
    """Whose agent says its addresses; or had links, and is another process by now, without any."""
    job = Job(make_world)
    bridge = "172.17.0.1"
    for number, host in enumerate(("node0", "node1", "node2"), 1):
        addresses = (f"10.78.0.{number}", bridge) if says else ()
        job.feed(job.world.host_message(host, own=host == "node0", addresses=addresses))
    job.feed(job.world.host_message("node2"))  # again, while its cable is out
    if not says:
        back = HostLink("10.78.0.3", "10.78.0.2", 1, 200, 200, 900, 0, 10**8)
        job.feed(job.world.usage("node2", links=(back,)))
        job.feed(job.world.usage("node2", links=()))
    for _ in range(3):
        links = (HostLink("10.78.0.2", "10.78.0.3", 1, 9000, 200, 1000, 40, 10**8),)
        job.feed(job.world.usage("node1", links=links))
        job.wait(2.5, FAR)
    (alert,) = (one for one in job.frame.alerts if one.kind == "network")
    assert alert.evidence["peer"] == "node2"
    assert alert.message.startswith("network from host node1 to host node2: ")
    assert bridge not in names_of_addresses(job.reducer.state.hosts)


def test_a_frame_looks_at_every_link_once_however_many_hosts_there_are(make_world, monkeypatch) -> None:
    job = Job(make_world)
    for host, peer in ((FAR[0], FAR[1]), (FAR[1], FAR[0])):
        link = HostLink(f"address of {host}", f"address of {peer}", 2, 900, 200, 1000, 0, 10**8)
        job.feed(job.world.usage(host, links=(link,)))
    looked = []

    def names(hosts):
        looked.append(hosts)
        return names_of_addresses(hosts)

    monkeypatch.setattr("ddptop.analysis.health.links.names_of_addresses", names)
    monkeypatch.setattr("ddptop.analysis.to_frame.hosts.names_of_addresses", names)
    found = {one.name: one.link_peer for one in job.frame.hosts if one.link_peer is not None}
    assert found == {FAR[0]: FAR[1], FAR[1]: FAR[0]}
    assert len(looked) == 1


def answer(job: Job, *ranks: int) -> None:
    """These ranks answer that they wait in the collective that all are in."""
    for rank in ranks:
        state, now_ns = (
            job.reducer.state.ranks[rank],
            job.world.host_ns(job.world.host(rank), job.world.now_us),
        )
        groups = (GroupState("0", "gloo", 6, 80, -1),)
        evidence = Evidence(now_ns, 7, state.step, 3, 0, "", groups, waits(), (op(80),))
        job.feed(job.world.received(rank, evidence))


def blames(job: Job, seconds: float, reporting: Sequence[str] = HOSTS, *, ranks: bool = True) -> set[str]:
    """What is said of ranks or hosts while time passes, as critical, in whatever place; `ranks`: those of
    node2 report, too, and not its agent alone."""
    said = set()
    for _ in range(round(4 * seconds)):
        job.wait(0.25, [name for name in reporting if ranks or name != "node2"])
        if "node2" in reporting:
            job.feed(job.world.usage("node2"))
        found = job.frame
        said |= {event.message for event in found.events if event.severity == "critical"}
        said |= {alert.message for alert in found.alerts if alert.severity == "critical"}
        said |= set() if found.stall is None else {found.stall.sentence}
    return {text for text in said if "node2" in text or "rank 4" in text or "ranks 4" in text}


def test_ranks_whose_link_was_cut_are_not_missing_before_they_can_have_answered(make_world) -> None:
    job = stalled(make_world)
    job.wait(17.0, HOSTS[:2])
    answer(job, 0, 1, 2, 3)
    job.wait(8.0, HOSTS[:2])
    assert job.frame.stall.kind == "unreachable"  # type: ignore[union-attr]
    critical = [event.message for event in job.frame.events if event.severity == "critical"]
    assert critical == ["host node2 is lost, silent for more than 10 s: ranks 4 and 5, last at step 40"]
    said = blames(job, 1.5, ranks=False) | blames(job, 2.0)  # its agent is heard first, then its ranks
    assert said == {*critical}
    assert job.frame.stall.kind == "asking"  # type: ignore[union-attr]
    answer(job, 4, 5)
    job.wait(1.5)
    assert job.frame.stall.kind == "transport"  # type: ignore[union-attr]
    assert [text.rpartition(": ")[2] for text in job.log("stall")] == ["transport"]


@pytest.mark.parametrize("silent_s", [pytest.param(1.25, marks=pytest.mark.slow), 2.75])
@pytest.mark.parametrize("answered", [False, True])
def test_ranks_whose_agent_was_killed_in_a_stall_are_not_silent_themselves(
    make_world, answered, silent_s
) -> None:
    job = stalled(make_world)
    job.wait(17.0)
    answer(job, 0, 1, 2, 3, *((4, 5) if answered else ()))
    job.wait(5.0)
    assert blames(job, silent_s, HOSTS[:2]) == set()
    job.feed(replace_agent(job, "node2"))
    assert blames(job, 1.5, ranks=False) == blames(job, 3.0) == set()
    if not answered:
        answer(job, 4, 5)
    job.wait(1.5)
    assert job.frame.stall.kind == "transport"  # type: ignore[union-attr]


def test_heartbeats_that_come_late_after_a_cut_do_not_blame_the_rank(make_world) -> None:
    """As long as a silent host is not called unreachable."""
    job = stalled(make_world)
    job.wait(17.0)
    answer(job, *range(6))
    job.wait(2.5, HOSTS[:2])
    job.wait(BACK_NS / NS + 1)
    assert job.frame.stall.kind == "transport"  # type: ignore[union-attr]
    assert blames(job, 2.75, ranks=False) == set()
    assert "it does not answer" in " ".join(blames(job, 1.0, ranks=False))


def replace_agent(job: Job, host: str) -> Received:
    """Another agent of the host introduces itself."""
    introduced = job.world.host_message(host)
    return introduced._replace(message=replace(introduced.message, session=8_000), session=8_000)


def test_a_rank_that_is_behind_and_does_not_answer_is_missing_once_it_had_the_time(make_world) -> None:
    """Also where its host is silent for a moment again and again."""
    job = stalled(make_world)
    job.feed(*(one for one in job.world.steps(1) if one.rank != 4))
    job.world.progress = partial(behind, job.world.progress, 4)
    job.wait(17.0)
    answer(job, 0, 1, 2, 3, 5)
    job.wait(4.0)
    assert job.frame.stall.ranks == (4,)  # type: ignore[union-attr]
    job.wait(2.25, HOSTS[:2])
    assert job.frame.stall.kind == "asking"  # type: ignore[union-attr]
    job.wait(BACK_NS / NS + 1)
    assert job.frame.stall.ranks == (4,)  # type: ignore[union-attr]
    for _ in range(round(MOST_CUT_OFF_NS / NS / 4.5) + 1):
        job.wait(2.25, HOSTS[:2])
        job.wait(2.25)
    assert job.frame.stall.ranks == (4,)  # type: ignore[union-attr]


def behind(progress, last: int, rank: int, **changes) -> Received:
    """The rank `last` is in the step before that of the others."""
    return progress(rank, **({"step": 40, "sequence": 80} if rank == last else {}), **changes)
