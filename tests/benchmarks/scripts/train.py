"""Trains for a while and prints what it cost this rank, as JSON: train.py LAYERS WIDTH STEPS

Plain DDP on gloo, SGD, a bucket for each layer; knows nothing of ddptop.
"""

import json
import sys
import time

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 0.5
"""As a share of the steps measured: imports, the first layouts and the choice of sampling lie behind."""


def main() -> None:
    depth, width, steps = (int(word) for word in sys.argv[1:])
    warm_up = int(steps * WARM_UP)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    size_mb = width * (width + 1) * 4 / 2**20
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=size_mb * 0.99)  # a bucket for each layer
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-7
    )  # the loss must not fall to denormal numbers, which are slow
    batch = 16
    data = TensorDataset(torch.randn(batch * (steps + warm_up), width))
    wall = cpu = 0.0
    for step, (x,) in enumerate(DataLoader(data, batch_sampler=Slices(len(data), batch))):
        if step == warm_up:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.barrier()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = psutil.Process().memory_full_info()
    dist.barrier()
    time.sleep(0.1 * dist.get_rank())  # two lines, not one
    print(json.dumps({"wall": wall / steps, "cpu": cpu / steps, "uss": memory.uss}), flush=True)
    dist.destroy_process_group()


class Slices:
    """Batches of neighbouring samples: drawing them costs next to nothing."""

    def __init__(self, samples: int, batch: int) -> None:
        self._starts = range(0, samples, batch)
        self._batch = batch

    def __iter__(self):
        return (range(start, start + self._batch) for start in self._starts)

    def __len__(self) -> int:
        return len(self._starts)


if __name__ == "__main__":
    main()
