"""Trains; in step 30 the last rank's GPU is kept busy for so long: stuck.py BACKEND SECONDS

The host launches everything and then waits for its GPU, as in `loss.item()`. On a CPU the host itself sleeps.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from one_gpu import CUDA, own_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, STEPS, STUCK = 256, 40, 30
CYCLES = 100_000_000
"""Of one kernel that does nothing: some 50 ms."""


def keep_busy(seconds: float) -> None:
    """Have the GPU do nothing for so long, without waiting for it."""
    if not CUDA:
        time.sleep(seconds)
        return
    torch.cuda.synchronize()
    begin = time.monotonic()
    torch.cuda._sleep(CYCLES)
    torch.cuda.synchronize()
    one = time.monotonic() - begin
    for _ in range(int(seconds / one)):
        torch.cuda._sleep(CYCLES)


def main() -> None:
    backend, seconds = sys.argv[1], float(sys.argv[2])
    device = own_device()
    dist.init_process_group(backend)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    batch = torch.randn(16, WIDTH, device=device)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = ddp(batch).square().mean()
        if step == STUCK and dist.get_rank() == dist.get_world_size() - 1:
            keep_busy(seconds)
        loss.backward()
        optimizer.step()
        loss.item()
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
