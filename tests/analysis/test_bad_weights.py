"""A rank that says at its end that its weights are no numbers: the losses of its last steps were not read."""

from __future__ import annotations

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import Alert, Frame
from ddptop.protocol.messages import BAD_WEIGHTS, Event
from tests.made_up_run import START_NS, World, feed_together


def frame_after(world: World, losses: dict[int, float | None], ranks: tuple[int, ...] = (0, 1)) -> Frame:
    """Ten steps with these losses, 1.0 where there is none, and the word of these ranks."""
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    feed_together(reducer, world.steps(10, loss=lambda _rank, step: losses.get(step, 1.0)))
    for rank in ranks:
        event = Event(BAD_WEIGHTS, START_NS + world.now_us * 1000, rank, 9)
        feed_together(reducer, [world.received(rank, event)])
    feed_together(reducer, map(world.bye, range(world.size)))
    return reducer.frame(START_NS + world.now_us * 1000 + 3_000_000_000)


def nan_alert(frame: Frame) -> Alert:
    return next(alert for alert in frame.alerts if alert.kind == "nan")


def test_steps_whose_loss_was_not_read_are_told_by_the_weights() -> None:
    frame = frame_after(World(2), dict.fromkeys(range(5, 10)))
    assert nan_alert(frame).message == "weights of both ranks are NaN since a step between 5 and 9"
    assert any(event.message.endswith("are NaN since a step between 5 and 9") for event in frame.events)


def test_a_loss_that_was_read_and_finite_in_the_last_step_leaves_that_step() -> None:
    assert nan_alert(frame_after(World(2), {})).message.endswith("since step 9")


def test_one_rank_is_named() -> None:
    alert = nan_alert(frame_after(World(2), {}, ranks=(1,)))
    assert alert.rank == 1
    assert alert.message == "weights of rank 1 are NaN since step 9"


def test_a_loss_that_was_read_is_what_is_said() -> None:
    frame = frame_after(World(2), dict.fromkeys(range(7, 10), float("nan")))
    assert nan_alert(frame).message == "the loss of both ranks is NaN or infinite since step 7"
