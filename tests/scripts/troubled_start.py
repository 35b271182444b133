"""Gets into trouble before its first step, until there is a file `go` or a minute and a half have passed.

`troubled_start.py TROUBLE PORT [spawn]`: as a rank of torchrun, as a task of Slurm, or with `spawn` as the
parent of two ranks, which may be a task of Slurm too. Each rank leaves a file `at-RANK` where it comes to its
trouble.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

END_S = 90
trouble, port = sys.argv[1], int(sys.argv[2])


def wait_for_license() -> None:
    end = time.monotonic() + END_S
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)


def snapshot_download() -> None:
    end = time.monotonic() + END_S
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)


def preprocess_dataset() -> None:
    end = time.monotonic() + END_S
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)


def train(rank: int, world_size: int) -> None:
    Path(f"at-{rank}").touch()
    if trouble == "import_slow" and rank == 1:
        sys.path.insert(0, ".")
        import slow_module  # noqa: F401
    if trouble == "hang_init" and rank == 1:
        wait_for_license()
    if trouble == "wrong_port":
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        os.environ["MASTER_PORT"] = str(port + rank)
    if trouble == "world_size_too_large":
        world_size = 3
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    if trouble == "barrier_download":
        if rank == 0:
            snapshot_download()
        dist.barrier()
    if trouble == "hang_ctor" and rank == 1:
        preprocess_dataset()
    model = DDP(nn.Linear(8, 8))
    for batch in range(3):
        if trouble == "first_batch" and rank == 1 and batch == 0:
            preprocess_dataset()
        model(torch.ones(4, 8)).sum().backward()
    dist.destroy_process_group()


def train_spawned(number: int, first: int, world_size: int) -> None:
    train(first + number, world_size)


if __name__ == "__main__":
    numbers = os.environ
    if "spawn" in sys.argv:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ["MASTER_PORT"] = str(port)
        first, world_size = 2 * int(numbers.get("SLURM_PROCID", 0)), 2 * int(numbers.get("SLURM_NTASKS", 1))
        mp.spawn(train_spawned, (first, world_size), 2)
    elif "RANK" in numbers:
        train(int(numbers["RANK"]), int(numbers["WORLD_SIZE"]))
    else:
        os.environ.setdefault("MASTER_ADDR", numbers["SLURM_JOB_NODELIST"].split(",")[0])
        os.environ.setdefault("MASTER_PORT", str(port))
        train(int(numbers["SLURM_PROCID"]), int(numbers["SLURM_NTASKS"]))
