"""An evaluation lasts from its first batch to its last one; pauses beside it are none of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ddptop.protocol.messages import Phase
from ddptop.training import evaluation_span, phases
from ddptop.training.evaluation_span import EvaluationSpan
from ddptop.training.guard import Guard
from ddptop.training.recorder import Recorder
from tests.training.test_phases import Model

MS = 1_000_000


class Batches:
    """An iterator that gives so many batches, each after 5 ms."""

    def __init__(self, training: Training, n: int) -> None:
        self._training, self._left = training, n

    def __next__(self) -> int:
        self._training.now_ms += 5
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


class Training:
    """A training whose phases are wrapped, on a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1000
        monkeypatch.setattr(evaluation_span, "now", lambda: self.now_ms * MS)
        self.recorder = Recorder()
        self.told: list[tuple[float, float, float]] = []
        self.recorder.evaluation.note_evaluated = lambda *ns: self.told.append(
            (ns[0] / MS, ns[1] / MS, ns[2] / MS)
        )
        self.fetch = phases.make_next_data(self.recorder, threading.get_ident(), next)
        self.model = Model(self.recorder, lambda x: self.wait(20, x))
        self.trained = Batches(self, 1000)

    def wait(self, ms: int, value: Any = None) -> Any:
        self.now_ms += ms
        return value

    def epoch(self, n: int) -> Iterator[int]:
        """A pass over a DataLoader of n batches."""
        batches = Batches(self, n)
        while True:
            try:
                yield self.fetch(batches)
            except StopIteration:
                return

    def step(self) -> None:
        self.fetch(self.trained)
        self.model.forward(1)
        self.recorder.backward_begins(None)
        self.recorder.backward_ends()
        self.recorder.optimizer_begins(1)
        self.recorder.optimizer_ends(1)

    def evaluate(self, x: int) -> None:
        with torch.no_grad():
            self.model.forward(x)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    made = Training(monkeypatch)
    for _ in range(3):
        made.step()
    assert not made.recorder.evaluation.is_open, "in usual steps nothing is noted"
    return made


def with_ddp(training: Training) -> None:
    for x in training.epoch(4):
        training.evaluate(x)
        training.wait(10)


def with_the_bare_model(training: Training) -> None:
    for _ in training.epoch(4):
        training.wait(30)


def without_loader(training: Training) -> None:
    for _ in range(4):
        training.evaluate(1)
        training.wait(10)
    training.now_ms -= 10  # what follows the last forward may be anything


def two_splits(training: Training) -> None:
    for _ in range(2):
        for _ in training.epoch(2):
            training.wait(30)


LENGTHS: dict[Callable[[Training], None], tuple[int, int]] = {
    with_ddp: (4 * 35 + 5, 25),
    with_the_bare_model: (4 * 35 + 5, 25),
    without_loader: (4 * 30 - 10, 0),
    two_splits: (2 * (2 * 35 + 5), 30),
}


@pytest.mark.parametrize("pause", ["before", "after", "in fetching"])
@pytest.mark.parametrize("evaluation", LENGTHS)
def test_the_pauses_beside_an_evaluation_do_not_belong_to_it(
    training: Training, evaluation: Callable[[Training], None], pause: str
) -> None:
    if pause == "before":
        training.wait(2000)
    evaluation(training)
    ended = training.now_ms
    if pause == "after":
        training.wait(2000)
    if pause == "in fetching":
        training.trained = Batches(training, 9)  # the next epoch begins
    training.step()
    assert training.told == [(ended, *LENGTHS[evaluation])]
    training.step()
    assert len(training.told) == 1


def test_a_loop_that_is_left_has_no_end_after_its_last_batch(training: Training) -> None:
    for n, _ in enumerate(training.epoch(9)):
        if n == 3:
            break
        training.wait(30)
    ended = training.now_ms
    training.wait(2000)
    training.step()
    assert training.told == [(ended, 3 * 35 + 5, 20)]


def test_waits_in_collectives_are_no_evaluation(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = training.recorder
    monkeypatch.setattr("ddptop.training.recorder.now", lambda: training.now_ms * MS)
    for _ in training.epoch(2):
        began = recorder.wait_begins()
        training.wait(30)
        recorder.wait_ends(began)
    training.step()
    assert [told[1:] for told in training.told] == [(15, 15)]


def test_training_with_two_loaders_is_no_evaluation(training: Training) -> None:
    more = Batches(training, 99)
    for _ in range(4):
        training.fetch(more)
        training.step()
        training.wait(100)
    assert training.told == []


def test_nor_are_batches_that_are_skipped_or_taken_together(training: Training) -> None:
    for _ in range(20):
        training.fetch(training.trained)
    training.step()
    assert training.told == []


def test_a_forward_without_gradients_within_a_training_forward_is_a_part_of_it(training: Training) -> None:
    teacher = Model(training.recorder, lambda x: training.wait(50, x))

    def student(x: int) -> int:
        assert training.recorder.phase is Phase.FORWARD
        with torch.no_grad():
            return teacher.forward(x)

    training.model = Model(training.recorder, student)
    for _ in range(3):
        training.step()
    assert training.told == []


def test_short_ones_are_not_told_unless_a_pause_follows(training: Training) -> None:
    training.model = Model(training.recorder, lambda x: training.wait(2, x))
    for pause in (0, 500):
        training.evaluate(1)
        training.wait(pause)
        training.step()
    assert [told[1:] for told in training.told] == [(2, 0)]


def test_an_evaluation_in_a_step_without_phases_is_told_too(training: Training) -> None:
    training.recorder.aside = True
    with_ddp(training)
    training.wait(2000)
    training.step()
    assert [told[1:] for told in training.told] == [LENGTHS[with_ddp]]


def test_an_error_of_ours_does_not_reach_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_span, "guard", fresh_guard := Guard())
    span = EvaluationSpan()
    span.note_evaluated = lambda *_ns: 1 / 0  # type: ignore[func-returns-value,assignment]
    span.forward_begins(None)
    span.forward_ends()
    ended_ns = evaluation_span.now()
    monkeypatch.setattr(evaluation_span, "now", lambda: ended_ns + 20 * MS)
    span.forward_ends()
    span.training_goes_on(None)
    assert fresh_guard.count == 1
    assert not span.is_open
