"""A rank that says at its end that its weights are no numbers: the losses of its last steps were not read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.since_start import known_since_start, recall_since_start
from ddptop.frames.frame import Alert, Frame
from ddptop.frames.numbers import UNKNOWN
from ddptop.frames.phrases import has_nan_losses, mean_loss_phrase, rank_loss_phrase
from ddptop.protocol.messages import BAD_WEIGHTS, Event, Received
from tests.made_up_run import START_NS, World, feed_together

Loss = Callable[[int, int], float | None]


def begun(world: World) -> Reducer:
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    return reducer


def words_of_weights(world: World, *ranks: int, step: int = 9) -> Iterator[Received]:
    for rank in ranks:
        yield world.received(rank, Event(BAD_WEIGHTS, START_NS + world.now_us * 1000, rank, step))


def frame_of(reducer: Reducer, world: World) -> Frame:
    return reducer.frame(START_NS + world.now_us * 1000 + 3_000_000_000)


def frame_after(world: World, losses: dict[int, float | None], ranks: tuple[int, ...] = (0, 1)) -> Frame:
    """Ten steps with these losses, 1.0 where there is none, and the word of these ranks."""
    reducer = begun(world)
    feed_together(reducer, world.steps(10, loss=lambda _rank, step: losses.get(step, 1.0)))
    feed_together(reducer, words_of_weights(world, *ranks))
    feed_together(reducer, map(world.bye, range(world.size)))
    return frame_of(reducer, world)


def nan_alert(frame: Frame) -> Alert:
    return next(alert for alert in frame.alerts if alert.kind == "nan")


def test_steps_whose_loss_was_not_read_are_told_by_the_weights() -> None:
    frame = frame_after(World(2), dict.fromkeys(range(5, 10)))
    assert nan_alert(frame).message == "weights of both ranks are NaN since a step between 5 and 9"
    assert nan_alert(frame).evidence == {"ranks": 2, "by_weights": 2, "last_finite_step": 4}
    assert any(event.message.endswith("are NaN since a step between 5 and 9") for event in frame.events)


def test_a_loss_that_was_read_and_finite_in_the_last_step_leaves_that_step() -> None:
    assert nan_alert(frame_after(World(2), {})).message.endswith("since step 9")


def test_one_rank_is_named() -> None:
    alert = nan_alert(frame_after(World(2), {}, ranks=(1,)))
    assert alert.rank == 1
    assert alert.message == "weights of rank 1 are NaN since step 9"


def test_a_loss_that_was_read_is_what_is_said() -> None:
    frame = frame_after(World(2), dict.fromkeys(range(7, 10), math.nan))
    assert nan_alert(frame).message == "the loss of both ranks is NaN or infinite since step 7"
    assert nan_alert(frame).evidence == {"ranks": 2, "last_finite_step": 6}
    assert mean_loss_phrase(frame) == "nan"


def test_a_word_without_a_step_is_ignored() -> None:
    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(10))
    for _ in range(3):
        feed_together(reducer, words_of_weights(world, 0, 1, step=-1))
    frame = frame_of(reducer, world)
    assert not [what for what in (*frame.alerts, *frame.events) if what.kind == "nan"]


def test_another_model_that_trains_on_does_not_make_it_a_loss_that_has_passed() -> None:
    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(10, loss=lambda _rank, step: 1.0 if step < 5 else None))
    feed_together(reducer, words_of_weights(world, 0, 1))
    assert nan_alert(frame_of(reducer, world)).severity == "critical"
    feed_together(reducer, world.steps(10))
    frame = frame_of(reducer, world)
    assert "nan" not in [alert.kind for alert in frame.alerts]
    assert "nan" in [event.kind for event in frame.events]


def test_a_later_model_whose_first_loss_is_nan_is_told_by_that_loss() -> None:
    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(10, loss=lambda _rank, step: 1.0 if step < 5 else None))
    feed_together(reducer, words_of_weights(world, 0, 1))
    feed_together(reducer, world.steps(10, loss=lambda _rank, step: math.nan if step > 12 else None))
    alert = nan_alert(frame_of(reducer, world))
    assert (alert.step, alert.evidence) == (13, {"ranks": 2, "last_finite_step": 4})
    assert alert.message.startswith("the loss of both ranks is NaN or infinite since ")


@pytest.mark.parametrize("bad_rank", [None, 0])
def test_a_loss_that_was_not_read_is_not_shown_as_nan(bad_rank: int | None) -> None:
    def loss(rank: int, step: int) -> float | None:
        return math.nan if rank == bad_rank else None

    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(10, loss=loss))
    feed_together(reducer, words_of_weights(world, 0, 1))
    frame = frame_of(reducer, world)
    assert nan_alert(frame).evidence["ranks"] == 2
    assert not has_nan_losses(frame)
    assert rank_loss_phrase(frame, 1) == UNKNOWN
    assert mean_loss_phrase(frame) == (UNKNOWN if bad_rank is None else "nan")


@pytest.mark.parametrize(
    ("last_step_read", "since"), [(7, "a step between 8 and 9"), (8, "step 9"), (9, "step 9")]
)
def test_last_steps_may_arrive_after_the_word_of_the_weights(last_step_read: int, since: str) -> None:
    def loss(_rank: int, step: int) -> float | None:
        return 1.0 if step in (*range(5), last_step_read) else None

    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(6, loss=loss))
    late = [*world.steps(4, loss=loss)]
    feed_together(reducer, words_of_weights(world, 0, 1))
    feed_together(reducer, late)
    alert = nan_alert(frame_of(reducer, world))
    assert (alert.severity, alert.message) == ("critical", f"weights of both ranks are NaN since {since}")


@pytest.mark.parametrize("reads_losses", [True, False])
def test_who_reads_the_last_steps_says_whether_a_loss_was_read_before(reads_losses: bool) -> None:
    def loss(_rank: int, step: int) -> float | None:
        return 1.0 if step < 5 else math.nan if step == 7 and reads_losses else None

    world = World(2)
    reducer = begun(world)
    feed_together(reducer, world.steps(10, loss=loss))
    if not reads_losses:
        feed_together(reducer, words_of_weights(world, 0, 1))
    known = known_since_start(reducer.state)
    tail = Reducer(tail=True)
    feed_together(tail, [world.run(), *world.introduce()])
    feed_together(tail, words_of_weights(world, 0, 1))
    recall_since_start(tail.state, known)
    message = nan_alert(frame_of(tail, world)).message
    if reads_losses:
        assert message == "the loss of both ranks is NaN or infinite since a step between 5 and 7"
    else:
        assert message == "weights of both ranks are NaN since a step between 5 and 9"
