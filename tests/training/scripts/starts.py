"""A rank that takes long before its first DDP model, until there is a file `go`; then it trains two steps."""

import subprocess
import sys
import time
from pathlib import Path

import torch.distributed as dist
from torch import nn, ones
from torch.nn.parallel import DistributedDataParallel as DDP

END_S = 90


def preprocess_dataset() -> None:
    end = time.monotonic() + END_S
    while not Path("go").exists() and time.monotonic() < end:
        time.sleep(0.05)


# Neither a helper of the rank nor a forked child of it is a rank.
helper = subprocess.Popen([sys.executable, "-c", "import time, torch; time.sleep(3)"])
dist.init_process_group("gloo")
preprocess_dataset()
if "raise" in sys.argv:
    raise OSError("no such shard")
model = DDP(nn.Linear(2, 2))
for _ in range(2):
    model(ones(1, 2)).sum().backward()
helper.wait()
dist.destroy_process_group()
