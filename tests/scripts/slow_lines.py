"""A plain DDP script whose rank 1 does something slow in each step: slow_lines.py STEPS PLACE:KIND...

KIND is what is slow, the name of one of `SLOW`, for some 20 ms; each stretch has STEPS steps, and then as
many without. The lines that are to be found are those of the function of this name.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

SLOW_S = float(os.environ.get("SLOW_S", "0.02"))
EVEN_STEPS = 60


def sleep() -> None:
    time.sleep(SLOW_S)


def loop() -> int:
    end = time.monotonic() + SLOW_S
    total = 0
    while time.monotonic() < end:
        total += total % 7
    return total


def read_file() -> int:
    end = time.monotonic() + SLOW_S
    size = 0
    while time.monotonic() < end:
        size += len(PATH.read_bytes())
    return size


def sort_array() -> None:
    end = time.monotonic() + SLOW_S
    while time.monotonic() < end:
        np.sort(ARRAY)


def save() -> None:
    with tempfile.TemporaryFile() as file:
        end = time.monotonic() + 4.0
        while time.monotonic() < end:
            file.seek(0)
            torch.save(TENSOR, file)


SLOW = {function.__name__: function for function in (sleep, loop, read_file, sort_array)}
ARRAY = np.random.default_rng(0).random(20_000)
TENSOR = torch.zeros(2_000_000)
PATH = next(Path(torch.__file__).parent.glob("lib/libtorch_python.*"))
"""A file of some MB."""


class Plan:
    """What is slow in which step."""

    def __init__(self, words: list[str], steps: int, slow: bool) -> None:
        self.slow_at: list[tuple[str, str]] = [("", "")] * EVEN_STEPS
        for word in words:
            place, _, kind = word.partition(":")
            self.slow_at += [(place, kind)] * (1 if kind == "save" else steps) + [("", "")] * EVEN_STEPS
        self.step = 0
        self._slow = slow

    def reach(self, place: str, step: int) -> None:
        """Be slow, if the plan says so."""
        slow_place, kind = self.slow_at[step]
        if self._slow and slow_place == place:
            SLOW[kind]() if kind != "save" else save()


class Samples(Dataset):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        return len(self._plan.slow_at)

    def __getitem__(self, index: int) -> torch.Tensor:
        self._plan.reach("data", index)
        return torch.ones(4, 16)


class Net(nn.Module):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self._plan = plan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._plan.reach("forward", self._plan.step)
        return self.layer(x)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = Plan(sys.argv[2:], int(sys.argv[1]), slow=dist.get_rank() == 1)
    model = DDP(Net(plan))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step, x in enumerate(DataLoader(Samples(plan), batch_size=None)):
        plan.step = step
        plan.reach("before_forward", step)
        loss = model(x).square().mean()
        plan.reach("before_backward", step)
        loss.backward()
        plan.reach("before_optimizer", step)
        optimizer.step()
        plan.reach("after_optimizer", step)
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
