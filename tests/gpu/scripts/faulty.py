"""Two ranks, of which the second is at fault from step 60 on, and others: faulty.py WAY STEPS

slow      its GPU takes 30 ms longer in each forward until two thirds of the steps
missing   its host sleeps for some seconds before one backward
assert    one of its kernels fails an assertion
ahead     no fault: the host is so far ahead of the device that its queue is full
graph     one rank: a whole step is captured into a CUDA graph, replayed for some seconds, and steps go on
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from one_gpu import own_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, LARGE, FAULT = 1024, 64, 65536, 60
SLOW_MS, MISSING_S, REPLAYED_S = 30, 12, 6


def cycles(ms: float) -> int:
    """What `torch.cuda._sleep` takes for a time."""
    torch.cuda._sleep(1000)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(50_000_000 * ms / begin.elapsed_time(end))


class Layers(nn.Module):
    """Some linear layers, and as much waiting as is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        )
        self.wait = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.wait:
            torch.cuda._sleep(self.wait)
        return self.layers(batch)


def main() -> None:
    way, steps = sys.argv[1], int(sys.argv[2])
    device = own_device()
    if way == "graph":  # torch's notes on CUDA graphs ask for it
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    last = dist.get_rank() == dist.get_world_size() - 1
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layers = Layers().to(device)
        ddp = DistributedDataParallel(layers, device_ids=[device.index], bucket_cap_mb=4)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
        batch = torch.randn(LARGE if way == "ahead" else BATCH, WIDTH, device=device)
        slow = cycles(SLOW_MS)
        for step in range(steps):
            layers.wait = slow if way == "slow" and last and FAULT <= step < steps * 2 // 3 else 0
            if step == FAULT and way == "graph":
                replay(lambda: train(ddp, optimizer, batch))
            optimizer.zero_grad(set_to_none=True)
            loss = ddp(batch).square().mean()
            if step == FAULT and last and way == "missing":
                time.sleep(MISSING_S)
            if step == FAULT and last and way == "assert":
                torch.zeros(4, device=device)[torch.tensor([9], device=device)].sum()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 and way != "ahead":
                loss.item()
        torch.cuda.synchronize()
    dist.destroy_process_group()


def train(ddp: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step."""
    optimizer.zero_grad(set_to_none=True)
    ddp(batch).square().mean().backward()
    optimizer.step()


def replay(step) -> None:
    """Capture a step, and replay it for some seconds."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    end = time.monotonic() + REPLAYED_S
    while time.monotonic() < end:
        for _ in range(100):
            graph.replay()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
