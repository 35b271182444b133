"""A plain DDP script that takes at least 10 ms a step: paced.py STEPS [FOLDER SLOW_FROM [LATE_MS]]

From step SLOW_FROM on it takes a quarter of a second a step, until FOLDER/go exists: it cannot be over before
a test on a busy machine has looked at it. Rank 1 takes LATE_MS longer in each step.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    steps = int(sys.argv[1])
    go = Path(sys.argv[2], "go") if len(sys.argv) > 2 else None
    slow_from = int(sys.argv[3]) if len(sys.argv) > 2 else steps
    late_ms = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(steps * 8, 64)), batch_size=8)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.01 + dist.get_rank() * late_ms / 1000)
        if go is not None and step >= slow_from and not go.exists():
            time.sleep(0.24)
        if step % 100 == 0 and dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
