"""Which gradients an optimizer used were all-reduced, told from what a script does with a real DDP model."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from ddptop.training.phases import LastGradients
from ddptop.training.recorder import Recorder
from ddptop.training.synchronisation import FIRST_REPORTS, MOST_REPORTS, USUAL_AFTER, SynchronisationWatch
from tests.training.test_recorder import records_of


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of this process alone; the models are watched as if another rank had them, too."""
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    yield
    dist.destroy_process_group()


class Net(nn.Sequential):
    """Two layers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 4), nn.Linear(4, 2))


class Script:
    """A training script, and what the wrappers around torch call for it."""

    def __init__(self, *modules: nn.Module, **options: Any) -> None:
        self.recorder = Recorder()
        self.reports: list[tuple[str, int, dict[str, Any]]] = []
        self.watch = SynchronisationWatch(self.recorder, lambda *report: self.reports.append(report))
        self.last_gradients = LastGradients(self.recorder)
        self.models = [DDP(module, **options) for module in modules or (Net(),)]
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in self.models]
        for number, model in enumerate(self.models):
            watched = self.watch.watch_model(model, number, 2)
            assert watched is not None
            self.last_gradients.watch_model(model, watched.note_gradient)

    def forward(self, model: int = 0) -> torch.Tensor:
        """The loss of a DDP forward."""
        ddp = self.models[model]
        self.recorder.forward_begins(ddp.require_backward_grad_sync)
        self.watch.forward_begins(ddp)
        output = ddp(torch.randn(3, 4))
        self.recorder.forward_ends()
        return output.square().mean()

    def bypass(self, model: int = 0) -> torch.Tensor:
        """The loss of a forward past DDP."""
        return self.models[model].module(torch.randn(3, 4)).square().mean()

    def backward(self, loss: torch.Tensor) -> None:
        self.recorder.backward_begins(None)
        loss.backward()
        self.recorder.backward_ends()

    def step(self, model: int = 0) -> None:
        optimizer = self.optimizers[model]
        self.recorder.optimizer_begins(id(optimizer))
        if self.watch.has_unreduced:
            self.watch.optimizer_begins(optimizer)
        optimizer.step()
        if self.watch.has_unreduced:
            self.watch.optimizer_ends(optimizer)
        self.recorder.optimizer_ends(id(optimizer))
        optimizer.zero_grad()

    def reasons(self) -> list[tuple[int, int, str]]:
        """Step, model and reason of each report of unreduced gradients."""
        return [(step, of["model"], of["why"]) for kind, step, of in self.reports if kind == "unreduced"]

    def skipped(self) -> list[tuple[int, int, int]]:
        """Step, forwards without a backward, and how many of them were to be all-reduced, of each report."""
        return [
            (step, of["forwards"], of["prepared"])
            for kind, step, of in self.reports
            if kind == "skipped_backward"
        ]


def test_a_plain_training_is_not_reported() -> None:
    script = Script()
    for _ in range(5):
        script.backward(script.forward())
        script.step()
    assert not script.reports


def test_a_forward_past_ddp_is_reported_in_each_of_the_first_steps_and_ends_steps() -> None:
    script = Script()
    for _ in range(3):
        script.backward(script.bypass())
        script.step()
    assert script.reasons() == [(0, 0, "bypass"), (1, 0, "bypass"), (2, 0, "bypass")]
    first = script.reports[0][2]
    assert (first["name"], first["count"], first["averaged"]) == ("Net", 1, False)
    script.recorder.finish_step()
    assert script.recorder.step == 3
    first_record, second, third = records_of(script.recorder)
    assert 0 < first_record.begin < first_record.end == second.begin < second.end == third.begin
    assert [record.micro_steps for record in (first_record, second, third)] == [1, 1, 1]
    assert max(record.exposed for record in (first_record, second, third)) < 0, "no rank waits for another"


def test_a_script_that_no_longer_calls_ddps_forward_goes_on_with_its_steps() -> None:
    script = Script()
    for step in range(6):
        script.backward(script.forward() if step < 3 else script.bypass())
        script.step()
    script.recorder.finish_step()
    assert script.recorder.step == 5, "the first bypass is not known before its optimizer's step"
    assert script.reasons() == [(2, 0, "bypass"), (3, 0, "bypass"), (4, 0, "bypass")]


def test_reports_become_rare() -> None:
    script = Script()
    for _ in range(40):
        script.backward(script.bypass())
        script.step()
    counts = [of["count"] for _, _, of in script.reports]
    assert counts == [*range(1, FIRST_REPORTS + 1), 16, 32]


def test_the_checksum_follows_the_parameters() -> None:
    script, other = Script(), Script()
    for one in (script, other):
        torch.manual_seed(1)
        for _ in range(2):
            one.backward(one.bypass())
            one.step()
    sums = [of["checksum"] for _, _, of in script.reports]
    assert sums == [of["checksum"] for _, _, of in other.reports]
    assert None not in sums and sums[0] != sums[1]


def test_parameters_that_the_script_changes_between_steps_are_reported_in_later_steps_too() -> None:
    script = Script()
    for step in range(30):
        script.backward(script.bypass())
        script.step()
        if step in (20, 25):
            with torch.no_grad():
                script.models[0].module[0].weight.mul_(0.5)
    steps = [step for _, step, _ in script.reports]
    assert steps == [*range(FIRST_REPORTS), 15, 21, 26]


def test_accumulation_is_right_where_the_last_backward_is_all_reduced() -> None:
    script = Script()
    for _ in range(3):
        for micro in range(4):
            with script.models[0].no_sync() if micro < 3 else nullcontext():
                script.backward(script.forward())
        script.step()
    assert not script.reports


def test_a_last_backward_under_no_sync_is_reported() -> None:
    script = Script()
    for _ in range(2):
        for micro in range(4):
            with nullcontext() if micro == 0 else script.models[0].no_sync():
                script.backward(script.forward())
        script.step()
    assert script.reasons() == [(0, 0, "no_sync"), (1, 0, "no_sync")]


def test_no_sync_around_backward_alone_changes_nothing() -> None:
    script = Script()
    loss = script.forward()
    with script.models[0].no_sync():
        script.backward(loss)
    script.step()
    assert not script.reports


def test_of_two_backwards_after_one_forward_the_second_is_not_all_reduced() -> None:
    script = Script()
    first, second = script.forward(), script.forward()
    script.backward(first)
    script.backward(second)
    script.step()
    assert script.reasons() == [(0, 0, "again")]


def test_a_backward_before_the_one_that_is_all_reduced_does_no_harm() -> None:
    script = Script()
    script.backward(script.bypass())
    script.backward(script.forward())
    script.step()
    assert not script.reports


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations_are_a_part_of_their_backward(reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self[0](x)
            return checkpoint(self[1], hidden, use_reentrant=reentrant)  # type: ignore[no-any-return]

    script = Script(Checkpointed(), static_graph=reentrant)
    for _ in range(3):
        script.backward(script.forward())
        script.step()
    assert not script.reports


def test_several_forwards_before_a_backward_are_usual_where_each_backward_has_them() -> None:
    script = Script(find_unused_parameters=True)
    for _ in range(3):
        script.backward(script.forward() + script.forward())
        script.step()
    assert not script.reports


def test_a_skipped_backward_is_reported_with_its_step() -> None:
    script = Script()
    for step in range(4):
        loss = script.forward()
        if step == 2:
            continue
        script.backward(loss)
        script.step()
    assert script.skipped() == [(2, 1, 1)]
    assert not script.reasons()


def test_a_skipped_micro_step_lacks_no_all_reduce() -> None:
    script = Script()
    for step in range(2):
        for micro in range(3):
            with script.models[0].no_sync() if micro < 2 else nullcontext():
                loss = script.forward()
                if (step, micro) != (1, 0):
                    script.backward(loss)
        script.step()
    assert script.skipped() == [(1, 1, 0)]


def test_forwards_of_an_evaluation_are_no_skipped_ones() -> None:
    script = Script()
    for _ in range(2):
        script.backward(script.forward())
        script.step()
        script.models[0].eval()
        script.forward()
        script.models[0].train()
    assert not script.reports


def test_what_comes_before_every_backward_becomes_usual() -> None:
    script = Script()
    script.backward(script.forward())
    script.step()
    for _ in range(2 * USUAL_AFTER):
        script.forward()
        script.backward(script.forward())
        script.step()
    assert len(script.skipped()) == USUAL_AFTER - 1


def test_reports_are_bounded() -> None:
    script = Script()
    script.backward(script.forward())
    script.step()
    for step in range(2 * MOST_REPORTS + 100):
        if step % 2:
            script.forward()
        script.backward(script.forward())
        script.step()
    assert len(script.skipped()) <= MOST_REPORTS


def test_gradients_of_a_model_that_the_optimizer_does_not_step_are_its_own_affair() -> None:
    """A GAN: the discriminator gets gradients in the generator's backward, past its own DDP."""
    generator, critic = nn.Sequential(nn.Linear(4, 4)), Net()
    script = Script(generator, critic)
    for _ in range(3):
        script.backward(script.forward(1))
        script.step(1)
        fake = script.models[0](torch.randn(3, 4))
        script.recorder.forward_begins(True)
        script.watch.forward_begins(script.models[0])
        script.backward(script.models[1].module(fake).square().mean())
        script.step(0)
        script.optimizers[1].zero_grad()
    assert not script.reports


