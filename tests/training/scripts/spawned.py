"""A script that starts its own ranks with mp.spawn: spawned.py FOLDER WORLD PORT"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank: int, world: int, folder: str, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(3)
    model = DDP(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(50 + rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    torch.save(model.module.state_dict(), Path(folder) / f"spawn-{rank}.pt")
    # torch 2.13 may hang for a minute here: the group's end joins a thread that waits for Python's lock.
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, nprocs=int(sys.argv[2]), args=(int(sys.argv[2]), sys.argv[1], sys.argv[3]))
