"""The own time of every step: places, excess, exposed communication, from known worlds and by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import evaluate, formulas
from ddptop.analysis.steps.own_times import PART_COLUMNS, PLACES
from ddptop.analysis.steps.windows import BATCH, OWN_STEPS, StepWindow
from ddptop.analysis.to_frame import tables
from ddptop.frames.detail import HeatRequest
from ddptop.frames.history import COLUMNS
from ddptop.frames.snapshot import snapshot
from ddptop.frames.statistics import mean
from ddptop.recording.reader import Recording
from ddptop.render.phases import Breakdown
from ddptop.render.plain import draw_frame
from tests.made_up_run import START_NS, World, feed_runs, feed_together, write

PAIRS = ((0, 1), (2, 3))
UNDELAYED = {
    "data": 1.0,
    "forward": 4.0,
    "backward": 6.0,
    "optimizer": 0.8,
    "before_forward": 0.2,
    "before_backward": 0.0,
    "before_optimizer": 0.0,
    "after_optimizer": 0.0,
}
"""Milliseconds of a rank of the toy world in each place; backward until its last bucket is ready."""


def fed(world, count: int = 60, memberships=()) -> Reducer:
    """A reducer that has taken `count` steps of the world."""
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *memberships, *world.steps(count)])
    return reducer


def window_of(world, count: int = 20, memberships=()) -> StepWindow:
    """The window after `count` steps of the world."""
    reducer = fed(world, count, memberships)
    reducer.state.settle()
    return reducer.state.figures.steps


def medians(values) -> list[float]:
    return np.median(values, axis=-1).tolist()


@pytest.mark.parametrize("place", PLACES)
def test_a_delay_is_own_time_in_its_place_and_excess_of_its_rank_alone(make_world, place: str) -> None:
    delayed = "other" if place == "before_forward" else place  # the toy's word for it
    steps = window_of(make_world(3, delays={(1, delayed): 3_000}, own=True))
    slots = steps.recent(10)
    for name, values in steps.places(slots).items():
        usual = UNDELAYED[name]
        assert medians(values) == pytest.approx([usual, usual + 3 * (name == place), usual], abs=1e-5)
    assert medians(steps.own(slots)) == pytest.approx([12, 15, 12], abs=1e-5)
    assert medians(steps.excess(slots)) == pytest.approx([-1.5, 3, -1.5], abs=1e-5)
    assert steps.has_own


def test_places_add_up_to_own_time_and_with_waiting_to_the_step(make_world) -> None:
    world = make_world(2, delays={(0, "data"): 5_000, (1, "other"): 700}, own=True)
    world.waited = {(0, "data"): 4_000, (1, "other"): 600}
    steps = window_of(world)
    slots = steps.slots()
    own = steps.own(slots)
    assert sum(steps.places(slots).values()) == pytest.approx(own, abs=1e-5)
    wall = steps.ranks.of("step", slots)
    assert own + steps.exposed(slots) + steps.waited(slots) == pytest.approx(wall, abs=1e-5)
    assert medians(steps.waited(slots)) == pytest.approx([4.0, 0.6])
    assert medians(steps.place("data", slots)) == pytest.approx([2.0, 1.0])
    assert medians(steps.place("before_forward", slots)) == pytest.approx([0.2, 0.3])


def test_wait_transfer_and_the_scripts_own_collectives_are_told_apart(make_world) -> None:
    """One meaning of wait in every outlet: for others, in DDP's communication."""
    world = make_world(2, own=True)
    world.delays = {(0, "forward"): 9_000, (1, "forward"): 8_000, (1, "other"): 600}
    world.waited = {(0, "forward"): 9_000, (1, "forward"): 8_000, (1, "other"): 600}
    world.buffers = {0: 7_000, 1: 6_000}
    reducer = fed(world)
    frame = reducer.frame(0)
    ranks, parts = frame.ranks, Breakdown(frame.ranks)
    assert ranks.buffers_ms.tolist() == pytest.approx([7, 6])
    assert ranks.buffers_wait_ms.tolist() == pytest.approx([1, 0]), "the fastest rank waits for nobody"
    assert ranks.waited_ms.tolist() == pytest.approx([2, 2.6]), "in the script's own"
    assert parts.column("sync").tolist() == pytest.approx([2, 2.6], abs=1e-4)
    exposed = ranks.exposed_comm_ms - ranks.exposed_wait_ms
    assert parts.column("transfer").tolist() == pytest.approx((exposed + 6).tolist(), abs=1e-4)
    waits = ranks.exposed_wait_ms + ranks.buffers_wait_ms
    assert parts.column("wait").tolist() == pytest.approx(waits.tolist(), abs=1e-4)
    assert parts.column("fwd").tolist() == pytest.approx([4, 4], abs=1e-4)
    assert parts.ms.sum(axis=0) == pytest.approx(ranks.step_ms, abs=1e-3)
    text = draw_frame(frame, 100)
    assert "6.0 of it broadcasts of buffers" in text and "in the script's own collectives 2.3" in text
    assert f"wait {parts.mean('wait'):.1f}" in text and "≡ sync" in text and "+ other + sync =" in text
    assert snapshot(frame)["ranks"][1]["buffers_ms"] == 6.0


