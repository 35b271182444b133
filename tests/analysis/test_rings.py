"""Rings of the last steps, and functions on columns that stand for numpy's."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.analysis.steps.own_times import PLACES
from ddptop.analysis.steps.pairing import stable_order
from ddptop.analysis.steps.windows import StepWindow
from ddptop.frames import rings as rings_module
from ddptop.frames.rings import Ring
from ddptop.frames.statistics import interpolated_quantile, median

NAMES, RANKS, SIZE = ("a", "b"), 3, 12


@pytest.fixture(autouse=True, scope="module")
def large_rings():
    """Each column is by itself, as of many ranks, unless a test says that a ring is small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rings_module, "SMALL_BYTES", 0)
        yield


def held(ring):
    """How many values it keeps."""
    return sum(column.size for column in ring.columns)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), max_size=12), st.booleans())
def test_a_ring_holds_the_last_steps_however_they_are_added_and_read(pieces, small):
    """Each piece: how many steps, whether their values are unknown, whether it is read after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rings_module, "SMALL_BYTES", 2**18 if small else 0)
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
    values = np.arange(2 * 3 * RANKS).reshape(2, 3, RANKS) / 10
    rings = [Ring(NAMES, (RANKS,), SIZE) for _ in range(2)]
    unwritten, written = rings
    for ring in rings:
        ring.add(values[:, :2])
        ring.add(values[:, 2:])
    written.write_waiting_steps()
    slots, ranks = np.arange(1, 3), np.array([2, 0])
    for name, of_ranks in product(NAMES, (None, ranks)):
        for read in (Ring.of, Ring.known):
            found, expected = (read(ring, name, slots, of_ranks) for ring in rings)
            np.testing.assert_array_equal(found, expected, strict=True)
    assert held(unwritten) == len(NAMES)
    np.testing.assert_array_equal(*(ring.of("b", np.array([0, 2])) for ring in rings), strict=True)
    assert held(unwritten) == len(NAMES) * RANKS * SIZE
    for ring in rings:
        ring.pass_over(1)
        ring.add(values[:, :2])
    written.write_waiting_steps()
    for slots in (np.arange(4, 6), np.arange(2, 6)):
        np.testing.assert_array_equal(*(ring.of("a", slots, ranks) for ring in rings), strict=True)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.sampled_from((0.0, 0.5, 0.8, 0.95, 1.0)))
def test_a_quantile_is_that_of_numpy(values, share):
    column = np.array(values)
    assert interpolated_quantile(column, share) == pytest.approx(
        float(np.quantile(column, share)), rel=1e-12, abs=1e-9
    )


@pytest.mark.parametrize("most", [1, 300, 2**16 - 1, 2**16, 2**40])
def test_equal_numbers_stay_in_their_order(most):
    numbers = np.random.default_rng(most).integers(0, min(most, 50), 400) * (most // 50 or 1)
    order = stable_order(numbers)
    assert order.tolist() == sorted(range(400), key=lambda at: (numbers[at], at))
    assert stable_order(numbers[:0]).tolist() == []


@pytest.mark.parametrize("same", [0.0, np.nan])
@pytest.mark.parametrize("before", [0, 2, SIZE + 3])
def test_a_column_of_one_value_takes_no_memory_until_it_has_another(same, before):
    ring = Ring(NAMES, (RANKS,), SIZE)
    whole = np.full((before, RANKS), np.nan, np.float32)
    ring.count = before
    for step in range(3 * SIZE):
        value = -same if step == 2 * SIZE else same  # -0.0 is another one, and a NaN may have a sign
        values = np.stack([np.full(RANKS, value), np.arange(RANKS) + step])[:, None]
        ring.add(values)
        whole = np.concatenate([whole, values[0]])
        slots, ranks = ring.recent(SIZE), np.array([2, 0])
        found = ring.of("a", slots)
        np.testing.assert_array_equal(found, whole[slots].T)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(whole[slots].T))
        np.testing.assert_array_equal(ring.of("a", slots, ranks), whole[slots].T[ranks])
        ring.write_waiting_steps()
        one_value = step < 2 * SIZE and (not before or np.isnan(same))
        assert held(ring) == (1 if one_value else RANKS * SIZE) + RANKS * SIZE
    ring.pass_over(SIZE - 1)
    expected = [[np.nan] * (SIZE - 1) + [same]] * RANKS
    np.testing.assert_array_equal(ring.of("a", ring.recent(SIZE))[:, ::-1], expected)


added = st.tuples(st.integers(1, 7), st.sampled_from(("same", "same", "other", "none")), st.booleans())


@given(st.lists(added, max_size=12), st.booleans(), st.booleans())
def test_a_column_that_is_as_in_another_ring_takes_no_memory_until_it_differs(pieces, constant, late):
    """Each piece: how many steps, what they are in the second ring, and whether it is read after them."""
    first = Ring(NAMES, (RANKS,), SIZE)
    rings = [Ring(NAMES, (RANKS,), SIZE, like=like) for like in ((first, ("a",)), None)]
    same = not late
    for n, kind, read in ((2, "none", False), *pieces) if late else pieces:
        begin = first.count
        values = np.zeros((2, n, RANKS)) + (0 if constant else np.arange(begin, begin + n)[:, None])
        values[0, 0, 0] = np.nan  # the same, too
        first.add(values)
        values[1] += 0.5
        if kind == "other":
            values[0, -1, 1] = -0.0 if constant else -1.0  # of another sign is another one
        for ring in rings:
            if kind == "none":
                ring.pass_over(n)
            else:
                ring.add(values)
        same = same and kind == "same"
        slots, ranks = first.recent(SIZE), np.array([2, 0])
        for name, of_ranks in product(NAMES, (None, ranks)) if read else ():
            found, expected = (ring.of(name, slots, of_ranks) for ring in rings)
            np.testing.assert_array_equal(found, expected, strict=True)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
            found, expected = (ring.medians((name,), slots)[name] for ring in rings)
            np.testing.assert_array_equal(found, expected)
    for ring in rings:
        ring.write_waiting_steps()
    if same and first.count:
        assert held(rings[1]) - held(rings[0]) == RANKS * SIZE - 1


def test_a_column_of_which_nothing_is_known_takes_no_memory():
    ring = Ring(NAMES, (RANKS,), SIZE)
    ring.pass_over(5)
    ring.add(np.full((2, 1, RANKS), np.nan))
    assert np.isnan(ring.of("b", ring.recent(6))).all()
    assert held(ring) == len(NAMES)


def test_phases_are_kept_once_where_nothing_is_waited_in_collectives_of_the_script():
    window = StepWindow(RANKS, SIZE)
    columns = np.arange(6 * 5 * RANKS, dtype=float).reshape(6, 5, RANKS)
    parts = np.stack([columns[1], columns[2], columns[3] - 1, columns[4], *columns[[1] * 12] + 1])
    loss, of_each = np.ones((5, RANKS)), (np.ones(5),) * 3
    for waited in (0, 1):
        window.add(np.arange(5.0), np.arange(5.0), columns, loss, of_each)
        parts[0] -= waited
        window.add_own(np.ones((3, 5, RANKS)), parts)
        window.own_parts.write_waiting_steps()
        same = {name for name in PLACES if window.own_parts.columns[window.own_parts.index[name]].size == 1}
        assert same == {"data", "forward", "optimizer"} - ({"data"} if waited else set())
        slots = window.slots()[-5:]
        for name, values in zip(PLACES, parts, strict=False):
            np.testing.assert_array_equal(window.place(name, slots), values.T)


@pytest.mark.parametrize("before", [0, 3, SIZE - 1, SIZE, 2 * SIZE])
@pytest.mark.parametrize("after", [1, SIZE, 3 * SIZE])
def test_a_ring_that_holds_more_has_what_it_had_and_what_is_added(before, after):
    ring = Ring(NAMES, (RANKS,), 2 * SIZE, first=SIZE)
    values = np.arange(2.0 * (before + after) * RANKS).reshape(2, before + after, RANKS)
    ring.add(values[:, :before])
    held_then = ring.recent(2 * SIZE)
    assert len(held_then) == min(before, SIZE)
    ring.hold(2 * SIZE)
    np.testing.assert_array_equal(ring.recent(2 * SIZE), held_then)
    for at in range(before, before + after):
        ring.add(values[:, at : at + 1])
    slots, every = ring.recent(2 * SIZE), np.arange(before + after)
    assert len(slots) == min(len(held_then) + after, 2 * SIZE)
    for at, name in enumerate(NAMES):
        np.testing.assert_array_equal(ring.of(name, slots), values[at, slots].T)
        np.testing.assert_array_equal(ring.known(name, every)[:, slots], values[at, slots].T)
    unknown = np.delete(every, slots)
    assert np.isnan(ring.known("a", every)[:, unknown]).all()


def test_medians_are_those_of_numpy_whatever_the_signs_of_numbers_and_of_nan() -> None:
    plain = np.array([[3.0, 1.0, 2.0, 5.0], [0.5, np.inf, np.nan, 0.25]], np.float32)
    signed = np.array([[-3.0, 1.0, -0.0, 0.0], [-np.inf, -1.0, np.nan, np.copysign(np.nan, -1)]], np.float32)
    for values in (plain, -plain, signed, -signed, signed.astype(np.float64), plain[:, :3]):
        expected = np.nanmedian(values, axis=-1)
        assert np.array_equal(median(values), expected)
        ring = Ring(("x",), (2,), 4)
        ring.add(values.T[None])
        assert np.array_equal(ring.medians(("x",), ring.recent(4))["x"], expected)
