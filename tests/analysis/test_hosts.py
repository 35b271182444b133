"""Ranks on several hosts: offsets put them on one clock, bounds say what can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.clocks import SAME_HOST_BOUND_MS
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Received
from tests.made_up_run import feed_together

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

NS = 1_000_000_000
START_NS = 5_000 * NS
HOSTS = ("node0", "node1")
APART = {"node0": 0, "node1": -7_300_000_000_123}
"""Two hours apart, and not by whole microseconds."""

FIGURES = ("collective_ms", "wait_ms", "transfer_ms", "exposed_comm_ms", "exposed_wait_ms", "lateness_ms")


def told(world, clocks, steps: int = 100, reducer: Reducer | None = None) -> tuple[Frame, Reducer]:
    """Feed the world and what the collector says of the clocks."""
    if reducer is None:
        reducer = Reducer()
        feed_together(reducer, [world.run(), *world.introduce()])
    feed_together(reducer, clocks)
    feed_together(reducer, world.steps(steps))
    return reducer.frame(START_NS + world.now_us * 1000), reducer


def both_clocks(world, bound_ms: float, *, wrong_ms: float = 0.0):
    """The first host's clock is exact, the second's is known as far as the bound."""
    return [world.clock("node0", 0.0), world.clock("node1", bound_ms, wrong_ms=wrong_ms)]


def test_a_rank_that_has_reported_at_the_clocks_begin_has_its_host(make_world) -> None:
    reducer = Reducer()
    reducer.feed(Received(0, 0, 100, 0, make_world(2).hello(0).message))
    assert [host.name for host in reducer.frame(0).hosts] == ["node0"]


@pytest.mark.parametrize("where", ["data", "backward", "late_backward", "optimizer"])
def test_exact_offsets_give_the_figures_of_one_host(make_world, where) -> None:
    delays = {(1, where): 20_000}
    apart = make_world(4, hosts=HOSTS, offset_ns=APART, delays=dict(delays))
    far, _ = told(apart, both_clocks(apart, 0.0))
    near, _ = told(make_world(4, delays=dict(delays)), [])
    for name in FIGURES:
        np.testing.assert_allclose(getattr(far.ranks, name), getattr(near.ranks, name), atol=1e-3)
    assert far.straggler is not None
    assert near.straggler is not None
    assert (far.straggler.rank, far.straggler.cause) == (near.straggler.rank, near.straggler.cause)
    for name in ("lateness_ms", "recoverable_ms", "cost_pct"):
        assert getattr(far.straggler, name) == pytest.approx(getattr(near.straggler, name), abs=1e-3)
    for mine, theirs in zip(far.buckets, near.buckets, strict=True):
        assert mine.skew_ms == pytest.approx(theirs.skew_ms, abs=1e-3)
        assert mine.last_arriver == theirs.last_arriver
    assert not far.group.clock_free
    assert far.group.both_ms == pytest.approx(near.group.both_ms, abs=1e-3)


def test_a_bound_of_5_ms_hides_2_ms_but_not_20(make_world) -> None:
    world = make_world(4, hosts=HOSTS, offset_ns=APART, delays={(1, "data"): 2_000})
    hidden, _ = told(world, both_clocks(world, 5.0))
    assert hidden.straggler is None
    assert hidden.group.clock_free
    assert np.isnan(hidden.ranks.lateness_ms).all()
    assert np.isnan(hidden.ranks.last_pct).all()
    assert hidden.group.no_straggler_ms is None
    assert hidden.group.bound_ms == pytest.approx(5.1)
    assert hidden.buckets[0].skew_ms is None
    np.testing.assert_allclose(hidden.ranks.exposed_wait_ms, [2, 0, 2, 2], atol=1e-3)
    np.testing.assert_allclose(hidden.history.wait_ms[-10:], 1.5, atol=1e-3)

    world = make_world(4, hosts=HOSTS, offset_ns=APART, delays={(1, "data"): 20_000})
    seen, _ = told(world, both_clocks(world, 5.0))
    assert seen.straggler is not None
    assert seen.straggler.rank == 1
    assert seen.straggler.bound_ms == pytest.approx(5.0 + SAME_HOST_BOUND_MS)
    assert not seen.group.clock_free


@pytest.mark.parametrize("wrong_ms", [-3.0, 3.0])
@pytest.mark.parametrize("late", [0, 1, 2, 3])
@pytest.mark.parametrize("delay_us", [0, 1_000, 4_000, 20_000])
def test_offsets_wrong_by_their_bound_name_nobody_wrongly(make_world, wrong_ms, late, delay_us) -> None:
    world = make_world(4, hosts=HOSTS, offset_ns=APART, delays={(late, "data"): delay_us})
    found, _ = told(world, both_clocks(world, 3.0, wrong_ms=wrong_ms))
    assert found.straggler is None or found.straggler.rank == late
    if delay_us == 20_000:
        assert found.straggler is not None
        assert found.straggler.lateness_ms == pytest.approx(20.0, abs=found.straggler.bound_ms)
        wait = found.ranks.exposed_wait_ms
        assert np.all(np.abs(wait - np.where(np.arange(4) == late, 0, 20)) <= found.ranks.bound_ms)


def test_without_offsets_the_fallback_is_said_and_nobody_is_named(make_world) -> None:
    world = make_world(4, hosts=HOSTS, offset_ns=APART, delays={(1, "data"): 20_000})
    found, _ = told(world, [world.clock("node0", 0.0)])
    assert found.straggler is None
    assert found.group.clock_free
    assert found.group.bound_ms is None
    np.testing.assert_allclose(found.ranks.exposed_wait_ms, [20, 0, 20, 20], atol=1e-3)
    np.testing.assert_allclose(found.ranks.transfer_ms, 3.0, atol=1e-3)
    assert [(c.host, c.offset_ms, c.bound_ms) for c in found.clocks] == [
        ("node0", 0.0, 0.0),
        ("node1", None, None),
    ]
    assert verdict(found).kind == "clocks"


def test_clocks_that_come_while_the_run_goes_on_hold_from_then_on(make_world) -> None:
    world = make_world(4, hosts=HOSTS, offset_ns=APART, delays={(1, "data"): 20_000})
    before, reducer = told(world, [], 60)
    assert before.group.clock_free
    found, _ = told(world, both_clocks(world, 0.05), 120, reducer)
    assert not found.group.clock_free
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert found.clocks[1].offset_ms == pytest.approx(APART["node1"] / 1e6)
    assert found.clocks[1].bound_ms == pytest.approx(0.05)


def test_with_clocks_too_figures_do_not_depend_on_when_frames_are_asked_for(make_world) -> None:
    shown = []
    for every in (1, 13, 10_000):
        world = make_world(4, hosts=HOSTS, offset_ns=dict(APART), delays={(1, "data"): 3_000}, detail_every=2)
        reducer = Reducer()
        feed_together(reducer, [world.run(), *world.introduce()])
        for i in range(150):
            if i % 25 == 20:
                reducer.feed(world.clock("node0", 0.0))
                reducer.feed(world.clock("node1", 6.0 / (1 + i // 25), wrong_ms=0.01 * i))
            feed_together(reducer, world.steps(1))
            if i % every == 0:
                reducer.frame(START_NS + world.now_us * 1000)
        found = reducer.frame(START_NS + world.now_us * 1000)
        shown.append((snapshot(found), found.events, found.history.wait_ms.tolist()))
    for other in shown[1:]:
        np.testing.assert_equal(other, shown[0])


def test_the_collectives_give_a_wrong_clock_away(make_world) -> None:
    """Nobody ends before the last arrives: a clock 50 ms off, said to be exact, cannot be true."""
    world = make_world(4, hosts=HOSTS, offset_ns=APART)
    found, reducer = told(world, both_clocks(world, 0.1, wrong_ms=50.0))
    assert found.straggler is None
    assert found.group.clock_free
    assert reducer.state.figures.contradicted
    (line,) = [h.message for h in found.events if h.kind == "clocks"]
    assert line == (
        "the clocks of hosts node0 and node1 contradict the collectives by 49.0 ms,"
        " more than their bound of 0.2 ms: arrivals are not compared"
    )
    found, reducer = told(world, both_clocks(world, 0.1), 150, reducer)
    assert not reducer.state.figures.contradicted
    assert not found.group.clock_free or found.group.bound_ms == pytest.approx(0.2)


def test_the_bound_of_a_rank_is_that_of_the_widest_pair_it_is_part_of(make_world) -> None:
    world = make_world(6, hosts=("a", "b", "c"), delays={(0, "data"): 30_000})
    clocks = [world.clock("a", 0.2), world.clock("b", 1.0), world.clock("c", 3.0)]
    found, _ = told(world, clocks)
    expected = [3.2, 3.2, 4.0, 4.0, 4.0, 4.0]
    np.testing.assert_allclose(found.ranks.bound_ms, np.array(expected) + SAME_HOST_BOUND_MS, rtol=1e-6)
    assert found.group.bound_ms == pytest.approx(4.1)


def test_what_timers_tell_replaces_the_stated_bound(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    found, _ = told(world, [], 20, reducer)
    assert found.ranks.bound_ms.tolist() == pytest.approx([SAME_HOST_BOUND_MS] * 2)
    reducer.state.timers.take(0, 30.0, 0.0)
    reducer.state.timers.take(1, 250.0, 700.0)
    found, _ = told(world, [], 120, reducer)
    assert found.ranks.bound_ms.tolist() == pytest.approx([0.25, 0.25])
    assert found.ranks.transfer_bound_ms.tolist() == pytest.approx([0.25, 0.95])


def test_the_transfer_bound_is_how_late_an_end_may_have_been_stamped(make_world) -> None:
    """Rank 1 stamps both of its ends 2 ms late."""
    world = make_world(2, stamped_late={1: 2_000})
    found, _ = told(world, [])
    assert found.ranks.transfer_bound_ms.tolist() == pytest.approx([0.1, 4.1])
    assert found.buckets[0].transfer_bound_ms == pytest.approx(0.1 + 1.0)
    assert found.buckets[0].bound_ms == pytest.approx(0.1)
    assert found.group.transfer_bound_ms == pytest.approx(4.1)
    assert found.ranks.lateness_ms.tolist() == [0, 0]


def test_a_group_within_one_host_needs_no_comparison_of_clocks(make_world) -> None:
    pairs = ((0, 1), (2, 3))
    world = make_world(4, hosts=HOSTS, offset_ns=APART, groups=(pairs, pairs), delays={(3, "data"): 20_000})
    told_groups = [world.membership(rank, str(rank // 2), *pairs[rank // 2]) for rank in range(4)]
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *told_groups])
    found, _ = told(world, [], 100, reducer)
    assert not found.group.clock_free
    assert found.straggler is not None
    assert found.straggler.rank == 3
    assert found.ranks.bound_ms.tolist() == pytest.approx([SAME_HOST_BOUND_MS] * 4)
