"""Evaluation is told from training by what goes on while the step stands still."""

from __future__ import annotations

import pytest

from ddptop.protocol.messages import Phase
from ddptop.training import activity
from ddptop.training.activity import FRESH_S, EvaluationWatch
from ddptop.training.recorder import Recorder


class Training:
    """A recorder, a watch over it, and a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.recorder = Recorder()
        self.watch = EvaluationWatch(self.recorder)
        monkeypatch.setattr(activity.time, "monotonic", lambda: self.now_s)

    def fetch(self) -> None:
        self.recorder.data_begins()
        self.recorder.data_ends()

    def step(self) -> None:
        self.fetch()
        self.recorder.forward_begins(True)
        self.recorder.forward_ends()
        self.recorder.backward_begins(None)
        self.recorder.backward_ends()
        self.recorder.optimizer_begins(1)
        self.recorder.optimizer_ends(1)

    def beat(self, after_s: float = 0.5) -> Phase:
        self.now_s += after_s
        return self.watch.current_phase()


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    made = Training(monkeypatch)
    for _ in range(3):
        made.step()
    made.beat()
    made.beat()
    return made


def test_batches_without_a_step_are_an_evaluation(training: Training) -> None:
    training.fetch()
    training.fetch()
    assert training.beat() == Phase.EVALUATE


def test_forwards_without_gradients_are_one_too(training: Training) -> None:
    training.recorder.asides += 2
    assert training.beat() == Phase.EVALUATE


def test_the_batch_of_a_slow_step_is_none(training: Training) -> None:
    for _ in range(4):
        training.recorder.data_begins()
        assert training.beat() == Phase.DATA
        training.recorder.data_ends()
        training.recorder.forward_begins(False)  # micro-steps: the step stands still
        training.recorder.forward_ends()
        assert training.beat() == Phase.OTHER


def test_a_rank_stuck_after_evaluating_does_not_evaluate_for_ever(training: Training) -> None:
    training.fetch()
    training.fetch()
    assert training.beat() == Phase.EVALUATE
    assert training.beat(FRESH_S - 1) == Phase.EVALUATE, "batches may be slow"
    assert training.beat(2.0) == Phase.OTHER
    training.fetch()
    assert training.beat() == Phase.EVALUATE


def test_training_that_goes_on_is_no_evaluation(training: Training) -> None:
    training.fetch()
    training.fetch()
    training.beat()
    training.step()
    training.recorder.forward_begins(True)
    assert training.beat() == Phase.FORWARD
