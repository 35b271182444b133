"""What watching the last gradient leaves of a model as it was, and that it ends with the model."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel as DDP

from ddptop.training import phases
from ddptop.training.phases import LastGradients
from ddptop.training.recorder import Recorder
from tests.training.test_recorder import records_of


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    yield
    dist.destroy_process_group()


class Watched:
    """A model whose last gradients are watched, and a recorder told of its forwards and backwards."""

    def __init__(self, module: nn.Module) -> None:
        self.recorder = Recorder()
        self.watch = LastGradients(self.recorder)
        self.model = DDP(module)
        self.watch.watch_model(self.model)
        self.calls: list[str] = []
        for name in ("last_gradient", "spoil_stamp"):
            setattr(self.recorder, name, self._noting(name))

    def _noting(self, name: str) -> Any:
        original = getattr(self.recorder, name)

        def noted() -> None:
            self.calls.append(name)
            original()

        return noted

    def step(self) -> list[str]:
        """One forward and backward; what the recorder was called with in it."""
        self.calls.clear()
        self.recorder.forward_begins(True)
        loss = self.model(torch.ones(2, 4)).sum()
        self.recorder.forward_ends()
        self.recorder.backward_begins(None)
        loss.backward()
        self.recorder.backward_ends()
        return list(self.calls)

    def exposed(self) -> int:
        """End the step: its exposed communication."""
        self.recorder.optimizer_begins(1)
        self.recorder.optimizer_ends(1)
        self.recorder.finish_step()
        return records_of(self.recorder)[-1].exposed


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


@pytest.mark.usefixtures("group")
def test_each_backward_is_stamped_once_and_the_first_is_left_out() -> None:
    watched = Watched(layers())
    assert watched.step()[0] == "spoil_stamp"
    assert watched.exposed() < 0
    assert watched.step() == ["last_gradient"]
    assert watched.step() == ["last_gradient"]
    assert watched.exposed() > 0


@pytest.mark.usefixtures("group")
def test_nothing_shows_on_a_parameter_and_nothing_is_copied_or_pickled() -> None:
    plain, module = layers(), layers()
    watched = Watched(module)
    watched.step()
    for parameter in module.parameters():
        assert parameter._backward_hooks is None
        assert not getattr(parameter, "_post_accumulate_grad_hooks", None)
        assert vars(parameter) == {}
    assert vars(watched.model).keys() == vars(DDP(plain)).keys()
    copied = copy.deepcopy(module)
    assert list(module.state_dict()) == list(plain.state_dict())
    assert len(pickle.dumps(module.state_dict())) == len(pickle.dumps(plain.state_dict()))
    again = pickle.loads(pickle.dumps(watched.model))
    watched.calls.clear()
    for other in (copied, again):
        other(torch.ones(2, 4)).sum().backward()
    assert watched.calls == []


@pytest.mark.usefixtures("group")
def test_hooks_of_the_users_run_in_their_order_before_the_stamp() -> None:
    watched = Watched(layers())
    parameter = next(watched.model.parameters())
    order = watched.calls
    parameter.register_hook(lambda _: order.append("theirs"))
    parameter.register_post_accumulate_grad_hook(lambda _: order.append("theirs, after"))
    watched.step()
    assert watched.step() == ["theirs", "theirs, after", "last_gradient"]


class Wrapped:
    """What is read of a DDP model."""

    parameters_to_ignore = ()

    def __init__(self, module: nn.Module) -> None:
        self.module = module


def test_a_gradient_is_taken_over_and_not_copied() -> None:
    """A reference that the hook kept would have torch copy every gradient of a watched parameter."""

    def address_kept(model: nn.Module) -> bool:
        given: list[int] = []
        parameter = model[1].bias if isinstance(model, nn.Sequential) else None
        assert parameter is not None
        handle = parameter.register_hook(lambda gradient: given.append(gradient.data_ptr()))
        parameter.grad = None
        (model(torch.ones(2, 4)) ** 2).sum().backward()
        handle.remove()
        assert parameter.grad is not None
        return parameter.grad.data_ptr() == given[0]

    plain, module = layers(), layers()
    expected = address_kept(plain)
    watch = LastGradients(Recorder())
    watch.watch_model(Wrapped(module))
    assert address_kept(module) is expected


@pytest.mark.usefixtures("group")
def test_it_ends_with_the_model_and_at_the_end_of_the_session() -> None:
    module = layers()
    watched = Watched(module)
    watched.step()
    watched.watch.remove_hooks()
    assert watched.step() == []
    nodes = [get_gradient_edge(parameter).node for parameter in module.parameters()]
    other = DDP(module)
    watched.watch.watch_model(other)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    assert nodes
    assert watched.step() == [], "the nodes live on, and their hooks do not"


@pytest.mark.usefixtures("group")
def test_a_model_is_freed_as_without_it() -> None:
    watched = Watched(layers())
    watched.step()
    model = weakref.ref(watched.model)
    parameter = weakref.ref(next(watched.model.parameters()))
    del watched.model
    gc.collect()
    assert model() is None
    assert parameter() is None


@pytest.mark.usefixtures("group")
def test_a_backward_that_is_compiled_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(layers())
    watched.step()
    backward = phases.make_backward(
        watched.recorder, phases.ScaledLoss(), watched.watch, lambda loss: torch.autograd.backward(loss)
    )
    monkeypatch.setattr(phases, "compiles_backward", lambda: True)
    backward(watched.model(torch.ones(2, 4)).sum())
    monkeypatch.undo()
    assert watched.step() == []


@pytest.mark.usefixtures("group")
def test_parameters_that_ddp_ignores_or_nobody_trains_are_not_watched() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    DDP._set_params_and_buffers_to_ignore_for_model(module, ["2.weight", "2.bias"])
    watched = Watched(module)
    watched.step()
    assert watched.step() == ["last_gradient"]
    (module[2](torch.ones(1, 4))).sum().backward()
    assert watched.calls == ["last_gradient"]


@pytest.mark.usefixtures("group")
def test_a_model_of_one_parameter_is_watched() -> None:
    watched = Watched(nn.Linear(4, 2, bias=False))
    watched.step()
    assert watched.step() == ["last_gradient"]
