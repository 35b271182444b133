"""The own time of every step: places, excess, exposed communication, from known worlds and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.windows import OWN_STEPS, PLACES, StepWindow

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


def window_of(world, count: int = 20, memberships=()) -> StepWindow:
    """The window after `count` steps of the world."""
    reducer = Reducer()
    for received in (world.run(), *world.introduce(), *memberships, *world.steps(count)):
        reducer.feed(received)
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


def test_a_rank_of_two_groups_belongs_to_the_larger(make_world) -> None:
    world = make_world(4, delays={(3, "forward"): 6_000}, own=True)
    members = [world.membership(rank, "0", 0, 1, 2, 3) for rank in range(4)]
    members += [world.membership(rank, "1", 2, 3, model=1) for rank in (2, 3)]
    slots = (steps := window_of(world, memberships=members)).recent(10)
    assert medians(steps.excess(slots)) == pytest.approx([0, 0, 0, 6])


def test_rows_of_the_first_version_take_no_memory_and_have_no_own_time(make_world) -> None:
    steps = window_of(make_world(2))
    assert not steps.has_own
    assert np.isnan(steps.own(steps.recent(10))).all()
    assert np.isnan(steps.place("data", steps.recent(10))).all()
    assert not steps._own._data.size + steps._parts._data.size


def test_steps_before_the_first_own_time_are_unknown(make_world) -> None:
    world = make_world(2)
    reducer = Reducer()
    for received in (world.run(), *world.introduce(), *world.steps(7)):
        reducer.feed(received)
    reducer.state.settle()
    world.own = True
    for received in world.steps(5):
        reducer.feed(received)
    reducer.state.settle()
    world.own = False
    for received in world.steps(3):
        reducer.feed(received)
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
    assert np.isnan(steps.own(slots - 1)[:, 0]).all()


@settings(deadline=None)
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
