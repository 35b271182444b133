"""Trains in steps of some 10 ms; rank 1's loader is late in every second window: late.py STEPS WINDOWS MS

The first window of STEPS steps is even, in the second every batch of rank 1 comes MS later, and so on.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH = 320, 4, 48
DATA_S = 0.002


class Batches(Dataset):
    def __init__(self, steps: int, windows: int, late_s: float) -> None:
        self._steps, self._windows, self._late_s = steps, windows, late_s

    def __len__(self) -> int:
        return self._steps * self._windows

    def __getitem__(self, step: int) -> torch.Tensor:
        late = dist.get_rank() == 1 and step // self._steps % 2
        time.sleep(DATA_S + (self._late_s if late else 0))
        return torch.ones(BATCH, WIDTH)


def main() -> None:
    steps, windows, late_ms = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=0.99 * WIDTH * (WIDTH + 1) * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    for x in DataLoader(Batches(steps, windows, late_ms / 1e3), batch_size=None):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
