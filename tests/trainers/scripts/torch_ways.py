"""Ways of torch itself beside the plain loop; knows nothing of ddptop: torch_ways.py FOLDER WAY [WAY ...]

Saves each rank's final weights as FOLDER/WAY-RANK.pt; each way trains for STEPS steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 10


class Network(nn.Module):
    """A module of the user's own: Dynamo compiles its forward."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.middle = nn.Linear(16, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    inputs = [torch.randn(8, 16, generator=generator) for _ in range(STEPS)]
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, way: str) -> None:
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        tell(way, step, loss)


def tell(way: str, step: int, loss: torch.Tensor) -> None:
    print(f"{way} rank {dist.get_rank()} step {step} loss {loss.item()!r}\n", end="", flush=True)


def compiled(way: str) -> DDP:
    """torch.compile of the DDP model: the reducer's hooks fire inside compiled backward graphs.

    `aot_eager` is torch.compile without Inductor's kernels, which take half a minute to build and have no
    part in what DDP does.
    """
    # Two buckets: Dynamo's DDPOptimizer then cuts the graph in two, and wants no bucket below DDP's first.
    model = DDP(Network(width=512), bucket_cap_mb=1)
    train(torch.compile(model, backend="aot_eager"), torch.optim.SGD(model.parameters(), lr=0.05), way)
    tell_compiled(way)
    return model


def compiled_inside(way: str) -> DDP:
    """A compiled module in a DDP model that is none."""
    torch.compiler.reset()
    model = DDP(torch.compile(Network(width=512), backend="aot_eager"), bucket_cap_mb=1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.05), way)
    tell_compiled(way)
    return model


def tell_compiled(way: str) -> None:
    """Frames, graphs and graph breaks as Dynamo has counted them: a wrapper that it meets would show."""
    from torch._dynamo.utils import counters

    breaks = {reason.splitlines()[0]: count for reason, count in counters["graph_break"].items()}
    told = {**counters["stats"], **counters["frames"], **breaks}
    print(f"{way} rank {dist.get_rank()} {told}\n", end="", flush=True)
    counters.clear()


def zero(way: str) -> DDP:
    """Each rank keeps the state of its share of the parameters and broadcasts them."""
    model = DDP(Network(), bucket_cap_mb=0.01)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
    train(model, optimizer, way)
    optimizer.consolidate_state_dict(to=0)
    return model


def amp(way: str) -> DDP:
    """bfloat16 autocast with a GradScaler, whose first scale of 2^16 multiplies the loss."""
    model = DDP(Network(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu")
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        tell(way, step, loss)
    return model


WAYS: dict[str, Callable[[str], DDP]] = {
    "zero": zero,
    "amp": amp,
    "compiled": compiled,
    "compiled_inside": compiled_inside,
}


def go(way: str, folder: Path) -> None:
    """In a function of its own: a model that outlives the process group can hang in its destructor."""
    model = WAYS[way](way)
    torch.save(model.module.state_dict(), folder / f"{way}-{dist.get_rank()}.pt")


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for way in sys.argv[2:]:
        go(way, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
