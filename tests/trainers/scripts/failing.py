"""Trains until rank 1's own code raises at step 10: failing.py FOLDER [spawn]

With `spawn` it starts two ranks itself; else it takes the place that its launcher gave it. Writes
FOLDER/failed just before.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import ddptop

FAILS_AT = 10


def augment(x: torch.Tensor, rank: int, step: int, folder: Path) -> torch.Tensor:
    if rank == 1 and step == FAILS_AT:
        (folder / "failed").touch()
        raise ValueError("a label of -1 in shard 7")
    return x


def train(_rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with ddptop.setup() as group:
        model = group.wrap(nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(10_000):
            optimizer.zero_grad()
            model(augment(torch.ones(4, 16), group.rank, step, folder)).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    if sys.argv[2:] == ["spawn"]:
        ddptop.spawn(train, 2, args=(Path(sys.argv[1]),))
    else:
        train(0, Path(sys.argv[1]))
