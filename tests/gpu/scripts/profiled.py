"""Trains under torch's profiler, writes when each bucket's last kernel ended: profiled.py BACKEND OUT BATCH

Alone under NCCL an all-reduce runs no kernel: there a communication hook runs one of its own after it, whose
end is then the bucket's. OUT becomes {"kernels": [ns on CLOCK_MONOTONIC, ...], "buckets": number a step}.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from one_gpu import CUDA, own_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

WIDTH, LAYERS, WARM, PROFILED = 1024, 6, 40, 20

OWN, NCCL = re.compile("sinh"), re.compile("nccl.*AllReduce", re.IGNORECASE)
"""Names of kernels. Nothing else here computes a hyperbolic sine."""


def hook(_state, bucket):  # DDP refuses annotations that are strings
    """All-reduce, and then one kernel that can be told from all others by its name."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].sinh_())


def unix_minus_monotonic() -> int:
    """Nanoseconds, from the closest of some readings."""
    best = (1 << 62, 0)
    for _ in range(20):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        best = min(best, (after - before, unix - (before + after) // 2))
    return best[1]


def ends(profiler: profile, name: re.Pattern[str], offset_ns: int) -> list[int]:
    """When the kernels (on a CPU: the operators) of a name ended, on CLOCK_MONOTONIC."""
    assert profiler.profiler is not None
    kind = torch.autograd.DeviceType.CUDA if CUDA else torch.autograd.DeviceType.CPU
    events = profiler.profiler.kineto_results.events()
    found = [event for event in events if event.device_type() == kind and name.search(event.name())]
    return sorted(event.start_ns() + event.duration_ns() - offset_ns for event in found)


def main() -> None:
    backend, out, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    device = own_device()
    dist.init_process_group(backend)
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    ddp = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=4)
    own = backend != "nccl" or dist.get_world_size() == 1
    if own:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0)
    batch = torch.randn(size, WIDTH, device=device)

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            ddp(batch).square().mean().backward()
            optimizer.step()
        if CUDA:
            torch.cuda.synchronize()

    train(WARM)
    with profile(activities=[ProfilerActivity.CUDA if CUDA else ProfilerActivity.CPU]) as profiler:
        train(PROFILED)
    found = ends(profiler, OWN if own else NCCL, unix_minus_monotonic())
    train(WARM)
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"kernels": found, "buckets": len(found) / PROFILED}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
