"""A loss that the script divided by the number of its micro-steps is recorded as the script logs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ddptop.protocol.messages import Flag
from ddptop.training import phases
from ddptop.training.guard import guard
from ddptop.training.recorder import Recorder
from ddptop.training.step_record import StepRecord
from ddptop.training.torch_compat.divisors import READS, divisors_of

from .test_recorder import records_of

reads = pytest.mark.skipif(not READS, reason="this torch does not show whether a saved tensor has a hook")

Divide = Callable[[torch.Tensor], torch.Tensor]


def loss_of(value: float = 2.8) -> torch.Tensor:
    return (torch.ones(2, requires_grad=True) * value / 2).sum()


@pytest.mark.parametrize(
    ("divide", "expected"),
    [
        (lambda loss: loss / 4, (4,)),
        (lambda loss: loss * 0.25, (4,)),
        (lambda loss: 0.2 * loss, (5,)),
        (lambda loss: loss * (1 / 3), (3,)),
        (lambda loss: loss.div_(8), (8,)),
        (lambda loss: torch.div(loss, 4), (4,)),
        (lambda loss: loss / 4.0, (4,)),
        (lambda loss: loss / torch.tensor(4.0), (4,)),
        (lambda loss: (loss / 4) / 1, (4,)),
        (lambda loss: (loss / 2) / 2, (2, 4)),
        (lambda loss: (loss * 2) / 4, (4, 2)),
        (lambda loss: loss, ()),
        (lambda loss: loss * 2, ()),
        (lambda loss: loss / 2.5, ()),
        (lambda loss: loss / 4 + 1, ()),
        (lambda loss: loss / 0, ()),
        (lambda loss: loss.detach() / 4, ()),
        (lambda loss: loss * torch.ones((), requires_grad=True), ()),
        (lambda loss: torch.ones(()) / loss, ()),
    ],
)
def test_what_a_loss_was_divided_by(divide: Divide, expected: tuple[int, ...]) -> None:
    loss = divide(loss_of())
    assert divisors_of(loss) == (expected if READS else ())
    if loss.requires_grad:
        loss.backward()  # the graph is as it was
        assert divisors_of(loss) in (expected, ()), "also of a graph that is freed"


@reads
def test_what_a_script_packed_by_hooks_of_its_own_is_not_unpacked() -> None:
    unpacked: list[torch.Tensor] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        by_number, by_tensor = loss_of() / 4, loss_of() / torch.tensor(4.0)
    assert divisors_of(by_number) == (4,), "torch packs no plain number"
    assert divisors_of(by_tensor) == ()
    assert unpacked == []


class Training:
    """Steps of a loop that calls `backward()` as the recorder wraps it."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.scaled = phases.ScaledLoss()
        self.backward = phases.make_backward(
            self.recorder, self.scaled, phases.LastGradients(self.recorder), lambda tensors: None
        )

    def step(self, *losses: torch.Tensor, optimizer: int = 1) -> None:
        for loss in losses:
            self.forward()
            self.backward(loss)
        self.optimizer(optimizer)

    def forward(self) -> None:
        self.recorder.forward_begins(True)
        self.recorder.forward_ends()

    def optimizer(self, optimizer: int = 1) -> None:
        self.recorder.optimizer_begins(optimizer)
        self.recorder.optimizer_ends(optimizer)

    def records(self) -> list[StepRecord]:
        before = guard.count
        self.recorder.finish_step()
        assert guard.count == before
        return records_of(self.recorder)


@reads
def test_divided_losses_are_multiplied_and_others_left() -> None:
    training = Training()
    for _ in range(5):
        training.step(*(loss_of(value) / 4 for value in (2.0, 3.0, 3.0, 4.0)))
    training.step(loss_of(2.0) / 4, loss_of(4.0) / 4)  # the last step of an epoch has fewer micro-steps
    training.step(loss_of(2.5) / 4)
    training.step(*(loss_of(2.0) for _ in range(4)))  # undivided: the mean, as given
    *divided, two, one, undivided = training.records()
    for record in divided:
        assert record.loss == pytest.approx(3.0)
        assert record.flags & Flag.LOSS_UNDIVIDED
    assert (two.loss, one.loss) == (pytest.approx(3.0), pytest.approx(2.5))
    assert undivided.loss == pytest.approx(2.0)
    assert not undivided.flags & Flag.LOSS_UNDIVIDED


def test_without_micro_steps_the_graph_is_not_read_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(phases, "divisors_of", lambda loss: (read.append(loss), divisors_of(loss))[1])
    training = Training()
    for _ in range(20):
        training.step(loss_of(2.0) / 4)
    assert {record.loss for record in training.records()} == {0.5}, "divided by 4 for a reason of its own"
    assert len(read) == 2


@reads
def test_a_loss_that_a_scaler_multiplied_was_divided_before() -> None:
    training = Training()
    scale = training.scaled.wrap_scale(lambda _scaler, outputs: outputs * 1024)
    for _ in range(3):
        for _ in range(2):
            training.forward()
            training.backward(scale(None, loss_of(2.8) / 2))
        training.optimizer()
    assert [record.loss for record in training.records()] == [pytest.approx(2.8)] * 3


def test_a_script_may_log_the_loss_itself() -> None:
    training = Training()
    for _ in range(3):
        training.step(*(loss_of(2.0) / 2 for _ in range(2)))
        training.recorder.losses.logged = 0.125
    assert {(record.loss, record.flags & Flag.LOSS_UNDIVIDED) for record in training.records()} == {
        (0.125, 0)
    }


def test_each_step_has_the_number_of_the_optimizer_that_stepped() -> None:
    training = Training()
    for optimizer in (70, 71, 70, 70, 71):
        training.step(loss_of(), optimizer=optimizer)
    assert [record.first_optimizer for record in training.records()] == [0, 1, 0, 0, 1]