def test_the_last_arrivers_exposed_communication_is_the_transfer(make_world) -> None:
    steps = window_of(make_world(4, delays={(2, "backward"): 20_000}, own=True))
    slots = steps.recent(10)
    assert medians(steps.exposed(slots)) == pytest.approx([22, 22, 2, 22])
    assert medians(steps.exposed_wait(slots)) == pytest.approx([20, 20, 0, 20])
    assert medians(steps.excess(slots)) == pytest.approx([0, 0, 20, 0])


def test_without_the_last_gradient_a_rank_is_compared_without_backward(make_world) -> None:
    world = make_world(3, delays={(1, "data"): 3_000, (2, "backward"): 50_000}, own=True)
    world.no_last_gradient = {1, 2}
    steps = window_of(world)
    slots = steps.recent(10)
    assert np.isnan(steps.own(slots)[1:]).all()
    assert np.isnan(steps.place("backward", slots)[1:]).all()
    assert np.isnan(steps.exposed_wait(slots)).all()  # rank 2 was the last, but this is not known
    assert medians(steps.excess(slots)) == pytest.approx([-1.5, 3, -1.5])
    assert medians(steps.place("data", slots)) == pytest.approx([1, 4, 1])


def test_a_joined_rank_is_never_compared(make_world) -> None:
    steps = window_of(make_world(4, delays={(1, "data"): 3_000}, own=True, joined={3}))
    slots = steps.recent(10)
    assert np.isnan(steps.own(slots)[3]).all()
    assert np.isnan(steps.excess(slots)[3]).all()
    assert medians(steps.excess(slots)[:3]) == pytest.approx([-1.5, 3, -1.5])
    assert medians(steps.exposed_wait(slots)[:3]) == pytest.approx([3, 0, 3])


