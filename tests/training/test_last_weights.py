"""At the end of a training its weights are read once: the losses of its last steps may not have been."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddptop.protocol.messages import BAD_WEIGHTS, Event
from ddptop.recording.reader import Recording
from ddptop.training.last_weights import MOST_ELEMENTS, are_weights_bad
from tests.processes import DDPTOP_RUN, environment, run

NAN = float("nan")


def model_after_step(loss_factor: float = 1.0) -> torch.nn.Module:
    """A model after one step of its training, with the gradients of that."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.ones(3, 4)).sum() * loss_factor).backward()
    optimizer.step()
    return model


@pytest.mark.parametrize("frees_gradients", [False, True])
@pytest.mark.parametrize(("loss_factor", "is_bad"), [(1.0, False), (NAN, True)])
def test_weights_after_a_nan_loss_are_found_and_nothing_changes(
    loss_factor: float, is_bad: bool, frees_gradients: bool
) -> None:
    model = model_after_step(loss_factor)
    if frees_gradients:
        model.zero_grad(set_to_none=True)
    before, state = [weights.clone() for weights in model.parameters()], torch.get_rng_state()
    assert are_weights_bad(model) is is_bad
    for weights, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(weights.nan_to_num(7.0), old.nan_to_num(7.0))
        assert weights.requires_grad and (weights.grad is None) is frees_gradients
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("value", [NAN, -float("inf")])
def test_a_parameter_of_a_healthy_model_may_be_no_number(value: float, has_gradients: bool) -> None:
    """An output layer of `torch.empty` that is not used; a mask."""
    model = model_after_step() if has_gradients else torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.register_parameter("other", torch.nn.Parameter(torch.full((2,), value)))
    assert not are_weights_bad(model)


def test_parameters_without_a_gradient_do_not_count_where_others_have_one() -> None:
    model = model_after_step()
    for number in range(8):
        model.register_parameter(f"unused{number}", torch.nn.Parameter(torch.full((1,), NAN)))
    assert not are_weights_bad(model)
    bad = model_after_step(NAN)
    for number in range(8):
        bad.register_parameter(f"unused{number}", torch.nn.Parameter(torch.ones(1)))
    assert are_weights_bad(bad)


def test_masks_that_are_trained_with_infinities_are_healthy() -> None:
    model = torch.nn.ParameterList(torch.full((2,), -float("inf")) for _ in range(3))
    assert not are_weights_bad(model)


def test_one_tensor_alone_says_it_if_it_is_trained_or_the_only_one() -> None:
    large = torch.nn.Parameter(torch.ones(MOST_ELEMENTS + 1))
    small = torch.nn.Parameter(torch.full((2,), NAN))
    assert are_weights_bad(torch.nn.ParameterList([small]))
    assert not are_weights_bad(torch.nn.ParameterList([small, large]))
    small.grad = torch.full((2,), NAN)
    assert are_weights_bad(torch.nn.ParameterList([small, large]))


def test_without_a_model_or_small_weights_nothing_is_read() -> None:
    assert not are_weights_bad(None)
    large = torch.nn.Linear(1, MOST_ELEMENTS + 1, bias=False)
    with torch.no_grad():
        large.weight[0] = NAN
    assert not are_weights_bad(large)
    frozen = model_after_step(NAN).requires_grad_(False)
    assert not are_weights_bad(frozen)


class Subclass(torch.Tensor):
    """A tensor that fails whatever it is asked, as one of a library may."""

    @classmethod
    def __torch_function__(cls, *arguments: object, **named: object) -> object:
        raise AssertionError("was asked")


def freed_parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.untyped_storage().resize_(0)  # to read this ends the process
    return parameter


UNREADABLE = {
    "sparse": lambda: torch.nn.Parameter(torch.eye(2).to_sparse()),
    "csr": lambda: torch.nn.Parameter(torch.eye(2).to_sparse_csr()),
    "float8": lambda: torch.nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn)),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "lazy": torch.nn.UninitializedParameter,
    "meta": lambda: torch.nn.Parameter(torch.empty(2, device="meta")),
    "subclass": lambda: torch.ones(2).as_subclass(Subclass),
    "freed": freed_parameter,
    "empty": lambda: torch.nn.Parameter(torch.empty(0)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*quantiz")
@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_left_out_and_the_others_are_read(kind: str) -> None:
    for loss_factor in (1.0, NAN):
        parameters = [UNREADABLE[kind](), *model_after_step(loss_factor).parameters()]
        model = SimpleNamespace(parameters=lambda parameters=parameters: iter(parameters))
        assert are_weights_bad(model) is isnan(loss_factor)


SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.ones(2, 4)).sum() * (float("nan") if step == 4 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if sys.argv[1] == "destroys":
    dist.destroy_process_group()
if sys.argv[1] == "exits":
    sys.exit(7)
"""


@pytest.mark.parametrize(("way", "failed"), [("destroys", False), ("returns", False), ("exits", True)])
def test_a_run_says_it_however_it_ends(tmp_path: Path, way: str, failed: bool) -> None:
    script, recording = tmp_path / "train.py", tmp_path / "train.ddptop"
    script.write_text(SCRIPT)
    command = [*DDPTOP_RUN, "--ddptop-record", str(recording), str(script), way]
    done = run(command, environment(tmp_path), tmp_path)
    assert (done.returncode != 0) is failed, done.stderr
    with Recording.open(recording) as opened:
        events = [item.message for item in opened.records() if isinstance(item.message, Event)]
    assert {event.step for event in events if event.kind == BAD_WEIGHTS} == {4}
