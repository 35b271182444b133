"""Gets into trouble before its first step, until there is a file `go` or a minute and a half have passed."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

END_S = 90
trouble, rank = sys.argv[1], int(os.environ["RANK"])


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


if trouble == "import_slow" and rank == 1:
    sys.path.insert(0, ".")
    import slow_module  # noqa: F401
if trouble == "hang_init" and rank == 1:
    wait_for_license()
if trouble == "wrong_port":
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    os.environ["MASTER_PORT"] = str(int(sys.argv[2]) + rank)
if trouble == "world_size_too_large":
    dist.init_process_group("gloo", rank=rank, world_size=3)
else:
    dist.init_process_group("gloo")
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
