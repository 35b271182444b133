"""Steps of all ranks that take longer from a step on are logged with that step; one rank's are not."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.analysis.event_log import EventLog
from ddptop.analysis.health.pace import Pace
from ddptop.analysis.reducer import Reducer
from tests.made_up_run import START_NS, feed_together

SLOW_MS = 8


def log_of(make_world, slow_ranks, *, steps: int = 2_300, begin: int = 1_500, end: int = 10_000) -> list[str]:
    """What the log says where these ranks' backward takes longer in some steps."""
    world, reducer = make_world(3, own=True), Reducer()
    messages = [world.run(), *world.introduce()]
    for step in range(steps):
        slow = begin <= step < end
        world.delays = {(rank, "backward"): 1000 * SLOW_MS for rank in slow_ranks} if slow else {}
        messages += world.steps(1)
    feed_together(reducer, messages)
    frame = reducer.frame(START_NS + world.now_us * 1000)
    return [event.message for event in frame.events if event.kind in ("slower", "faster")]


def test_all_ranks_slower_together_are_a_regression_with_its_step(make_world) -> None:
    (text,) = log_of(make_world, (0, 1, 2))
    words = text.split()
    assert text.startswith("all ranks are slower since step ")
    assert abs(int(words[6].rstrip(":").replace(",", "")) - 1_500) <= 2
    assert float(words[7]) == pytest.approx(float(words[11]) + SLOW_MS, abs=0.5)


def test_that_they_are_as_fast_as_before_again_is_logged_too(make_world) -> None:
    slower, faster = log_of(make_world, (0, 1, 2), steps=4_000, end=2_500)
    assert slower.startswith("all ranks are slower since step ")
    assert faster.startswith("all ranks are faster since step ")


@pytest.mark.slow
def test_one_slow_rank_and_a_short_episode_are_none(make_world) -> None:
    assert log_of(make_world, (1,)) == []
    assert log_of(make_world, (0, 1, 2), end=1_600) == []
    assert log_of(make_world, ()) == []


def test_seconds_that_come_again_and_again_leave_the_log_to_other_events() -> None:
    """5 ms a step, and one second in three 1.5 ms more."""
    log, pace, wall = EventLog(), Pace(), []
    while sum(wall) < 33_000:
        wall += [5.0] * 400 + [6.5] * 150
    ends_s = np.cumsum(wall) / 1000
    numbers, even = np.arange(len(wall), dtype=np.float64), np.ones(len(wall), bool)
    pace.take(log, numbers, np.array(wall), None, ends_s, even)
    assert log.all() == ()


def test_the_step_is_that_of_the_change_and_not_of_scatter_before_it() -> None:
    """Times outside waits for a CPU, a median a second, of a run beside other work in which all ranks slept
    24 ms longer in the end."""
    before = [18.1, 18.8, 18.0, 18.0, 17.7, 18.2, 15.5, 16.7, 14.2, 19.0, 21.3, 20.4]
    wall = np.concatenate([np.repeat([18.0, *before], 50), np.repeat([19.0, 43.0], [20, 400])])
    log, ends_s = EventLog(), np.cumsum(np.concatenate([np.repeat(18.0, 600), wall])) / 1000
    wall = np.concatenate([np.repeat(18.0, 600), wall])
    numbers, even = np.arange(len(wall), dtype=np.float64), np.ones(len(wall), bool)
    Pace().take(log, numbers, wall, None, ends_s, even)
    (event,) = log.all()
    assert (
        event.message
        == f"all ranks are slower since step {len(wall) - 400:,}: 43.0 ms a step, 18.0 ms before"
    )


def test_steps_that_scatter_by_more_than_the_change_are_a_busy_machine_and_no_regression() -> None:
    """As before: a second each, of a run in which nothing was done."""
    before = [15.1, 16.8, 14.4, 17.1, 15.3, 15.4, 16.0, 14.5, 14.2, 16.8, 17.2, 15.7, 16.8, 15.2, 16.8, 18.0]
    busy = [18.4, 17.5, 42.7, 30.5, 17.3, 30.7, 18.4, 34.2, 34.1, 26.5, 31.5, 23.8, 28.9, 34.5, 25.1, 50.1]
    rest = np.repeat([*before, *busy], 20)
    log, ends_s = EventLog(), np.arange(len(rest)) / 19
    Pace().take(log, np.arange(float(len(rest))), rest, None, ends_s, np.ones(len(rest), bool))
    assert log.all() == ()


@pytest.mark.parametrize(("low", "high", "steps"), [(100, 400, 1_000), (20, 60, 4_000)])
def test_steps_that_become_longer_bit_by_bit_are_slower(low: float, high: float, steps: int) -> None:
    log, pace = EventLog(), Pace()
    noise = np.random.default_rng(1).normal(1, 0.03, steps)
    wall = np.linspace(low, high, steps) * noise
    numbers, even = np.arange(steps, dtype=np.float64), np.ones(steps, bool)
    pace.take(log, numbers, wall, None, np.cumsum(wall) / 1000, even)
    texts = [event.message for event in log.all()]
    assert texts and all(text.startswith("all ranks become slower, since about step") for text in texts)


def test_steps_while_a_rank_was_flagged_are_left_out_of_any_batch() -> None:
    wall, even = np.full(4_000, 10.0), np.ones(4_000, bool)
    wall[2_000:3_000], even[2_010:3_010] = 20.0, False
    for batch in (1, 128, 4_000):
        log, pace = EventLog(), Pace()
        for first in range(0, 4_000, batch):
            at = np.arange(first, min(first + batch, 4_000))
            ends_s = np.cumsum(wall)[at] / 1000
            pace.take(log, at.astype(np.float64), wall[at], None, ends_s, even[at])
        assert log.all() == ()


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ((84.5, 39.2), ""),  # the machine became busier
        ((62.4, 25.5), ""),
        ((105.8, 43.3), "105.8 ms a step, 31.6 ms before"),  # it did, and all ranks sleep 24 ms longer
        ((55.6, 10.1), "55.6 ms a step, 31.6 ms before"),  # as busy as before
        ((31.6, 0.5), ""),  # as long, but the machine is idle
    ],
)
def test_steps_that_are_longer_because_the_machine_is_busier_are_no_regression(after, words: str) -> None:
    """Wall time and longest wait for a CPU as in runs beside other work; 31.6 and 10.1 ms before."""
    steps = np.repeat([(31.6, 10.1), after], 1_500, axis=0)
    waited = np.stack([steps[:, 1], steps[:, 1] / 2, np.full(len(steps), np.nan)], axis=1)
    log, ends_s, even = EventLog(), np.cumsum(steps[:, 0]) / 1000, np.ones(len(steps), bool)
    Pace().take(log, np.arange(3_000.0), steps[:, 0], waited, ends_s, even)
    assert [words in event.message for event in log.all()] == ([True] if words else [])
