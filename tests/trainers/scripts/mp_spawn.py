"""Two ranks by torch's own mp.spawn, of which rank 1's code raises: mp_spawn.py FOLDER PORT

The first process goes on until FOLDER/looked is there, as a notebook or a server does, and then raises.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

FAILS_AT = 10
DEADLINE_S = 100.0


def augment(x: torch.Tensor, rank: int, step: int) -> torch.Tensor:
    if rank == 1 and step == FAILS_AT:
        raise ValueError("a label of -1 in shard 7")
    return x


def train(rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DDP(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10_000):
        optimizer.zero_grad()
        model(augment(torch.ones(4, 16), rank, step)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    try:
        mp.spawn(train, args=(sys.argv[2],), nprocs=2)
    finally:
        end = time.monotonic() + DEADLINE_S
        while not Path(sys.argv[1], "looked").exists() and time.monotonic() < end:
            time.sleep(0.02)