def test_ranks_are_compared_within_their_process_group(make_world) -> None:
    world = make_world(4, groups=(PAIRS, PAIRS), delays={(3, "forward"): 6_000}, own=True)
    members = [world.membership(rank, str(1 + rank // 2), *PAIRS[rank // 2]) for rank in range(4)]
    steps = window_of(world, memberships=members)
    slots = steps.recent(10)
    assert medians(steps.excess(slots)) == pytest.approx([0, 0, -6, 6])
    assert medians(steps.exposed_wait(slots)) == pytest.approx([0, 0, 6, 0])


@pytest.mark.parametrize("of_others", [(0,), (-3.5, 7)])
def test_ranks_without_a_group_are_compared_with_all(make_world, of_others: tuple[float, ...]) -> None:
    """Three ranks have told their group, of which rank 1 is slow; of the others rank 4 is."""
    world = make_world(3 + len(of_others), delays={(1, "forward"): 20_000, (4, "data"): 7_000}, own=True)
    members = [world.membership(rank, "1", 0, 1, 2) for rank in range(3)]
    reducer = fed(world, 200, members)
    found = reducer.frame(0)
    steps = reducer.state.figures.steps
    assert medians(steps.excess(steps.recent(10))) == pytest.approx([-10, 20, -10, *of_others])
    assert found.ranks.excess_ms.tolist() == pytest.approx([-10, 20, -10, *of_others])
    assert found.straggler is not None and found.straggler.rank == 1
    assert found.straggler.lateness_ms == pytest.approx(20)


def test_a_rank_of_two_groups_belongs_to_the_larger(make_world) -> None:
    world = make_world(4, delays={(3, "forward"): 6_000}, own=True)
    members = [world.membership(rank, "0", 0, 1, 2, 3) for rank in range(4)]
    members += [world.membership(rank, "1", 2, 3, model=1) for rank in (2, 3)]
    slots = (steps := window_of(world, memberships=members)).recent(10)
    assert medians(steps.excess(slots)) == pytest.approx([0, 0, 0, 6])


def test_rows_of_the_first_version_take_no_memory_and_have_no_own_time(make_world) -> None:
    steps = window_of(make_world(64))  # of fewer ranks all columns are one small array
    assert not steps.has_own
    assert np.isnan(steps.own(steps.recent(10))).all()
    assert np.isnan(steps.place("data", steps.recent(10))).all()
    assert {column.size for column in steps.own_times.columns + steps.own_parts.columns} == {1}


def test_the_newest_step_is_kept_without_those_that_were_evaluated_with_it(make_world) -> None:
    reducer = fed(make_world(3, own=True, detail_every=8), count=20)
    reducer.state.settle()
    newest, _ = reducer.state.figures.kept.newest
    assert newest.step.step == 19
    detailed = len(reducer.state.figures.kept.numbers)
    assert 0 < detailed < 10
    assert newest.step.block.loss.shape == (1 + detailed, 3)


def test_pauses_of_many_ranks_are_averaged_in_little_memory() -> None:
    ranks, steps = 2500, 100
    window, rng = StepWindow(ranks, steps), np.random.default_rng(0)
    parts = np.zeros((len(PART_COLUMNS), steps, ranks))
    parts[PART_COLUMNS.index("gc")] = rng.random((steps, ranks)) * (rng.random((steps, ranks)) < 0.1)
    parts[PART_COLUMNS.index("gc"), :, 2000] = np.nan
    zeros = np.zeros((6, steps, ranks))
    window.add(np.arange(100.0), np.arange(100.0), zeros, zeros[0], (np.zeros(100),) * 3)
    window.add_own(zeros[:3], parts)
    phases = dict.fromkeys(("data", "forward", "optimizer"), np.zeros(ranks))
    tracemalloc.start()
    try:
        found = window.own_medians(window.slots(), phases)["gc"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pauses = parts[PART_COLUMNS.index("gc")].astype(np.float32).T.astype(np.float64)
    np.testing.assert_array_equal(found, mean(pauses))
    column = 4 * steps * ranks
    assert peak < 3.5 * column  # with the copy of each that is sorted; 6.3 before


@pytest.mark.parametrize("waited", [False, True])
def test_a_frame_has_the_own_time_of_each_phase_from_every_step(make_world, waited: bool) -> None:
    world = make_world(2, delays={(1, "data"): 5_000}, own=True)
    world.waited = {(0, "data"): 400, (1, "optimizer"): 300} if waited else {}
    reducer = fed(world)
    frame = reducer.frame(10**10)
    steps = reducer.state.figures.steps
    for name in ("data", "forward", "backward", "optimizer"):
        expected = medians(steps.place(name, steps.slots()))
        assert getattr(frame.ranks, f"own_{name}_ms").tolist() == pytest.approx(expected, abs=1e-5)
    assert (frame.ranks.own_data_ms < frame.ranks.data_ms).tolist() == [waited, False]


def test_steps_before_the_first_own_time_are_unknown(make_world) -> None:
    world = make_world(2)
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(7)])
    reducer.state.settle()
    world.own = True
    feed_together(reducer, world.steps(5))
    reducer.state.settle()
    world.own = False
    feed_together(reducer, world.steps(3))
    reducer.state.settle()
    steps = reducer.state.figures.steps
    known = ~np.isnan(steps.own(steps.recent(100))[0])
    assert known.tolist() == [False] * 7 + [True] * 5 + [False] * 3


def test_more_steps_than_the_window_are_kept_and_no_more(make_world) -> None:
    steps = window_of(make_world(2, own=True), 700)
    assert len(steps.slots()) == 100
    slots = steps.recent(1000)
    assert len(slots) == OWN_STEPS
    assert steps.group.of("number", slots).tolist() == list(range(700 - OWN_STEPS, 700))
    assert not np.isnan(steps.excess(slots)).any()
    assert np.isnan(steps.own(slots - 1 - BATCH)[:, 0]).all()


@given(st.lists(st.one_of(st.floats(0, 100), st.just(float("nan"))), min_size=1, max_size=9))
def test_excess_is_the_difference_to_the_median_of_the_others(own: list[float]) -> None:
    values = np.array(own)
    found = formulas.excess(values, values)
    for rank, value in enumerate(own):
        others = np.delete(values, rank)
        others = others[~np.isnan(others)]
        expected = value - np.median(others) if len(others) else np.nan
        assert found[rank] == pytest.approx(expected, nan_ok=True)


def test_transfer_is_unknown_where_the_last_rank_may_be() -> None:
    exposed = np.array([[3.0, 2.0, 5.0], [3.0, np.nan, 5.0], [3.0, np.nan, 5.0]])
    counts = np.array([[True, True, True], [True, True, True], [True, False, True]])
    assert formulas.transfer_of_step(exposed, counts) == pytest.approx([2.0, np.nan, 3.0], nan_ok=True)


def test_a_frame_has_the_medians_of_every_step_without_any_bucket_detail(make_world) -> None:
    world = make_world(3, delays={(1, "data"): 3_000, (2, "before_backward"): 1_000}, own=True)
    world.detail_every = 1_000  # the first step only
    reducer = fed(world)
    ranks, group = reducer.frame(0).ranks, reducer.frame(0).group
    assert ranks.own_ms.tolist() == pytest.approx([12, 15, 13])
    assert ranks.excess_ms.tolist() == pytest.approx([-2, 2.5, -0.5])
    assert ranks.own_backward_ms.tolist() == pytest.approx([6, 6, 6])
    assert ranks.before_forward_ms.tolist() == pytest.approx([0.2, 0.2, 0.2])
    assert ranks.before_backward_ms.tolist() == pytest.approx([0, 0, 1])
    assert ranks.before_optimizer_ms.tolist() == ranks.after_optimizer_ms.tolist() == pytest.approx([0] * 3)
    assert ranks.waited_ms.tolist() == [0, 0, 0]
    assert ranks.exposed_comm_ms.tolist() == pytest.approx([5, 2, 4])
    assert ranks.exposed_wait_ms.tolist() == pytest.approx([3, 0, 2])
    assert (group.exposed_transfer_ms, group.exposed_wait_ms) == pytest.approx((2, 5 / 3))
    assert group.exposed_comm_ms == pytest.approx(11 / 3)
    assert group.exposed_comm_pct == pytest.approx(100 * (11 / 3) / 17)
    rank = snapshot(reducer.frame(0))["ranks"][1]  # type: ignore[index]
    assert (rank["own_ms"], rank["excess_ms"], rank["exposed_wait_ms"]) == (15.0, 2.5, 0.0)


def test_a_frame_of_the_first_version_has_none_of_them(make_world) -> None:
    rank = snapshot(fed(make_world(2)).frame(0))["ranks"][0]  # type: ignore[index]
    assert {
        rank[f"{name}_ms"] for name in ("own", "excess", "own_backward", "waited", "after_optimizer")
    } == {None}
    assert (rank["exposed_comm_ms"], rank["exposed_wait_ms"]) == (2.0, 0.0)


def test_where_last_gradients_are_unknown_bucket_detail_gives_exposed_communication(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 3_000}, own=True, no_last_gradient={0})
    frame = fed(world).frame(0, focus=1)
    assert frame.ranks.exposed_comm_ms.tolist() == pytest.approx([5, 2])
    assert frame.ranks.exposed_wait_ms.tolist() == pytest.approx([3, 0])
    assert frame.ranks.own_ms.tolist() == pytest.approx([np.nan, 15], nan_ok=True)
    assert frame.ranks.excess_ms.tolist() == pytest.approx([-3, 3])
    assert frame.group.exposed_wait_ms == pytest.approx(1.5)
    assert np.median(frame.history.wait_ms) == pytest.approx(1.5)
    assert frame.focus is not None and np.median(frame.focus.transfer_ms) == pytest.approx(2)


def test_the_parts_of_every_point_of_the_history_add_up_to_its_step(make_world) -> None:
    world = make_world(3, delays={(1, "data"): 3_000}, own=True, detail_every=8)
    history = fed(world).frame(0).history
    parts = ("data", "forward", "own_backward", "wait", "transfer", "optimizer", "other")
    columns = [getattr(history, f"{name}_ms") for name in parts]
    assert sum(columns)[1:] == pytest.approx(history.step_ms[1:])
    assert [column[-1] for column in columns] == pytest.approx([2, 4, 6, 2, 2, 0.8, 0.2])


def test_in_the_first_version_they_do_in_detailed_steps(make_world) -> None:
    history = fed(make_world(3, delays={(1, "data"): 3_000}, detail_every=8)).frame(0).history
    known = ~np.isnan(history.own_backward_ms)
    assert known.tolist() == (history.step % 8 == 0).tolist() == (~np.isnan(history.wait_ms)).tolist()
    assert history.own_backward_ms[known][1:] == pytest.approx(6.0)
    assert not np.isnan(history.data_ms).any()


def test_the_single_steps_of_a_rank_have_wait_own_time_and_excess(make_world) -> None:
    world = make_world(2, delays={(1, "forward"): 3_000}, own=True, detail_every=1_000)
    focus = fed(world).frame(0, focus=0).focus
    assert focus is not None
    assert focus.own_ms[1:] == pytest.approx(12.0)
    assert focus.excess_ms[1:] == pytest.approx(-3.0)
    assert (focus.wait_ms[1:], focus.transfer_ms[1:]) == (pytest.approx(3.0), pytest.approx(2.0))
    minutes = fed(world).frame(0, focus=1).focus.minutes  # type: ignore[union-attr]
    assert minutes is not None and len(minutes.time_s) >= 2
    assert minutes.mean_ms[1:] == pytest.approx(3.0) and minutes.largest_ms == pytest.approx(3.0)


def test_the_timeline_of_a_step_without_detail_ends_backward_with_wait_and_transfer(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 3_000}, own=True, step=1, detail_every=1_000)
    timeline = fed(world).frame(0, want="timeline").timeline
    assert timeline is not None and not timeline.detailed
    spans = [[(span.name, span.end_ms - span.begin_ms) for span in lane.spans] for lane in timeline.lanes]
    assert dict(spans[0])["waiting"] == pytest.approx(3.0)
    assert dict(spans[0])["moving"] == dict(spans[1])["moving"] == pytest.approx(2.0)
    assert "waiting" not in dict(spans[1]) and dict(spans[1])["backward"] == pytest.approx(6.0)
    assert timeline.exposed_ms == pytest.approx(3.5)


