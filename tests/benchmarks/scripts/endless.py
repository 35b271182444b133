"""Trains until it is killed: endless.py LAYERS WIDTH FOLDER

The same training as train.py. Each rank notes when its steps ended, in FOLDER/RANK: the process's id, the
number of steps, then a ring of times in ns, and one of the CPU time of the process.
`tests.benchmarks.bench_outside` reads it.
"""

import contextlib
import mmap
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from tests.benchmarks.scripts.train import Slices

RING = 1 << 16
SIZE = 8 * (2 + 2 * RING)
BATCHES = 1_000
"""In an epoch."""


def notes(path: Path, mode: str) -> np.ndarray:
    """The int64 numbers that a rank and the benchmark share: [process, steps, *ends, *CPU times]."""
    with path.open(mode) as file:
        if "+" in mode:
            file.truncate(SIZE)
        writable = mmap.ACCESS_WRITE if "+" in mode else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(file.fileno(), SIZE, access=writable), dtype=np.int64)


def main() -> None:
    depth, width = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    size_mb = width * (width + 1) * 4 / 2**20
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=size_mb * 0.99)  # a bucket for each layer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    data = TensorDataset(torch.randn(16 * BATCHES, width))
    loader = DataLoader(data, batch_sampler=Slices(len(data), 16))
    step_of = contextlib.nullcontext
    if os.environ.get("BENCH_TRACEML"):
        import traceml_ai

        traceml_ai.init(mode="auto")
        step_of = traceml_ai.trace_step
    noted = notes(Path(sys.argv[3]) / str(dist.get_rank()), "w+b")
    noted[0] = os.getpid()
    step = 0
    while True:
        for (x,) in loader:
            with step_of(model.module):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            noted[2 + step % RING] = time.monotonic_ns()
            noted[2 + RING + step % RING] = time.process_time_ns()
            step += 1
            noted[1] = step


if __name__ == "__main__":
    main()
