"""The rule by which two runs differ by more than chance: seldom wrong of equal runs, right of slower ones."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.frames import statistics
from ddptop.frames.chance import difference, interval
from ddptop.frames.statistics import LEAST_BLOCK, REPLICATES, block_length, estimate_median
from tests.benchmarks.bench_check import MORE, step_times

PAIRS, STEPS, ALIKE = 20, 500, 0.5


def test_equal_runs_are_equal_and_slower_ones_are_found() -> None:
    """A short form of `tests/benchmarks/bench_check.py`, with fixed seeds."""
    alarms = found = 0
    for pair in range(PAIRS):
        one, two = (step_times(STEPS, ALIKE, STEPS, round(100 * ALIKE), pair, i) for i in (0, 1))
        equal, slower = difference(one, two), difference(one, MORE * two)
        assert equal is not None
        assert slower is not None
        alarms += equal.beyond_chance and equal.more > 0
        found += slower.beyond_chance and slower.more > 0
    assert alarms <= 0.05 * PAIRS
    assert found >= 0.9 * PAIRS


def test_blocks_are_longer_where_neighbours_are_more_alike() -> None:
    series = [step_times(2_000, alike, 1) for alike in (0.0, 0.7, 0.95)]
    lengths = [block_length(np.sign(values - np.median(values))) for values in series]
    assert lengths[0] == LEAST_BLOCK
    assert lengths[1] > LEAST_BLOCK
    assert lengths[2] > 2 * lengths[1]


def test_blocks_of_short_series_are_as_long_without_a_fourier_transform(monkeypatch) -> None:
    for n in (16, 40, 100, 256, 512):
        series = [step_times(n, alike, i) for alike in (0.0, 0.7, 0.95) for i in range(5)]
        sides = [np.sign(values - np.median(values)) for values in series]
        with monkeypatch.context() as patch:
            patch.setattr(statistics, "SHORT", 0)
            transformed = [*map(block_length, sides)]
        assert [*map(block_length, sides)] == transformed


def test_the_error_of_a_median_is_the_same_however_many_series_are_drawn_at_once(monkeypatch) -> None:
    values = step_times(300, 0.7, 2)
    together = estimate_median(values)
    for at_once in (1, 7, REPLICATES - 1):
        monkeypatch.setattr(statistics, "DRAWN_TOGETHER", at_once * len(values))
        assert estimate_median(values) == together


def test_a_difference_has_its_sign_and_unknown_steps_are_left_out() -> None:
    values = step_times(100, 0.0, 7)
    with_unknown = np.insert(values, 50, np.nan)
    faster = difference(with_unknown, 0.5 * values)
    assert faster is not None
    assert faster.more == pytest.approx(-faster.first / 2)
    assert faster.beyond_chance
    assert faster.low < faster.more < faster.high < 0
    assert difference(values, values[:15]) is None
    assert interval(values[:15]) is None
    steady = difference(np.full(100, 2.0), np.full(100, 2.0))
    assert steady is not None
    assert not steady.beyond_chance
