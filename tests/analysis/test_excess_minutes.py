"""The excess of every rank over minutes: bins of time, whatever the number of steps and ranks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ddptop.analysis.steps.excess_minutes import SPAN_S, ExcessMinutes

NAN = float("nan")


def fed(step_s: float, steps: int, ranks: int = 2, batch: int = 100) -> ExcessMinutes:
    """Rank 1 is 20 ms slow in each tenth step of the last half; rank 0 has no excess."""
    found = ExcessMinutes(ranks)
    number = np.arange(steps)
    excess = np.zeros((steps, ranks))
    excess[:, 1] = 20.0 * ((number % 10 == 0) & (number >= steps // 2))
    for at in range(0, steps, batch):
        found.add(number[at : at + batch] * step_s, excess[at : at + batch])
    return found


@pytest.mark.parametrize(("step_s", "lasts_s"), [(0.01, 60.0), (0.05, 1_700.0), (0.2, 30_000.0)])
@pytest.mark.parametrize("ranks", [2, 5_000])
def test_the_last_half_hour_is_kept_of_runs_of_any_length(step_s: float, lasts_s: float, ranks: int) -> None:
    if ranks > 2:
        step_s, lasts_s = 40 * step_s, lasts_s
    steps = int(lasts_s / step_s)
    minutes = fed(step_s, steps, ranks).of(1)
    assert minutes is not None
    newest, oldest = minutes.time_s[-1], minutes.time_s[0]
    assert newest == pytest.approx(lasts_s, abs=2 * np.diff(minutes.time_s).max() + step_s)
    assert newest - oldest >= min(SPAN_S, 0.9 * lasts_s)
    assert (np.diff(minutes.time_s) > 0).all() and len(minutes.time_s) <= 512
    late = minutes.time_s > (steps // 2 + 20) * step_s
    assert minutes.largest_ms[late & (minutes.time_s < newest - 10 * step_s)].max() == 20.0
    assert minutes.mean_ms[late].mean() == pytest.approx(2.0, abs=0.6)
    assert not minutes.mean_ms[minutes.time_s < (steps // 2 - 20) * step_s].any()


@pytest.mark.parametrize(("step_s", "batch"), [(0.05, 128), (0.05, 4_000), (5.0, 4_000)])
def test_bins_are_the_same_however_the_steps_arrive(step_s: float, batch: int) -> None:
    one, other = fed(step_s, 9_000, batch=1).of(1), fed(step_s, 9_000, batch=batch).of(1)
    assert one is not None and other is not None
    for name in ("time_s", "mean_ms", "largest_ms"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-6)


def test_what_is_not_known_is_unknown_and_no_zero() -> None:
    found = ExcessMinutes(2)
    assert found.of(0) is None
    found.add(np.array([0.1, 0.2]), None)
    assert found.of(0) is None
    found.add(np.array([1.1, 2.1, 2.2]), np.array([[NAN, 1.0], [NAN, NAN], [4.0, NAN]]))
    minutes = found.of(0)
    assert minutes is not None
    assert minutes.time_s.tolist() == [1.25, 2.25]
    np.testing.assert_array_equal(minutes.mean_ms, [NAN, 4.0])
    np.testing.assert_array_equal(minutes.largest_ms, [NAN, 4.0])


def test_a_clock_that_is_set_back_moves_no_step_to_an_earlier_bin() -> None:
    found = ExcessMinutes(1)
    found.add(np.array([10.0, 20.0, 5.0]), np.ones((3, 1)))
    found.add(np.array([6.0]), np.full((1, 1), 3.0))
    minutes = found.of(0)
    assert minutes is not None
    assert minutes.time_s.tolist() == [10.25, 20.25]
    assert minutes.mean_ms.tolist() == [1.0, pytest.approx(5 / 3)]


def test_what_is_recorded_piece_by_piece_is_all_there_was_and_comes_before_what_is_read() -> None:
    found, pieces, asked_s = ExcessMinutes(2), [], 0.0
    for first in range(0, 6_000, 500):
        number = np.arange(first, first + 500)
        found.add(0.1 * number, np.stack([np.zeros(500), number / 100.0], axis=1))
        asked_s, *piece = found.since(asked_s, final=first == 5_500)
        pieces.append(piece)
    times, figures = np.concatenate([at for at, _ in pieces]), np.concatenate([f for _, f in pieces], axis=1)
    assert times.tolist() == [4.0 + 8.0 * at for at in range(75)], "each bin once"
    assert figures[0, :, 1] == pytest.approx(times / 10.0, abs=0.1)
    read = ExcessMinutes(2)
    read.recall(times[:0], figures[:, :0])
    assert read.of(1) is None
    number = np.arange(5_000, 6_000)
    read.add(0.1 * number, np.stack([np.zeros(1_000), number / 100.0], axis=1))
    read.recall(times, figures)
    minutes = read.of(1)
    assert minutes is not None
    assert (np.diff(minutes.time_s) > 0).all() and minutes.time_s[0] < 8.0 and minutes.time_s[-1] >= 599.0
    assert minutes.mean_ms == pytest.approx(minutes.time_s / 10.0, abs=0.6)
    assert np.diff(minutes.time_s).max() < 3 * np.median(np.diff(minutes.time_s)), "no gap is drawn"


def test_one_piece_of_many_ranks_stays_small() -> None:
    found = ExcessMinutes(4_000)
    for at in range(300):
        found.add(np.array([10.0 * at]), np.ones((1, 4_000)))
    end_s, times, figures = found.since(0.0, final=True)
    assert figures.shape == (2, 16, 4_000) and len(times) == 16
    assert end_s >= 2_990.0


def test_the_bins_of_one_rank_are_read_without_those_of_all() -> None:
    minutes = fed(0.5, 100, ranks=4096)
    tracemalloc.start()
    try:
        found = minutes.of(1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None and len(found.mean_ms) == 100
    assert peak < 100_000  # 9.8 MB before
