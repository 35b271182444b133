"""Two ranks of mp.spawn train until something ends them: spawned_loop.py PORT"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.02)


if __name__ == "__main__":
    mp.spawn(work, nprocs=2, args=(sys.argv[1],))
