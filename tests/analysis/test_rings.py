"""Rings of the last steps, and functions on columns that stand for numpy's."""

from itertools import product

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
    values = np.arange(2 * 4 * RANKS).reshape(2, 4, RANKS) / 10
    rings = [Ring(NAMES, (RANKS,), SIZE) for _ in range(2)]
    unwritten, written = rings
    for ring in rings:
        ring.add(values[:, :3])
        ring.add(values[:, 3:])
    written._write()
    slots, ranks = np.arange(1, 4), np.array([2, 0])
    for name, of_ranks in product(NAMES, (None, ranks)):
        for read in (Ring.of, Ring.known):
            found, expected = (read(ring, name, slots, of_ranks) for ring in rings)
            np.testing.assert_array_equal(found, expected, strict=True)
    assert not unwritten._data.size
    np.testing.assert_array_equal(*(ring.of("b", np.array([0, 2])) for ring in rings), strict=True)
    assert unwritten._data.size
    for ring in rings:
        ring.pass_over(1)
        ring.add(values[:, :2])
    written._write()
    for slots in (np.arange(5, 7), np.arange(2, 7)):
        np.testing.assert_array_equal(*(ring.of("a", slots, ranks) for ring in rings), strict=True)


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
