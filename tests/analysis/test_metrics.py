"""METRICS on cases small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.analysis.steps import formulas
from ddptop.frames.statistics import FEW, median, median_of_others, quantile, reduce_rows

NAN = np.nan


def test_start_waits_for_the_earliest_free_lane() -> None:
    ready = np.array([[0.0], [1.0], [2.0], [3.0]])
    end = np.array([[10.0], [5.0], [12.0], [14.0]])
    # Two lanes: the first two start at once, the third when b1 ends at 5, the fourth when b0 ends at 10.
    assert formulas.starts(ready, end, 2)[:, 0].tolist() == [0, 1, 5, 10]


def test_start_on_one_stream_is_the_end_before() -> None:
    ready = np.array([[0.0], [1.0], [20.0]])
    end = np.array([[10.0], [12.0], [25.0]])
    assert formulas.starts(ready, end, 1)[:, 0].tolist() == [0, 10, 20]


def test_an_unknown_end_frees_its_lane() -> None:
    ready = np.array([[0.0], [1.0]])
    end = np.array([[NAN], [3.0]])
    assert formulas.starts(ready, end, 1)[:, 0].tolist() == [0, 1]


def test_a_late_completion_stamp_does_not_move_a_start_past_its_own_end() -> None:
    ready = np.array([[0.0], [1.0]])
    end = np.array([[30.0], [3.0]])  # the first was stamped 28 too late
    assert formulas.starts(ready, end, 1)[:, 0].tolist() == [0, 3]


def test_one_allreduce_of_three_ranks() -> None:
    start = np.array([[0.0, 20.0, 2.0]])
    end = np.array([[25.0, 25.0, 26.0]])
    arrival = formulas.last_arrival(start.max(axis=-1), end.min(axis=-1))
    assert arrival.tolist() == [20]
    assert formulas.wait(start, arrival[..., None]).tolist() == [[20, 0, 18]]
    assert (end - arrival[..., None]).tolist() == [[5, 5, 6]]
    assert formulas.recoverable(start).tolist() == [18]
    assert formulas.lateness(start).tolist() == [[0 - 11, 20 - 1, 2 - 10]]


def test_nobody_ends_before_the_last_arrives() -> None:
    assert formulas.last_arrival(np.array([9.0]), np.array([8.0])).tolist() == [8]


def test_without_comparable_clocks_the_shortest_collective_is_the_transfer() -> None:
    start = np.array([[0.0, 1000.0]])
    end = np.array([[25.0, 1005.0]])
    arrival = formulas.clock_free_arrival(start, end)
    assert (end - arrival).tolist() == [[5, 5]]
    assert formulas.wait(start, arrival).tolist() == [[20, 0]]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_median_of_others_is_what_it_says(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 5, (50, count)).astype(float)
    values[values == 4] = NAN
    expected = np.full_like(values, NAN)
    for i, row in enumerate(values):
        for rank in range(count):
            others = np.delete(row, rank)
            others = others[~np.isnan(others)]
            if len(others) and not np.isnan(row[rank]):
                expected[i, rank] = np.median(others)
    np.testing.assert_array_equal(median_of_others(values), expected)


def test_a_pair_shows_the_whole_lateness_on_each() -> None:
    assert formulas.lateness(np.array([0.0, 20.0])).tolist() == [-20, 20]


def test_union_counts_overlap_once_and_ignores_what_is_empty() -> None:
    begin = np.array([5.0, 0.0, 20.0, NAN, 9.0])
    end = np.array([8.0, 6.0, 25.0, 30.0, 9.0])
    assert formulas.union(begin[:, None], end[:, None]).tolist() == [8 + 5]


def test_exposed_communication_is_what_comes_after_compute() -> None:
    ready = np.array([[10.0], [20.0]])
    assert formulas.exposed(ready, np.array([[18.0], [32.0]])).tolist() == [12]
    assert formulas.exposed(ready, np.array([[18.0], [19.0]])).tolist() == [0]


def test_exposed_wait_ends_with_the_last_arrival() -> None:
    ready = np.array([[10.0], [20.0]])
    arrival = np.array([[28.0], [30.0]])
    # Both all-reduces lack a rank from 20 to 28, the second to 30; what was hidden before 20 does not count.
    assert formulas.exposed_wait(ready, ready, arrival).tolist() == [10]


def test_queueing_behind_traffic_is_no_waiting() -> None:
    """Three buckets ready at once on every rank, one lane, 5 each: all of it is transfer."""
    ready = np.zeros((3, 2))
    end = np.array([[5.0, 5.0], [10.0, 10.0], [15.0, 15.0]])
    start = formulas.starts(ready, end, 1)
    arrival = formulas.last_arrival(start.max(axis=-1), end.min(axis=-1))[..., None]
    assert formulas.exposed_wait(ready, start, np.broadcast_to(arrival, start.shape)).tolist() == [0, 0]


def test_second_latest() -> None:
    assert formulas.second_latest(np.array([[3.0, 1.0, 7.0], [NAN, 4.0, 9.0], [NAN, NAN, 2.0]])).tolist() == [
        3,
        4,
        2,
    ]
    assert formulas.second_latest(np.array([[3.0]])).tolist() == [3]


def test_the_latest_of_the_earlier_half() -> None:
    """Of four the second, of five the third, of two the first; NaN aside."""
    times = np.array([[4.0, 1.0, 3.0, 2.0, NAN], [5.0, 4.0, 1.0, 3.0, 2.0], [7.0, NAN, 9.0, NAN, NAN]])
    assert formulas.middle_latest(times).tolist() == [2, 3, 7]
    np.testing.assert_array_equal(formulas.middle_latest(np.full((1, 3), NAN)), [NAN])


@pytest.mark.parametrize("count", [4, 5, 6, 7, 600, 601])
def test_what_is_partitioned_is_as_what_is_sorted(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(count).integers(0, 2 * count, (20, count)).astype(np.float32)
    with_gaps = np.where(values == values[0, 0], np.float32(NAN), values)
    for name in ("median_of_others", "middle_latest"):
        figure = getattr(formulas, name)
        for these in (values, with_gaps):
            monkeypatch.setattr(formulas, "LONG", 1_000_000)
            expected = figure(these)
            monkeypatch.setattr(formulas, "LONG", 3)
            found = figure(these)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def test_quantiles_leave_nan_aside() -> None:
    values = np.array([[3.0, NAN, 1.0, 2.0, 4.0], [NAN] * 5])
    np.testing.assert_array_equal(quantile(values, 0.25), [2, NAN])
    np.testing.assert_array_equal(quantile(values, 0.75), [4, NAN])
    np.testing.assert_array_equal(quantile(np.empty((2, 0)), 0.5), [NAN, NAN])


def test_replay_of_a_step_through_its_lanes() -> None:
    arrival = np.array([[0.0], [1.0], [2.0]])
    transfer = np.array([[10.0], [4.0], [3.0]])
    assert formulas.replay(arrival, transfer, 1).tolist() == [17]
    assert formulas.replay(arrival, transfer, 2).tolist() == [10]


def test_bandwidth_uses_the_factor_of_nccl_tests() -> None:
    assert formulas.bus_factor(2) == 1.0
    assert formulas.bus_factor(4) == 1.5
    assert float(formulas.bandwidth_gbps(8e6, np.float64(1.0))) == pytest.approx(8.0)
    assert np.isnan(formulas.bandwidth_gbps(8e6, np.float64(0.0)))


def test_relative_scores_compare_with_the_fastest_rank() -> None:
    scores = formulas.relative_scores(np.array([10.0, 20.0, NAN, 10.0]))
    np.testing.assert_array_equal(scores, [1.0, 0.5, NAN, 1.0])


def test_lanes_by_backend() -> None:
    assert [formulas.lanes_of(name) for name in ("gloo", "nccl", "cpu:gloo,cuda:nccl")] == [2, 1, 1]


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_median_agrees_with_numpy_and_leaves_nan_aside(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(20, count))
    np.testing.assert_allclose(median(values), np.median(values, axis=-1))
    values[0, 0] = NAN
    values[1, :] = NAN
    for row, found in zip(values, median(values), strict=True):
        left = row[~np.isnan(row)]
        np.testing.assert_allclose(found, np.median(left) if len(left) else NAN)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 511, 512, 513, 4096])
@pytest.mark.parametrize("unknown", [0, 1, 5])
def test_a_median_is_the_middle_of_what_is_known_in_each_row(size: int, unknown: int) -> None:
    rows = np.random.default_rng(size).standard_normal((size, 3)).T  # not contiguous
    rows[1, : min(unknown, size)] = NAN
    known = [sorted(row[~np.isnan(row)].tolist()) for row in rows]
    expected = [(one[(len(one) - 1) // 2] + one[len(one) // 2]) / 2 if one else NAN for one in known]
    before = rows.copy()
    assert np.array_equal(median(rows), expected, equal_nan=True)
    assert np.array_equal(rows, before, equal_nan=True)


@pytest.mark.parametrize("count", [1, 2, 3, 8, FEW, FEW + 1])
@pytest.mark.parametrize("ufunc", [np.fmin, np.fmax])
def test_rows_of_few_and_of_many_values_are_reduced_alike(count: int, ufunc: np.ufunc) -> None:
    values = np.random.default_rng(0).normal(size=(4, 5, count))
    values[0, 1, 0] = values[2] = NAN
    before = values.copy()
    np.testing.assert_array_equal(reduce_rows(ufunc, values), ufunc.reduce(values, axis=-1))
    np.testing.assert_array_equal(reduce_rows(ufunc, values[0]), ufunc.reduce(values[0], axis=-1))
    np.testing.assert_array_equal(values, before)
