"""What scripts log: per rank, and averaged over the ranks that logged it."""

from __future__ import annotations

from ddptop.analysis.ranks import MAX_LOGGED
from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import Logged, Received
from tests.made_up_run import feed_together

START_NS = 5_000 * 1_000_000_000


def told(world, *words: tuple[int, dict[str, float | None]], focus: int | None = None):
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(20)])
    at = START_NS + world.now_us * 1000
    for seq, (rank, values) in enumerate(words):
        reducer.feed(Received(at, rank, world.session(rank), seq, Logged(19, values)))
    return FrameDecoder().decode(encode_frame(reducer.frame(at, focus=focus)))


def test_a_scalar_is_averaged_over_the_ranks_that_logged_it(make_world) -> None:
    frame = told(make_world(3), (0, {"accuracy": 0.9}), (2, {"accuracy": 0.8}), (2, {"lr": 0.1}), focus=2)
    accuracy, lr = frame.logged
    assert (accuracy.name, accuracy.ranks, accuracy.min_rank, accuracy.max_rank) == ("accuracy", 2, 2, 0)
    assert abs((accuracy.mean or 0) - 0.85) < 1e-12
    assert accuracy.focus == 0.8
    assert (lr.ranks, lr.mean) == (1, 0.1)
    assert snapshot(frame)["logged"]["lr"]["max_rank"] == 2


def test_the_newest_value_counts_and_nan_is_unknown(make_world) -> None:
    frame = told(make_world(2), (0, {"norm": 1.0}), (0, {"norm": 2.0}), (1, {"norm": None}))
    (norm,) = frame.logged
    assert (norm.ranks, norm.mean, norm.max_rank) == (2, 2.0, 0)
    frame = told(make_world(2), (0, {"norm": None}))
    assert frame.logged[0].mean is None


def test_values_of_any_size_are_shown_also_where_their_sum_is_no_float(make_world) -> None:
    frame = told(make_world(3), *((rank, {"norm": 1.5e308}) for rank in range(3)), focus=1)
    (norm,) = frame.logged
    assert (norm.mean, norm.min, norm.max, norm.focus) == (1.5e308,) * 4
    assert snapshot(frame)["logged"]["norm"]["mean"] == 1.5e308


def test_names_without_end_are_not_followed(make_world) -> None:
    words = [(0, {f"name {i} {j}": 1.0 for j in range(100)}) for i in range(5)]
    assert len(told(make_world(2), *words).logged) == MAX_LOGGED
