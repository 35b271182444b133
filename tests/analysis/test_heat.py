"""Heat maps: the worst of a fold wins, nobody is counted twice, and what is unknown stays unknown."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.columns import fold, folds
from ddptop.frames.detail import HEAT_FIGURES, Heat
from tests.analysis.test_timeline import fed
from tests.made_up_run import World

NAN = float("nan")


def grid(heat: Heat | None) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]  # any floats
    assert heat is not None
    shape = (len(heat.rows) - 1, len(heat.steps))
    return heat.value.reshape(shape), heat.rank.reshape(shape)


@pytest.mark.parametrize(("count", "rows"), [(1, 5), (7, 3), (64, 64), (4096, 18), (4096, 1)])
def test_folds_cover_everything_once_and_are_even(count: int, rows: int) -> None:
    edges = folds(count, rows)
    sizes = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == count and len(sizes) == min(count, rows)
    assert sizes.max() - sizes.min() <= 1


def test_the_worst_of_a_fold_wins_and_says_who_it_is() -> None:
    values = np.array([[1.0, NAN], [5.0, NAN], [2.0, 3.0], [np.inf, 1.0], [4.0, 9.0]])
    value, rank = fold(values, folds(5, 2))
    np.testing.assert_array_equal(value, [[5.0, NAN], [np.inf, 9.0]])
    np.testing.assert_array_equal(rank, [[1, NAN], [3, 4]])
    least, _ = fold(values, folds(5, 2), worst_is_least=True)
    np.testing.assert_array_equal(least, [[1.0, NAN], [2.0, 1.0]])


def test_a_late_rank_shows_in_its_row_in_every_step() -> None:
    reducer = fed(World(16, delays={(5, "data"): 20_000}), 30)
    value, rank = grid(reducer.frame(0, want="heat data 4 20").heat)
    assert (value[1] == 21.0).all() and (rank[1] == 5).all()
    assert (value[[0, 2, 3]] == 1.0).all()
    whole = reducer.frame(0, want="heat data 4 20").heat
    assert whole is not None and (whole.low, whole.middle, whole.high) == (1.0, 1.0, 21.0)
    assert whole.steps == tuple(range(10, 30))


def test_a_map_looks_back_further_than_the_figures_where_ranks_are_few() -> None:
    reducer = fed(World(4), 230)
    whole = reducer.frame(0, want="heat step 4 200").heat
    assert whole is not None and whole.steps == tuple(range(30, 230))
    assert np.isfinite(whole.value).all()


def test_a_fold_can_be_opened() -> None:
    reducer = fed(World(16, delays={(5, "data"): 20_000}), 5)
    part = reducer.frame(0, want="heat data 10 20 4 4").heat
    value, rank = grid(part)
    assert part is not None and part.rows == (4, 5, 6, 7, 8)
    assert rank[:, 0].tolist() == [4, 5, 6, 7] and value[1, 0] == 21.0
    assert reducer.frame(0, want="heat data 10 20 16 4").heat is None


def test_figures_of_buckets_are_of_the_steps_that_were_timed() -> None:
    reducer = fed(World(4, delays={(1, "data"): 20_000}, detail_every=4), 41)
    heat = reducer.frame(0, want="heat lost 4 5").heat
    value, _ = grid(heat)
    assert heat is not None and heat.steps == (24, 28, 32, 36, 40)
    assert value[1].max() == 0.0 and value[0].min() > 19.0
    late, who = grid(reducer.frame(0, want="heat lateness 1 5").heat)
    assert late.tolist() == [[20.0] * 5] and (who == 1).all()


def test_where_clocks_cannot_tell_lateness_is_unknown() -> None:
    reducer = fed(World(4, hosts=("a", "b"), delays={(1, "data"): 20_000}), 40)
    value, _ = grid(reducer.frame(0, want="heat lateness 4 5").heat)
    assert np.isnan(value).all()
    value, _ = grid(reducer.frame(0, want="heat lost 4 5").heat)
    assert value[0].min() > 19.0 and value[1].max() < 1.0


@pytest.mark.parametrize("figure", HEAT_FIGURES)
def test_every_figure_can_be_asked_for_before_and_after_the_first_step(figure: str) -> None:
    for steps in (0, 3):
        frame = fed(World(3), steps).frame(0, want=f"heat {figure} 10 10")
        value, rank = grid(FrameDecoder().decode(encode_frame(frame)).heat)
        assert value.shape[1] == steps and (np.isnan(value) == np.isnan(rank)).all()
