"""Trains a few layers, on the GPU where there is one: train.py BACKEND STEPS OUT [WAY ...]

no-sync       every synchronisation after the first steps is an error, as `torch.cuda.set_sync_debug_mode` has
              it, on every thread: the script itself causes none
log           logs scalars that are on the GPU
hook          compresses gradients to fp16
amp           mixed precision with a gradient scaler (which synchronises by itself)
elsewhere     the model goes to the last GPU, and `torch.cuda.set_device` is never called
workers       batches come from forked DataLoader workers, made anew for every epoch
graphs        captures a CUDA graph of its own between steps, in the mode that forbids all threads to look
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from one_gpu import CUDA, own_device
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import ddptop

WIDTH, BATCH, WARM, EPOCH = 1024, 256, 10, 8
GRAPH_EVERY, GRAPH_KERNELS = 10, 2000
"""Capturing so many kernels takes some 20 ms: sooner or later the publisher looks at events meanwhile."""


def where(*, elsewhere: bool) -> torch.device:
    """This rank's device."""
    if CUDA and elsewhere:
        return torch.device("cuda", torch.cuda.device_count() - 1)
    return own_device()


def epochs(rank: int, *, workers: bool) -> Iterator[torch.Tensor]:
    """Batches without end, the same in every run."""
    generator = torch.Generator().manual_seed(1 + rank)
    data = torch.randn(EPOCH * BATCH, WIDTH, generator=generator)
    loader = DataLoader(TensorDataset(data), BATCH, num_workers=2 if workers else 0, pin_memory=CUDA)
    while True:
        for (batch,) in loader:
            yield batch


def capture(device: torch.device) -> None:
    """A graph of many small kernels, and its replay."""
    if not CUDA:
        return
    values, graph = torch.ones(8, device=device), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_KERNELS):
            values.mul_(1.0)
    graph.replay()


def main() -> None:
    backend, steps, out, *ways = sys.argv[1:]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS is not deterministic
    device = where(elsewhere="elsewhere" in ways)
    dist.init_process_group(backend)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if CUDA else None, bucket_cap_mb=8)
    if "hook" in ways:
        ddp.register_comm_hook(None, fp16_compress_hook)
    scaler = torch.amp.GradScaler(device.type, enabled="amp" in ways)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batches = epochs(dist.get_rank(), workers="workers" in ways)
    for step in range(int(steps)):
        batch = next(batches).to(device, non_blocking=True)
        if "no-sync" in ways and step == WARM and CUDA:
            torch.cuda.set_sync_debug_mode("error")
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled="amp" in ways):
            loss = ddp(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if "log" in ways:
            ddptop.log(loss=loss, largest=batch.max())
        if "graphs" in ways and step % GRAPH_EVERY == 0:
            capture(device)
    if CUDA:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        torch.save([parameter.cpu() for parameter in model.parameters()], out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
