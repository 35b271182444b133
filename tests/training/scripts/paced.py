"""A plain DDP script that takes at least 10 ms a step: paced.py STEPS"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    steps = int(sys.argv[1])
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
        time.sleep(0.01)
        if step % 100 == 0 and dist.get_rank() == 0:
            print("step", step, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
