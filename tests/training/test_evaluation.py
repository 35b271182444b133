"""Evaluation is told from training by what goes on while the step stands still."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

from ddptop.protocol.messages import Activity, Phase
from ddptop.training import activity
from ddptop.training.activity import FRESH_S, ActivityWatch, EvaluationWatch
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
    training.recorder.calls_since_forward += 2
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


class Watched:
    """A recorder, and what the watch reads of it."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.watch = ActivityWatch(self.recorder, threading.get_ident())

    def step(self) -> None:
        Training.step(self)  # type: ignore[arg-type]

    def fetch(self) -> None:
        Training.fetch(self)  # type: ignore[arg-type]

    def activity(self) -> Activity:
        return self.watch.read().activity


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    for _ in range(3):
        made.step()
    return made


def test_the_place_between_two_phases(watched: Watched) -> None:
    recorder = watched.recorder
    assert watched.activity() == Activity.AFTER_OPTIMIZER
    assert watched.watch.read().since_ns == recorder.stamps[-1] >> 5
    watched.fetch()
    assert watched.activity() == Activity.BEFORE_FORWARD
    recorder.forward_begins(True)
    assert watched.activity() == Activity.TRAINING
    recorder.forward_ends()
    assert watched.activity() == Activity.BEFORE_BACKWARD
    recorder.backward_begins(None)
    assert watched.activity() == Activity.TRAINING
    recorder.last_gradient()
    assert watched.activity() == Activity.ALL_REDUCE, "it waits for the others"
    recorder.backward_ends()
    assert watched.activity() == Activity.BEFORE_OPTIMIZER


def test_an_evaluation_lasts_from_the_last_step_until_it_trains(watched: Watched) -> None:
    ended = watched.recorder.stamps[-1] >> 5
    watched.activity()
    watched.fetch()
    watched.fetch()
    read = watched.watch.read()
    assert (read.phase, read.activity, read.since_ns) == (Phase.EVALUATE, Activity.EVALUATE, ended)
    for _ in range(100):  # their stamps are handed over
        watched.fetch()
    assert watched.watch.read().since_ns == ended
    watched.step()
    watched.recorder.forward_begins(True)
    assert watched.activity() == Activity.TRAINING


class InMode:
    """A DDP model in training mode or not."""

    def __init__(self, training: bool) -> None:
        self.module = self
        self.training = training


def test_a_model_in_evaluation_mode_evaluates(watched: Watched) -> None:
    model = InMode(True)
    watched.recorder.forwarded = lambda: model
    assert watched.activity() == Activity.AFTER_OPTIMIZER
    model.training = False
    assert watched.activity() == Activity.EVALUATE
    model.training = True
    assert watched.activity() == Activity.AFTER_OPTIMIZER, "the pause behind it is none of it"
    model.training = False
    assert watched.activity() == Activity.EVALUATE
    watched.step()
    model.training = True
    assert watched.activity() == Activity.AFTER_OPTIMIZER


def test_a_model_that_is_never_in_training_mode_tells_nothing(watched: Watched) -> None:
    model = InMode(False)
    watched.recorder.forwarded = lambda: model
    assert watched.activity() == Activity.AFTER_OPTIMIZER


def test_nor_does_one_that_trains_in_evaluation_mode(watched: Watched) -> None:
    model = InMode(True)
    watched.recorder.forwarded = lambda: model
    watched.activity()
    model.training = False
    watched.recorder.forward_begins(True)
    watched.recorder.forward_ends()
    watched.recorder.backward_begins(None)
    assert watched.activity() == Activity.TRAINING
    watched.recorder.backward_ends()
    watched.step()
    watched.recorder.data_begins()
    assert watched.activity() == Activity.TRAINING, "it waits for data"


def test_saving_and_waiting_come_first(watched: Watched) -> None:
    watched.recorder.saves.since_ns = 77
    assert watched.watch.read()[1:] == (Activity.SAVE, 77)
    watched.recorder.saves.since_ns = 0
    began = watched.recorder.wait_begins()
    assert watched.watch.read()[1:] == (Activity.WAIT, began)
    watched.recorder.wait_ends(began)
    assert watched.activity() == Activity.AFTER_OPTIMIZER


def test_a_long_wait_has_the_name_of_its_collective(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setattr(activity, "NAMED_AFTER_NS", 0)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    read = []

    class Waited:
        def wait(self, *_args) -> None:
            watched.recorder.wait_begins()
            read.append(watched.activity())

    try:
        monkeypatch.setattr(dist.ProcessGroup, "barrier", lambda *_args, **_options: Waited())
        dist.barrier()
    finally:
        dist.destroy_process_group()
    assert read == [Activity.BARRIER]


def test_of_a_step_that_is_not_seen_the_place_is_unknown_and_the_stack_is_read(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.recorder.unseen.optimizer = 1
    began = watched.watch.read()
    assert (began.phase, began.activity) == (Phase.OTHER, Activity.TRAINING)
    assert activity.current_place(watched.recorder) == "", "not after the optimizer: that is not known"
    monkeypatch.setattr(activity, "STACK_READ_NS", 0)
    assert watched.watch.read() == began
    weight = torch.ones(1, requires_grad=True)
    phases = []
    weight.register_hook(lambda _gradient: phases.append(watched.watch.read().phase))
    weight.sum().backward()
    assert phases == [Phase.BACKWARD]
    monkeypatch.setattr(activity, "collective_in", lambda _frame: Activity.BARRIER)
    assert watched.watch.read() == (Phase.OTHER, Activity.BARRIER, began.since_ns)
    watched.recorder.step += 1
    assert watched.watch.read().since_ns > began.since_ns
