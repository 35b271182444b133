"""Steps of all ranks that take longer from a step on are told with that step; one rank's are not."""

from __future__ import annotations

import pytest

from ddptop.analysis.reducer import Reducer
from tests.analysis.conftest import START_NS

SLOW_MS = 8


def log_of(make_world, slow_ranks, *, steps: int = 900, begin: int = 500, end: int = 10_000) -> list[str]:
    """What the log says where these ranks' backward takes longer in some steps."""
    world, reducer = make_world(3, own=True), Reducer()
    for received in (world.run(), *world.introduce()):
        reducer.feed(received)
    for step in range(steps):
        slow = begin <= step < end
        world.delays = {(rank, "backward"): 1000 * SLOW_MS for rank in slow_ranks} if slow else {}
        for received in world.steps(1):
            reducer.feed(received)
    frame = reducer.frame(START_NS + world.now_us * 1000)
    return [event.message for event in frame.events if event.kind in ("slower", "faster")]


def test_all_ranks_slower_together_are_a_regression_with_its_step(make_world) -> None:
    (text,) = log_of(make_world, (0, 1, 2))
    words = text.split()
    assert text.startswith("all ranks are slower since step ")
    assert abs(int(words[6].rstrip(":")) - 500) <= 16
    assert float(words[7]) == pytest.approx(float(words[11]) + SLOW_MS, abs=0.5)


def test_that_they_are_as_fast_as_before_again_is_told_too(make_world) -> None:
    slower, faster = log_of(make_world, (0, 1, 2), steps=1200, end=850)
    assert slower.startswith("all ranks are slower since step ")
    assert faster.startswith("all ranks are faster since step ")


def test_one_slow_rank_and_a_short_episode_are_none(make_world) -> None:
    assert log_of(make_world, (1,)) == []
    assert log_of(make_world, (0, 1, 2), end=580) == []
    assert log_of(make_world, ()) == []
