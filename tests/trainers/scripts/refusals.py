"""What DDP refuses and warns of, one after the other; knows nothing of ddptop.

refusals.py FOLDER WAY [WAY ...]

A way that ends in `?` is caught, and its traceback printed.
"""

import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP


class HalfUsed(nn.Module):
    """The second layer takes no part in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def train(ddp: DDP, steps: int) -> None:
    for _ in range(steps):
        ddp(torch.ones(1, 2)).sum().backward()


def shapes() -> None:
    DDP(nn.Linear(2 + dist.get_rank(), 2))


def lazy() -> None:
    DDP(nn.LazyLinear(2))


def second_hook() -> None:
    ddp = DDP(nn.Linear(2, 2))
    ddp.register_comm_hook(None, allreduce_hook)
    ddp.register_comm_hook(None, allreduce_hook)


def bf16() -> None:
    DDP(nn.Linear(2, 2)).register_comm_hook(None, bf16_compress_hook)


def unused() -> None:
    train(DDP(HalfUsed()), steps=2)


def needless_search() -> None:
    """Long enough for the recorder to ask torch's logger for what it tells from the second step on."""
    train(DDP(nn.Linear(2, 2), find_unused_parameters=True), steps=1000)


def strides() -> None:
    ddp = DDP(nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last))
    ddp.module.to(memory_format=torch.contiguous_format)
    ddp(torch.ones(1, 2, 8, 8)).sum().backward()


def static_graph() -> None:
    DDP(nn.Linear(2, 2), find_unused_parameters=True, static_graph=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in sys.argv[2:]:
        try:
            vars()[way.rstrip("?")]()
        except (RuntimeError, TypeError):
            if not way.endswith("?"):
                raise
            print(traceback.format_exc(), file=sys.stderr, flush=True)
    dist.destroy_process_group()
