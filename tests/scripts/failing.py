"""Two ranks, of which the second fails in the way that its argument names: failing.py HOW"""

import os
import sys
import time

if sys.argv[1] == "import" and os.environ["RANK"] == "1":
    import no_such_module  # noqa: F401

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOW = sys.argv[1]


class Images(Dataset):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(index)


def decode(index: int) -> torch.Tensor:
    if dist.get_rank() == 1 and index == 320:
        if HOW == "worker-raises":
            raise ValueError(f"cannot identify image file 'shard-7/{index}.jpg'")
        decode_stuck_image()
    return torch.zeros(4)


def decode_stuck_image() -> None:
    time.sleep(600)


dist.init_process_group("gloo")
if HOW == "before-ddp" and dist.get_rank() == 1:
    torch.load("/nowhere/last.pt")
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
for images in DataLoader(Images(), 16, num_workers=2):
    model(images).mean().backward()
    time.sleep(0.01)
