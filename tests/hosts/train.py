"""Training for the tests of several hosts: a small model, gloo, the same weights whatever starts it.

Options come as NAME=VALUE. `steps`: how many, or 0: until a rank has the file `enough` in its working folder.
`slow` and `slow_ms`: a rank that takes longer, in `place`. `setup`: ddptop's own API instead of torch's.
`weights`: where rank 0 writes them, as text. `pause_ms`: length of a step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OPTIONS = {
    "steps": "40",
    "slow": "-1",
    "slow_ms": "20",
    "place": "backward",
    "pause_ms": "5",
    "setup": "",
    "weights": "",
}


class Slow(torch.autograd.Function):
    """Takes its time in backward."""

    @staticmethod
    def forward(context: object, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(context.seconds)  # type: ignore[attr-defined]
        return gradient, None


def train(options: dict[str, str], rank: int, model: nn.Module) -> None:
    """Some steps, on the same data everywhere."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    delay = float(options["slow_ms"]) / 1e3 if rank == int(options["slow"]) else 0.0
    generator = torch.Generator().manual_seed(7 + rank)
    if options["place"] == "forward":
        model.module.register_forward_pre_hook(lambda *_: time.sleep(delay))
    if options["place"] == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: time.sleep(delay))
    step, last = 0, int(options["steps"])
    while True:
        time.sleep(float(options["pause_ms"]) / 1e3 + (delay if options["place"] == "other" else 0.0))
        x = torch.randn(4, 16, generator=generator)
        optimizer.zero_grad()
        x.requires_grad_()
        y = model(Slow.apply(x, delay if options["place"] == "backward" else 0.0))
        loss = y.square().mean()
        if options["place"] == "loss":
            time.sleep(delay)
        loss.backward()
        optimizer.step()
        step += 1
        enough = torch.tensor([float(step == last if last else Path("enough").exists())])
        if not last:
            dist.all_reduce(enough)
        if enough:
            break
    if rank == 0:
        if options["weights"]:
            values = [
                value.hex() for part in model.parameters() for value in part.detach().flatten().tolist()
            ]
            Path(options["weights"]).write_text("\n".join(values))
        print(f"{step} steps", flush=True)


def main() -> None:
    """From torchrun's environment, or Slurm's with `setup`."""
    options = OPTIONS | dict(word.split("=", 1) for word in sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(3)
    bare = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    if options["setup"]:
        import ddptop

        with ddptop.setup(seed=None) as group:
            train(options, group.rank, group.wrap(bare))
        return
    dist.init_process_group("gloo")
    train(options, int(os.environ["RANK"]), DistributedDataParallel(bare))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
