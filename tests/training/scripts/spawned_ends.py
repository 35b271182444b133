"""Three children of mp.spawn train a little and end, each in its own way: spawned_ends.py PORT"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def end(rank: int) -> None:
    if rank == 1:
        raise KeyError("theirs")
    if rank == 2:
        sys.exit(3)


def work(rank: int, port: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=3)
    model = DDP(nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    dist.destroy_process_group()
    end(rank)


if __name__ == "__main__":
    children = mp.spawn(work, nprocs=3, args=(sys.argv[1],), join=False)
    for (
        child
    ) in children.processes:  # join() of the context would terminate the others after the first failure
        child.join()
    print([child.exitcode for child in children.processes])
