"""Trains a few layers on the GPU; `train.py BACKEND STEPS OUT [--no-sync]`.

With --no-sync every synchronisation that the training thread causes after the first steps is an error, as
`torch.cuda.set_sync_debug_mode` has it: the script itself causes none.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, WARM = 1024, 256, 10


def main() -> None:
    backend, steps, out, strict = sys.argv[1], int(sys.argv[2]), sys.argv[3], "--no-sync" in sys.argv
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))).to(
        device
    )
    ddp = DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=8)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    batches = [torch.randn(BATCH, WIDTH, generator=generator).pin_memory() for _ in range(8)]
    for step in range(steps):
        if strict and step == WARM:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        loss = ddp(batches[step % 8].to(device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    if dist.get_rank() == 0:
        torch.save([parameter.cpu() for parameter in model.parameters()], out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
