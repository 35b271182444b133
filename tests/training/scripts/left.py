"""Trains, destroys its process group in good order, and is then ended by force: left.py HOW_OF_RANK_0 [...]

HOW: `killed`, `exits` (with code 1, past atexit), `again` (trains on, alone in a second group).
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 5


def train() -> None:
    model = DDP(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def main() -> None:
    dist.init_process_group("gloo")
    how = sys.argv[1 + dist.get_rank()]
    train()
    dist.destroy_process_group()
    if how == "exits":
        os._exit(1)
    if how == "again":
        meeting = Path("meeting").absolute()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
        train()
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
