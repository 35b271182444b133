"""DDP scripts whose gradients are not all-reduced as they seem to be: unsynchronised.py bypass|several STEPS

`bypass`: the loss goes through `ddp.module`. `several`: the last micro-step of a second model, `Critic`, runs
under `no_sync()`; and rank 1 skips the batch of step 10 after its forward, the other ranks the last one.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SKIPPED = 10


class Critic(nn.Sequential):
    """The second model."""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, (mode, steps) = dist.get_rank(), (sys.argv[1], int(sys.argv[2]))
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)))
    critic = DDP(Critic(nn.Linear(8, 8)))
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-2) for each in (model, critic)]
    torch.manual_seed(1 + rank)
    for step in range(steps):
        forward = model.module if mode == "bypass" else model
        loss = forward(torch.randn(4, 8)).square().mean()
        if mode == "several" and step == (SKIPPED if rank == 1 else steps - 1):
            continue
        loss.backward()
        if mode == "several":
            critic(torch.randn(4, 8)).square().mean().backward()
            with critic.no_sync():
                critic(torch.randn(4, 8)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
