"""A plain DDP script whose numbers go wrong: unhealthy.py STEPS

The loss of rank 2 is NaN at step 57, and from the next step on that of every rank, as it is once the
gradients have been shared; here they are thrown away, so that the parameters stay numbers. After step 80
rank 1 changes one of its parameters by 1e-3.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NAN, NUDGE = (2, 57), (1, 80)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = DDP(nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        if (rank, step) == NAN or step > NAN[1]:
            loss = loss * float("nan")
        loss.backward()
        if step >= NAN[1]:
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        if (rank, step) == NUDGE:
            with torch.no_grad():
                model.module[1].weight[3, 4] += 1e-3
        time.sleep(0.015)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
