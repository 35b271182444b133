"""A DDP script that reads DDP's own logger after every step: logged.py STEPS

A communication hook lets the first bucket take 40 ms longer; meanwhile backward goes on for 25 ms. Sleeping
takes no core from anybody, so that both clocks see the same also on a busy machine. Rank 0 prints a line of
JSON: `comm_ms`, what the logger has as backward communication, and `overlap_pct`, the share of it that
backward computation hid; medians over all steps but the first ten, all ranks together.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WIDTH = 128
COMMUNICATION_S, COMPUTATION_S = 0.04, 0.025

FIRST = 10
"""Steps that are left out: the logger begins with the second, and torch makes new buckets after the first."""

NAMES = ("backward_comm_time", "backward_compute_comm_overlap_time")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x.register_hook(lambda _: time.sleep(COMPUTATION_S))
        return self.last(x)


def slow_first_bucket(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    first = bucket.index() == 0

    def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        if first:
            time.sleep(COMMUNICATION_S)
        return done.value()[0]

    tensor = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(tensor, async_op=True).get_future().then(finish)


def main() -> None:
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = DDP(net, bucket_cap_mb=0.05)
    model.register_comm_hook(None, slow_first_bucket)
    model._set_ddp_runtime_logging_sample_rate(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    x = torch.randn(4, 16)
    seen = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        loss = model(x).square().mean()  # here the logger takes in the step before
        data = model._get_ddp_logging_data()
        seen.append([data.get(name, 0) for name in NAMES])
        loss.backward()
        optimizer.step()
    tell(torch.tensor(seen[1 + FIRST :]) / 1e6)
    dist.destroy_process_group()


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