def test_heat_maps_of_wait_and_excess_are_of_every_step(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 3_000}, own=True, detail_every=1_000)
    reducer = fed(world)
    for figure, expected in (("lost", (3, 0)), ("excess", (-3, 3)), ("own", (12, 15)), ("transfer", (2, 2))):
        heat = reducer.frame(0, want=f"heat {figure} 2 20").heat
        assert heat is not None and heat.steps == tuple(range(40, 60))
        assert heat.value.reshape(2, -1)[:, -1].tolist() == pytest.approx(expected)


def test_a_heat_map_of_what_no_step_of_a_recording_knows_is_blank(make_world, monkeypatch) -> None:
    monkeypatch.setitem(tables.PART_OF_METRIC, "new", "gc")
    reducer = fed(make_world(2, detail_every=2))
    reducer.frame(0)
    heat = tables.heat(reducer.state, HeatRequest("new", 2, 20))
    assert heat is not None and np.isnan(heat.value).all()


@pytest.mark.parametrize("no_detail", [False, True])
def test_figures_do_not_depend_on_how_steps_were_batched(make_world, no_detail: bool) -> None:
    groups = (PAIRS, PAIRS)
    world = make_world(4, groups=groups, delays={(3, "forward"): 6_000}, own=True)
    world.detail_every = 1_000 if no_detail else 3
    members = [world.membership(rank, str(1 + rank // 2), *PAIRS[rank // 2]) for rank in range(4)]
    received = [world.run(), *world.introduce(), *members, *world.steps(150)]
    at_once, one_by_one = Reducer(), Reducer()
    for message in received:
        at_once.feed(message)
        one_by_one.feed(message)
        one_by_one.state.settle()
    assert snapshot(at_once.frame(0)) == snapshot(one_by_one.frame(0))
    histories = [reducer.frame(0).history for reducer in (at_once, one_by_one)]
    for name in COLUMNS:
        np.testing.assert_array_equal(*[getattr(history, name) for history in histories])


@pytest.fixture(scope="module")
def slow_for_a_time(tmp_path_factory):
    """A recording of three ranks: one fetches slowly for 200 steps, later another is slow now and then."""
    world = World(3, own=True, detail_every=4)

    def before_step() -> None:
        delays = {0: 8_000 if 80 <= world.step < 280 else 0, 1: 50_000 * (world.step >= 400)}
        world.delays = {(0, "data"): delays[0], (1, "forward"): delays[1] if world.step % 16 == 0 else 0}

    path = tmp_path_factory.mktemp("blocks") / "slow.ddptop"
    write(path, [world.run(), *world.introduce(), *world.steps(600, batch=50, before_step=before_step)])
    return path


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 37, 500])
def test_what_a_recording_says_does_not_depend_on_the_size_of_a_block(
    slow_for_a_time, monkeypatch, size: int
) -> None:
    def read():
        """The last frame of all, and the changes of the flag."""
        reducer = Reducer()
        with Recording.open(slow_for_a_time) as recording:
            feed_runs(reducer, recording)
        return reducer.frame(START_NS), [*reducer.state.figures.flags.changes]

    frame, changes = read()
    monkeypatch.setattr(evaluate, "BATCH", size)
    other_frame, other_changes = read()
    patterns = [verdict.flag and verdict.flag.pattern for verdict in changes]
    assert patterns == [None, "persistent", None, "intermittent"]
    assert repr(changes) == repr(other_changes)
    assert snapshot(frame) == snapshot(other_frame)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(frame.history, name), getattr(other_frame.history, name))
