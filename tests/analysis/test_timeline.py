"""Steps rank by rank: where everything lies in time, who came last, what is said where nobody can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import kept
from ddptop.analysis.to_frame.timeline import MOST_LANES
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.detail import Lane, Timeline
from ddptop.protocol.messages import Activity
from tests.made_up_run import World, feed_together


def fed(world: World, steps: int, *, clocks_ms: float | None = None) -> Reducer:
    """A reducer that has seen a little run."""
    reducer = Reducer()
    reducer.feed(world.run())
    feed_together(reducer, world.introduce())
    if clocks_ms is not None:
        for host in world.hosts:
            reducer.feed(world.clock(host, clocks_ms))
    feed_together(reducer, world.steps(steps))
    return reducer


def shown(reducer: Reducer, want: str = "timeline") -> Timeline:
    timeline = reducer.frame(0, want=want).timeline
    assert timeline is not None
    return timeline


def parts(lane: Lane) -> list[tuple[str, float, float]]:
    return [(span.name, round(span.begin_ms, 3), round(span.end_ms, 3)) for span in lane.spans]


def test_a_late_rank_and_those_that_wait_for_it() -> None:
    found = shown(fed(World(4, delays={(1, "data"): 20_000}), 10))
    assert (found.step, found.detailed, found.last, found.skew_ms) == (9, True, 1, 20.0)
    assert (found.step_ms, found.span_ms) == (34.0, 34.0)
    assert parts(found.lanes[0]) == [
        ("data", 0.0, 1.0),
        ("other", 1.0, 1.2),
        ("forward", 1.2, 5.2),
        ("backward", 5.2, 11.2),
        ("waiting", 11.2, 31.2),
        ("moving", 31.2, 33.2),
        ("optimizer", 33.2, 34.0),
    ]
    assert parts(found.lanes[1])[0] == ("data", 0.0, 21.0)
    assert "waiting" not in [name for name, *_ in parts(found.lanes[1])]
    waited = found.lanes[0]
    np.testing.assert_allclose(waited.ready_ms, [8.2, 11.2], atol=1e-3)
    np.testing.assert_allclose(waited.arrival_ms, [28.2, 31.2], atol=1e-3)
    np.testing.assert_allclose(waited.end_ms, [29.2, 33.2], atol=1e-3)
    assert [lane.last.tolist() for lane in found.lanes] == [[0, 0], [1, 1], [0, 0], [0, 0]]
    assert found.exposed_ms == pytest.approx((3 * 22 + 2) / 4)
    assert [reduce.bytes for reduce in found.reduces] == [8_000_000, 8_000_000]


def test_pieces_of_a_lane_have_neither_holes_nor_overlaps() -> None:
    for delay in ("data", "other", "forward", "backward", "late_backward", "optimizer"):
        lanes = shown(fed(World(3, delays={(2, delay): 7_000}), 3)).lanes
        assert len(lanes) == 3
        for lane in lanes:
            ends = [span.end_ms for span in lane.spans]
            begins = [span.begin_ms for span in lane.spans]
            assert len(begins) > 1
            assert begins[1:] == pytest.approx(ends[:-1])
            assert all(end > begin for begin, end in zip(begins, ends, strict=True))


def test_evaluations_and_saves_are_marked_outside_the_phases() -> None:
    world = World(2, delays={(1, "data"): 20_000})
    reducer, begin_us = fed(world, 9), world.begin_us[1]
    for since_ms, until_ms, activity in ((2, 4, Activity.EVALUATE), (4, 10, Activity.SAVE)):
        since_ns = world.host_ns(world.host(1), begin_us + 1000 * since_ms)
        changes = {"step": 9, "phase": 0, "activity": int(activity), "since_ns": since_ns}
        reducer.feed(world.progress(1, begin_us + 1000 * until_ms, **changes))
    feed_together(reducer, world.steps(1))
    found = shown(reducer)
    assert parts(found.lanes[1])[:4] == [
        ("data", 0.0, 2.0),
        ("evaluation", 2.0, 4.0),
        ("saving", 4.0, 10.0),
        ("data", 10.0, 21.0),
    ]
    assert {name for name, *_ in parts(found.lanes[0])}.isdisjoint(("evaluation", "saving"))
    assert "saving" not in [name for name, *_ in parts(shown(reducer, "timeline 8").lanes[1])]
    feed_together(reducer, world.steps(kept.KEPT_STEPS + 1))
    newest = shown(reducer)
    assert newest.kept[:2] == (9, 11), "it is kept beyond the others"
    assert "saving" in [name for name, *_ in parts(shown(reducer, "timeline 9").lanes[1])]


def test_a_step_can_be_picked_while_it_is_kept() -> None:
    reducer = fed(World(2, detail_every=4), 400)
    newest = shown(reducer)
    assert newest.step == 396 and len(newest.kept) == kept.KEPT_STEPS and not newest.picked
    picked = shown(reducer, "timeline 344")
    assert picked.step == 344 and picked.picked
    gone = shown(reducer, "timeline 4")
    assert gone.step == 396 and not gone.picked


def test_a_step_whose_buckets_were_not_timed_has_phases_only() -> None:
    reducer = fed(World(2, detail_every=1_000, step=1), 5)
    found = shown(reducer)
    assert found.step == 5 and not found.detailed and found.last is None and found.exposed_ms is None
    assert [len(lane.reduces) for lane in found.lanes] == [0, 0]
    assert parts(found.lanes[0])[0][0] == "data"
    assert found.kept == ()


def test_hosts_of_known_offsets_lie_on_one_axis() -> None:
    world = World(4, hosts=("a", "b"), delays={(3, "data"): 9_000}, offset_ns={"b": 5_000_000_000})
    found = shown(fed(world, 40, clocks_ms=0.1))
    assert not found.clock_free and found.last == 3 and found.bound_ms == pytest.approx(0.3)
    assert max(lane.spans[0].begin_ms for lane in found.lanes) < 0.01


def test_where_clocks_cannot_tell_every_lane_counts_from_its_own_begin() -> None:
    world = World(4, hosts=("a", "b"), delays={(3, "data"): 9_000}, offset_ns={"b": 5_000_000_000})
    found = shown(fed(world, 40))
    assert found.clock_free and found.last is None and found.bound_ms is None
    assert [lane.spans[0].begin_ms for lane in found.lanes] == [0, 0, 0, 0]
    assert all(np.isnan(lane.last).all() for lane in found.lanes)
    waits = [float((lane.arrival_ms - lane.start_ms).max()) for lane in found.lanes]
    assert waits[3] == pytest.approx(0.0, abs=1e-3) and waits[0] == pytest.approx(9.0, abs=1e-3)


def test_each_process_group_has_its_own_last_arriver() -> None:
    everybody = (0, 1, 2, 3)
    world = World(4, delays={(2, "late_backward"): 6_000}, groups=((everybody,), ((0, 1), (2, 3))))
    reducer = Reducer()
    reducer.feed(world.run())
    for rank in everybody:
        reducer.feed(world.hello(rank))
        second = replace_model(world)
        reducer.feed(world.layout(rank, second))
        reducer.feed(world.membership(rank, "0", *everybody))
        own = ("low", 0, 1) if rank < 2 else ("high", 2, 3)
        reducer.feed(world.membership(rank, *own, model=1))
    feed_together(reducer, world.steps(5))
    found = shown(reducer)
    assert sorted(reduce.group for reduce in found.reduces) == ["0", "high", "low"]
    assert [len(lane.reduces) for lane in found.lanes] == [2, 2, 2, 2]
    groups = [{found.reduces[int(place)].group for place in lane.reduces} for lane in found.lanes]
    assert groups == [{"0", "low"}, {"0", "low"}, {"0", "high"}, {"0", "high"}]
    assert found.last == 2


def replace_model(world: World):  # type: ignore[no-untyped-def]  # a tuple of two buckets
    from tests.made_up_run import bucket

    return (bucket(0), bucket(0)._replace(model=1))


def test_of_many_ranks_the_last_arriver_and_those_about_the_focus_have_lanes() -> None:
    reducer = fed(World(40, delays={(3, "data"): 20_000}), 3)
    found = shown(reducer, "timeline -1 30")
    ranks = [lane.rank for lane in found.lanes]
    assert len(ranks) == MOST_LANES and ranks[0] == 3 and 30 in ranks and ranks[1:] == sorted(ranks[1:])
    assert [lane.rank for lane in shown(reducer, "timeline -1 9999").lanes][-1] == 39


def test_large_steps_are_packed_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = shown(fed(World(4, delays={(1, "data"): 20_000}), 60), "timeline 50")
    monkeypatch.setattr(kept, "RAW_INTEGERS", 300)
    monkeypatch.setattr(kept, "PACKED_BYTES", 5_000)
    reducer = fed(World(4, delays={(1, "data"): 20_000}), 60)
    packed = shown(reducer, "timeline 50")
    assert packed.picked and 10 < len(packed.kept) < 40
    assert repr(replace(packed, kept=())) == repr(replace(plain, kept=()))


def test_a_frame_carries_it_over_the_link() -> None:
    frame = fed(World(4, delays={(1, "data"): 20_000}), 10).frame(0, want="timeline 5 2")
    assert repr(FrameDecoder().decode(encode_frame(frame)).timeline) == repr(frame.timeline)


def test_nobody_gets_what_nobody_asked_for() -> None:
    frame = fed(World(2), 3).frame(0)
    assert frame.timeline is None and frame.heat is None
    assert Reducer().frame(0, want="timeline").timeline is None
