"""Rings of the last steps, and functions on columns that stand for numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.analysis.known_sessions import stable_order
from ddptop.frames.columns import Ring, quantile_between

NAMES, RANKS, SIZE = ("a", "b"), 3, 12


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=12))
def test_a_ring_holds_the_last_steps_however_they_are_added_and_read(pieces):
    """Each piece: how many steps, whether their values are unknown, whether it is read after it."""
    ring, whole = Ring(NAMES, (RANKS,), SIZE, wide=True), np.empty((len(NAMES), 0, RANKS))
    for steps, unknown, read in pieces:
        first = whole.shape[1]
        values = np.arange(first, first + steps)[None, :, None] + np.array([0.25, 0.5, 0.75])
        values = np.stack([values[0], -values[0]])
        if unknown:
            values[:] = np.nan
            ring.pass_over(steps)
        else:
            ring.add(values.copy())
        whole = np.concatenate([whole, values], axis=1)
        if read and whole.shape[1]:
            slots = ring.recent(SIZE)
            for name, column in zip(NAMES, whole, strict=True):
                np.testing.assert_array_equal(ring.of(name, slots), column[slots].T)
    assert ring.count == whole.shape[1]
    if ring.count:
        slots = np.arange(max(0, ring.count - SIZE - 2), ring.count)
        expected = whole[0][slots].T.copy()
        expected[:, slots < ring.count - SIZE] = np.nan
        np.testing.assert_array_equal(ring.known("a", slots), expected)


def test_steps_that_were_added_last_are_read_without_being_written():
    ring, values = Ring(NAMES, (RANKS,), SIZE), np.arange(24.0).reshape(2, 4, RANKS)
    ring.add(values[:, :3])
    ring.add(values[:, 3:])
    slots, ranks = np.arange(1, 4), np.array([2, 0])
    assert ring.of("b", slots).tolist() == values[1, 1:].T.tolist()
    assert ring.known("b", slots, ranks).tolist() == values[1, 1:].T[ranks].tolist()
    assert not ring._data.size
    assert ring.of("b", np.array([0, 2])).tolist() == values[1, [0, 2]].T.tolist()
    assert ring._data.size


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from((0.0, 0.5, 0.8, 0.95, 1.0)))
def test_a_quantile_is_that_of_numpy(values, share):
    column = np.array(values)
    assert quantile_between(column, share) == pytest.approx(
        float(np.quantile(column, share)), rel=1e-12, abs=1e-9
    )


@pytest.mark.parametrize("most", [1, 300, 2**16 - 1, 2**16, 2**40])
def test_equal_numbers_stay_in_their_order(most):
    numbers = np.random.default_rng(most).integers(0, min(most, 50), 400) * (most // 50 or 1)
    order = stable_order(numbers)
    assert order.tolist() == sorted(range(400), key=lambda at: (numbers[at], at))
    assert stable_order(numbers[:0]).tolist() == []
