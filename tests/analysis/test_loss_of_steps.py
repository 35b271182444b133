"""The loss of a step: as given to `backward()`, undivided, or of one of several optimizers in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.turns import ALONE_STEPS, OptimizerTurns
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import Flag, Received, StepRow
from ddptop.render.plain import draw_frame
from tests.made_up_run import START_NS, World, feed_together

GENERATOR, CRITIC = 0, 1


def of_turns(optimizers: list[int]) -> tuple[OptimizerTurns, list[bool]]:
    turns = OptimizerTurns()
    losses = np.array([10.0 + optimizer for optimizer in optimizers])
    return turns, turns.take(np.array(optimizers), losses).tolist()


def test_optimizers_step_in_turn_once_one_returns() -> None:
    turns, counts = of_turns([0, 1, 0, 1, 0, 1])
    assert counts == [True, True, True, False, True, False]
    assert (turns.optimizers, turns.loss_of_other) == (2, 11.0)
    turns, counts = of_turns([0, 0, 0, 1, 0, 0, 0, 1])
    assert counts == [True] * 7 + [False]
    turns, counts = of_turns([1, 1, 0, 1, 0])
    assert counts[-2:] == [False, True], "the first is the one that stepped first in the run"


@pytest.mark.parametrize("optimizers", [[0] * 9, [0, 0, 0, 1, 1, 1, 2, 2], [-1] * 4, [0, -1, 0, -1]])
def test_one_optimizer_after_another_is_no_turn(optimizers: list[int]) -> None:
    turns, counts = of_turns(optimizers)
    assert all(counts)
    assert (turns.optimizers, turns.loss_of_other) == (0, None)


def test_an_optimizer_that_no_longer_steps_has_ended() -> None:
    turns, counts = of_turns([0, 1] * 4 + [1] * (ALONE_STEPS + 2))
    assert counts[-1] and not counts[20]
    assert turns.optimizers == 0


def changed(messages: Iterator[Received], change: Callable[[int, StepRow], StepRow]) -> Iterator[Received]:
    """STEPS with each row changed; `change` gets its step."""
    for received in messages:
        steps: Any = received.message
        rows = tuple(change(steps.first_step + at, row) for at, row in enumerate(steps.rows))
        yield received._replace(message=replace(steps, rows=rows))


def frame_of(
    change: Callable[[int, StepRow], StepRow], loss: Callable[[int, int], float] = lambda _rank, _step: 0.5
) -> Frame:
    world, reducer = World(2, own=True), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *changed(world.steps(60, loss=loss), change)])
    return reducer.frame(START_NS + 1000 * world.now_us)


def in_turn(step: int, row: StepRow) -> StepRow:
    return row._replace(own=row.own._replace(first_optimizer=GENERATOR if step % 2 == 0 else CRITIC))


def test_losses_of_optimizers_in_turn_are_no_zigzag() -> None:
    frame = frame_of(in_turn, lambda rank, step: (2.0 if step % 2 == 0 else 9.0) + rank / 10)
    known = frame.history.loss_mean[np.isfinite(frame.history.loss_mean)]
    assert known[2:] == pytest.approx(2.05)
    assert np.isnan(frame.history.loss_max[3::2]).all()
    assert len(known) == 31, "every other one, and the first of the critic"
    assert frame.ranks.loss.tolist() == [2.0, pytest.approx(2.1)]
    shown = snapshot(frame)["group"]["loss"]
    assert (shown["optimizers_in_turn"], shown["of_other_optimizer"], shown["mean"]) == (2, 9.05, 2.05), shown
    assert [event.kind for event in frame.events if event.kind == "optimizers"] == ["optimizers"]
    assert "of the first of 2 optimizers that step in turn, 9.0500 of the other" in draw_frame(frame, 80)


def test_a_loss_that_was_not_read_is_no_loss_of_the_other() -> None:
    def rarely(step: int, row: StepRow) -> StepRow:
        return in_turn(step, row)._replace(loss=None if step % 4 > 1 else row.loss)

    frame = frame_of(rarely, lambda _rank, step: 2.0 if step % 2 == 0 else 9.0)
    assert (frame.group.loss_mean, frame.group.loss_of_other) == (2.0, 9.0)


@pytest.mark.parametrize(
    ("flags", "as_given"), [(0, 4), (Flag.LOSS_UNDIVIDED, 0), (Flag.LOSS_LOGGED, 0)], ids=str
)
def test_a_mean_of_several_passes_is_labelled(flags: int, as_given: int) -> None:
    frame = frame_of(lambda _step, row: row._replace(micro_steps=4, flags=row.flags | int(flags)))
    assert frame.group.loss_as_given == as_given
    assert snapshot(frame)["group"]["loss"]["as_given"] == as_given
    label = "loss as given to backward(), mean of 4 calls in a step"
    assert (label in draw_frame(frame, 80)) == (as_given > 0)


def test_the_loss_of_one_pass_has_no_label() -> None:
    frame = frame_of(lambda _step, row: row)
    assert frame.group.loss_as_given == 0
    assert "loss as given" not in draw_frame(frame, 80)
