"""A plain DDP script whose rank 1 sleeps 30 ms in one place of every step: slow_rank.py PLACE STEPS"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

SLEEP_S = 0.03


class Samples(Dataset):
    def __init__(self, count: int, slow: bool) -> None:
        self.count, self.slow = count, slow

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.slow:
            time.sleep(SLEEP_S)
        return torch.ones(4, 32) * index


def main() -> None:
    place, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    slow = place if dist.get_rank() == 1 else ""
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))

    def nap(*_: object) -> None:
        time.sleep(SLEEP_S)

    if slow == "forward":
        net[1].register_forward_pre_hook(nap)
    if slow == "backward":
        net[2].register_full_backward_pre_hook(nap)
    model = DDP(net, bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    if slow == "optimizer":
        inner = torch.optim.SGD.step.__wrapped__

        def step(self: torch.optim.SGD, closure: object = None) -> object:
            time.sleep(SLEEP_S)
            return inner(self, closure)

        optimizer.step = torch.optim.Optimizer.profile_hook_step(step).__get__(optimizer)
    for x in DataLoader(Samples(steps, slow == "data"), batch_size=None):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if slow == "other":
            time.sleep(SLEEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