def test_an_optimizer_without_gradients_steps_nothing() -> None:
    script = Script()
    with script.models[0].no_sync():
        script.backward(script.forward())
    script.optimizers[0].zero_grad()
    script.step()
    assert not script.reports


def test_of_two_models_the_one_past_ddp_is_named_and_steps_are_those_of_the_other() -> None:
    script = Script(Net(), nn.Sequential(nn.Linear(4, 4)))
    for _ in range(2):
        script.backward(script.forward(0))
        script.step(0)
        script.backward(script.bypass(1))
        script.step(1)
    assert script.reasons() == [(0, 1, "bypass"), (1, 1, "bypass")]
    assert script.reports[0][2]["name"] == "Sequential"


def test_one_of_two_ddp_models_over_the_same_module_is_enough() -> None:
    module = Net()
    script = Script(module, module)
    for _ in range(2):
        script.backward(script.forward(1))
        script.step(1)
    assert not script.reports


def test_what_happened_while_the_recorder_stood_aside_is_forgotten() -> None:
    script = Script()
    with script.models[0].no_sync():
        script.backward(script.forward())
    script.watch.forget_backwards()
    script.step()
    assert not script.reports


def test_a_forward_before_the_recorder_came_back_is_no_bypass() -> None:
    # A GAN: the generator's forward lies in the step before, which the discriminator's optimizer ends.
    script = Script(Net(), Net())
    fake = script.forward()
    script.backward(script.forward(1))
    script.step(1)
    script.watch.forget_backwards()
    script.backward(fake + script.forward(1))
    script.step()
    assert not script.reports
    script.backward(script.bypass())
    script.step()
    assert [why for _, _, why in script.reasons()] == ["bypass"]


