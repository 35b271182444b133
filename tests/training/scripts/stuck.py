"""Two ranks train; then rank 1 does not come to a collective: stuck.py HOW [FILE]

HOW is what the last rank does, once FILE is there: `sleep` in a function of the user's, `raise` an exception,
or `abort` the process. Each rank says `trained` before that. Rank 0 waits for it in an all-reduce of 7
numbers in a group of their own.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def tokenize() -> None:
    time.sleep(600)


def leave(how: str) -> None:
    while len(sys.argv) > 2 and not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    if how == "sleep":
        tokenize()
    if how == "raise":
        raise ValueError("no such luck")
    if how == "abort":
        os.abort()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1], group_desc="metrics") if dist.get_world_size() == 2 else None
    model = DDP(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    print("trained", flush=True)
    if dist.get_rank() == dist.get_world_size() - 1:
        leave(sys.argv[1])
    dist.all_reduce(torch.ones(7), group=group)


if __name__ == "__main__":
    main()
