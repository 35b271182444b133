"""Trains with equal ranks, whose batches take a random while, for some time: healthy.py SECONDS"""

import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

BATCH_S = (0.002, 0.008)


class Batches(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(random.uniform(*BATCH_S))
            yield torch.randn(16, 256)


def main() -> None:
    end = time.monotonic() + float(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(dist.get_rank())
    model = DDP(nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    go_on = torch.ones(1)
    for step, x in enumerate(DataLoader(Batches(), batch_size=None)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step % 100 == 99:
            go_on.fill_(time.monotonic() < end)
            dist.broadcast(go_on, 0)  # all ranks end at the same step
            if not go_on:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
