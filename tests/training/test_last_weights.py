"""At the end of a training its weights are read once: the losses of its last steps may not have been."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddptop.protocol.messages import BAD_WEIGHTS, Event
from ddptop.recording.reader import Recording
from ddptop.training.last_weights import MOST_ELEMENTS, are_weights_bad
from tests.processes import DDPTOP_RUN, environment, run


def model_with(value: float) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        model[0].bias[1] = value
    return model


@pytest.mark.parametrize(("value", "is_bad"), [(1.0, False), (float("nan"), True), (float("inf"), True)])
def test_a_weight_that_is_no_number_is_found_and_nothing_changes(value: float, is_bad: bool) -> None:
    model = model_with(value)
    before, state = [weights.clone() for weights in model.parameters()], torch.get_rng_state()
    assert are_weights_bad(model) is is_bad
    for weights, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(weights.nan_to_num(7.0), old.nan_to_num(7.0))
        assert weights.requires_grad and weights.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_model_or_small_weights_nothing_is_read() -> None:
    assert not are_weights_bad(None)
    large = torch.nn.Linear(1, MOST_ELEMENTS + 1, bias=False)
    with torch.no_grad():
        large.weight[0] = float("nan")
    assert not are_weights_bad(large)
    model = model_with(float("nan"))
    model[0].bias.requires_grad_(False)
    assert not are_weights_bad(model)


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