def test_a_rank_alone_is_not_watched() -> None:
    watch = SynchronisationWatch(Recorder(), lambda *_: pytest.fail("nothing is to be reported"))
    assert watch.watch_model(DDP(Net()), 0, 1) is None


def test_the_watch_keeps_no_model_alive_and_is_not_copied() -> None:
    script = Script()
    gone = weakref.ref(script.models[0].module)
    copied = copy.deepcopy(script.models[0].module)
    copied(torch.randn(3, 4)).sum().backward()
    assert not script.watch.has_unreduced
    script.models.clear()
    script.optimizers.clear()
    gc.collect()
    assert gone() is None


def test_without_a_torch_optimizer_a_backward_past_ddp_ends_a_step() -> None:
    script = Script()
    script.recorder = Recorder(optimizer_exists=lambda: False)
    script.watch = SynchronisationWatch(script.recorder, lambda *report: script.reports.append(report))
    watched = script.watch.watch_model(script.models[0], 0, 2)
    assert watched is not None
    script.last_gradients.watch_model(script.models[0], watched.note_gradient)
    for _ in range(4):
        script.backward(script.bypass())
    script.recorder.finish_step()
    assert script.recorder.step == 4
    assert script.reasons() == [(step, 0, "bypass") for step in range(4)]
    for record in records_of(script.recorder):
        assert 0 < record.begin < record.end
        assert record.micro_steps == 1
