"""A DDP script that reads DDP's own logger after every step: logged.py STEPS

A large bucket goes out first; while it is on its way backward goes on for about half of that time. Rank 0 prints
a line of JSON: `comm_ms`, what the logger has as backward communication, and `overlap_pct`, the share of it that
backward computation hid; medians over the last hundred steps, all ranks together.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH = 2000
"""The last layer has 16 MB."""

WARM_UP = 15
"""Steps that tell how long 16 MB take here."""

WINDOW = 100
"""Steps that ddptop's figures are made of."""

NAMES = ("backward_comm_time", "backward_compute_comm_overlap_time")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.compute_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.register_hook(lambda _: time.sleep(self.compute_s))  # computation that takes no core from the others
        return self.last(x)


def main() -> None:
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    # As views of the buckets gradients need not be copied back, which torch counts as communication.
    model = DDP(net, bucket_cap_mb=1, gradient_as_bucket_view=True)
    model._set_ddp_runtime_logging_sample_rate(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    x = torch.randn(4, 16)
    seen = []
    for step in range(steps + 1):
        optimizer.zero_grad(set_to_none=False)
        loss = model(x).square().mean()  # here the logger takes in the step before
        data = model._get_ddp_logging_data()
        seen.append([data.get(name, 0) for name in NAMES])
        if step == WARM_UP:
            net.compute_s = agreed(0.5 * statistics.median(comm for comm, _ in seen[-10:]) / 1e9)
        loss.backward()
        optimizer.step()
    tell(torch.tensor(seen[-WINDOW:]) / 1e6)
    dist.destroy_process_group()


def agreed(value: float) -> float:
    """What rank 0 says."""
    said = torch.tensor(value)
    dist.broadcast(said, 0)
    return said.item()


def tell(mine: torch.Tensor) -> None:
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if dist.get_rank() != 0:
        return
    comm, overlap = torch.stack(everyone).sum(dim=0).T
    told = {
        "comm_ms": (comm / dist.get_world_size()).median().item(),
        "overlap_pct": (100 * overlap / comm).median().item(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
