"""Several process groups and several models in one run are kept apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import Bucket
from tests.made_up_run import feed_together

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

NS = 1_000_000_000
START_NS = 5_000 * NS
PAIRS = ((0, 1), (2, 3))
EVERYBODY = ((0, 1, 2, 3),)


def bucket(model: int, index: int, size: int = 8_000_000) -> Bucket:
    return Bucket(
        model=model, index=index, bytes=size, wire_bytes=size, parameters=4, dtype="float32", hook=""
    )


def show(reducer: Reducer, world) -> Frame:
    return reducer.frame(START_NS + world.now_us * 1000)


def feed(reducer: Reducer, *received) -> None:
    feed_together(reducer, received)


def start(world, memberships) -> Reducer:
    """A world that has introduced itself; (rank, group, ranks, model) as it tells them."""
    reducer = Reducer()
    feed(reducer, world.run(), *world.introduce())
    for rank, group, ranks, model in memberships:
        feed(reducer, world.membership(rank, group, *ranks, model=model))
    return reducer


@pytest.fixture
def pairs(make_world):
    """World of four in two pairs with a group each; rank 3 is 20 ms late for rank 2."""
    world = make_world(4, groups=(PAIRS, PAIRS), delays={(3, "data"): 20_000})
    told = [(rank, str(1 + rank // 2), PAIRS[rank // 2], 0) for rank in range(4)]
    return world, start(world, told)


def test_a_group_never_waits_for_a_rank_of_another(pairs) -> None:
    world, reducer = pairs
    feed(reducer, *world.steps(100))
    found = show(reducer, world)
    assert found.ranks.exposed_wait_ms.tolist() == pytest.approx([0, 0, 20, 0])
    assert found.ranks.wait_ms[:2].tolist() == [0, 0]
    assert found.ranks.transfer_ms.tolist() == pytest.approx([3.0] * 4)
    assert found.ranks.lateness_ms.tolist() == pytest.approx([0, 0, -20, 20])
    assert found.ranks.last_pct.tolist() == [0, 0, 0, 100]
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (3, "data")
    assert found.straggler.lateness_ms == pytest.approx(20.0)
    assert found.straggler.cost_pct == pytest.approx(100 * 20 / 34, rel=0.01), "of its own group's step"
    assert found.group.step_ms_p50 == pytest.approx(24.0), "median over ranks: two take 14 ms, two 34"
    assert found.group.no_straggler_ms == pytest.approx(14.0)


def test_buckets_of_groups_are_listed_apart_with_the_factor_of_their_size(make_world) -> None:
    thirds = ((0,), (1, 2, 3))
    world = make_world(4, groups=(thirds, thirds))
    told = [(0, "alone", (0,), 0)] + [(rank, "rest", (1, 2, 3), 0) for rank in (1, 2, 3)]
    reducer = start(world, told)
    feed(reducer, *world.steps(40))
    found = show(reducer, world)
    assert [(b.group, b.index) for b in found.buckets] == [
        ("rest", 0),
        ("rest", 1),
        ("alone", 0),
        ("alone", 1),
    ]
    assert [b.algbw_gbps for b in found.buckets] == pytest.approx([8.0, 4.0, 8.0, 4.0])
    assert found.buckets[0].busbw_gbps == pytest.approx(8.0 * 4 / 3)
    assert found.buckets[2].busbw_gbps == 0
    assert snapshot(found)["buckets"][2]["group"] == "alone"


def test_groups_with_other_layouts_are_judged_each_on_its_own(pairs) -> None:
    world, reducer = pairs
    small = (bucket(0, 0, 1_000), bucket(0, 1, 2_000))
    feed(reducer, world.layout(2, small), world.layout(3, small), *world.steps(100))
    found = show(reducer, world)
    assert [(b.group, b.bytes) for b in found.buckets] == [
        ("1", 8_000_000),
        ("1", 8_000_000),
        ("2", 1_000),
        ("2", 2_000),
    ]
    assert found.straggler is not None
    assert found.straggler.rank == 3


def test_a_group_whose_ranks_disagree_is_not_judged_and_the_other_is(pairs) -> None:
    world, reducer = pairs
    feed(reducer, world.layout(1, (bucket(0, 0, 1_000), bucket(0, 1, 2_000))), *world.steps(100))
    found = show(reducer, world)
    assert np.isnan(found.ranks.wait_ms[:2]).all()
    assert np.isnan(found.ranks.lateness_ms[:2]).all()
    assert found.ranks.exposed_wait_ms[2:].tolist() == pytest.approx([20, 0])
    assert found.straggler is not None
    assert found.straggler.rank == 3
    assert {b.group for b in found.buckets} == {"2"}


def test_the_costliest_of_the_groups_is_named(pairs) -> None:
    world, reducer = pairs
    world.delays[0, "forward"] = 60_000
    feed(reducer, *world.steps(100))
    found = show(reducer, world)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (0, "forward")
    assert found.ranks.lateness_ms.tolist() == pytest.approx([60, -60, -20, 20])


def test_a_rank_of_several_groups_waits_once_where_it_waits_for_both(make_world) -> None:
    """Bucket 0 belongs to a model of all ranks, bucket 1 to one of each pair. Rank 0 is late for both."""
    world = make_world(4, groups=(EVERYBODY, PAIRS), delays={(0, "data"): 20_000})
    told = [(rank, "0", (), 0) for rank in range(4)]
    told += [(rank, str(1 + rank // 2), PAIRS[rank // 2], 1) for rank in range(4)]
    reducer = start(world, told)
    for rank in range(4):
        feed(reducer, world.layout(rank, (bucket(0, 0), bucket(1, 0))))
    feed(reducer, *world.steps(100))
    found = show(reducer, world)
    assert [(b.group, b.model, b.index) for b in found.buckets] == [("0", 0, 0), ("1", 1, 0), ("2", 1, 0)]
    # Rank 1 lacks rank 0 from 3 to 23 in the one and from 6 to 26 ms in the other.
    assert found.ranks.wait_ms[1] == pytest.approx(23.0)
    assert found.ranks.exposed_wait_ms[1] == pytest.approx(20.0)
    # Ranks 2 and 3 wait for it in the first only; their own model is done meanwhile. Once the step is over
    # they begin the next one sooner, so they wait longer there.
    assert found.ranks.wait_ms[2] == found.ranks.wait_ms[3] > 0
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (0, "data")
    assert found.group.busbw_gbps is not None


def test_models_are_paired_whatever_number_the_ranks_give_them(make_world) -> None:
    """Rank 0 and 1 hold another model besides, so that they number the common one differently."""
    world = make_world(4, groups=(EVERYBODY, EVERYBODY), delays={(2, "backward"): 20_000})
    told = [(rank, "0", (), 1 if rank < 2 else 0) for rank in range(4)]
    told += [(rank, "1", (0, 1), 0) for rank in range(2)]
    reducer = start(world, told)
    for rank in range(4):
        model = 1 if rank < 2 else 0
        feed(reducer, world.layout(rank, (bucket(model, 0), bucket(model, 1))))
    feed(reducer, *world.steps(100))
    found = show(reducer, world)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (2, "backward")
    assert len(found.buckets) == 2


def test_one_group_told_by_all_is_the_same_as_none_told(make_world) -> None:
    shown = []
    for told in ([], [(rank, "0", (), 0) for rank in range(4)], [(1, "0", (0, 1, 2, 3), 0)]):
        world = make_world(4, delays={(1, "data"): 20_000})
        reducer = start(world, told)
        feed(reducer, *world.steps(100))
        found = snapshot(show(reducer, world))
        for one in found["buckets"]:
            one["group"] = ""
        shown.append(found)
    np.testing.assert_equal(shown[1], shown[0])
    np.testing.assert_equal(shown[2], shown[0])


def test_a_new_incarnation_forgets_the_groups_of_the_old_one(pairs, make_world) -> None:
    world, reducer = pairs
    feed(reducer, *world.steps(60))
    again = make_world(4, session_base=200, incarnation=1, now_us=world.now_us, delays={(1, "data"): 20_000})
    feed(reducer, *again.introduce(), *again.steps(100))
    found = show(reducer, again)
    assert {b.group for b in found.buckets} == {""}
    assert found.ranks.exposed_wait_ms.tolist() == pytest.approx([20, 0, 20, 20])


def test_groups_that_name_ranks_outside_the_world_are_not_judged(make_world) -> None:
    world = make_world(2)
    reducer = start(world, [(0, "x", (0, 9), 0), (1, "y", (0,), 0)])
    feed(reducer, *world.steps(60))
    found = show(reducer, world)
    assert np.isnan(found.ranks.wait_ms).all()
    assert found.straggler is None
    assert found.group.step == 59
