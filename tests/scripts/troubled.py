"""A plain DDP script in which something goes wrong at step 40: troubled.py TROUBLE STEPS FOLDER

TROUBLE is what rank 1 does then: `asleep` in user code until FOLDER/go exists, `barrier` that it leaves
out, a tensor of another `size`, `kill` itself, `leave` with exit code 0 (`vanish`: past everything that is
registered for the exit), two groups used in the `order` opposite to the others', a C call that holds the
interpreter `lock`, a DataLoader `worker` that sleeps, `late` for init_process_group, `none`. `timeout`: as
`asleep`, and the others' collectives time out after 8 s. `barriers`: rank 1 calls one more than the others
at the end. `checkpoint`:
rank 0 is in `save_checkpoint` until FOLDER/go exists, the others wait in a barrier. Writes FOLDER/trouble
when it begins, and at the end the weights of each rank as FOLDER/weights-RANK.pt.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEP = 40


def tokenize(folder: Path) -> None:
    while not (folder / "go").exists():
        time.sleep(0.05)


def save_checkpoint(folder: Path) -> None:
    tokenize(folder)


class Slow(Dataset[int]):
    """A sample that never comes."""

    def __getitem__(self, index: int) -> int:
        time.sleep(600)
        return index

    def __len__(self) -> int:
        return 8


def next_batch() -> None:
    next(iter(DataLoader(Slow(), num_workers=2)))


def trouble(kind: str, folder: Path) -> None:
    culprit = dist.get_rank() == 1
    if culprit:
        (folder / "trouble").touch()
    if kind in ("asleep", "timeout") and culprit:
        tokenize(folder)
    elif kind == "barrier" and not culprit:
        dist.barrier()
    elif kind == "size":
        dist.all_reduce(torch.ones(2000 if culprit else 1000))
    elif kind == "kill" and culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "leave" and culprit:
        sys.exit(0)
    elif kind == "vanish" and culprit:
        os._exit(0)
    elif kind == "order":
        groups = [dist.new_group(), dist.new_group()]
        for group in groups[::-1] if culprit else groups:
            dist.all_reduce(torch.ones(4), group=group)
    elif kind == "lock" and culprit:
        ctypes.PyDLL(None).sleep(600)
    elif kind == "worker" and culprit:
        next_batch()
    elif kind == "checkpoint":
        if dist.get_rank() == 0:
            save_checkpoint(folder)
        dist.barrier()


def main() -> None:
    kind, steps, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    if kind == "late" and os.environ["RANK"] == "1":
        tokenize(folder)
    patience = timedelta(seconds=8) if kind == "timeout" else None
    dist.init_process_group("gloo", timeout=patience)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))), bucket_cap_mb=0.004)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32, generator=generator)).square().mean()
        if step == STEP:
            trouble(kind, folder)
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    torch.save(model.module.state_dict(), folder / f"weights-{dist.get_rank()}.pt")
    try:
        for _ in range(2 if kind == "barriers" and dist.get_rank() == 1 else 1):
            dist.barrier()
    except RuntimeError:
        time.sleep(2)  # so that the others have left: the launcher ends who is not done when it exits
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
