"""Communication hooks compared: bytes that each hands to all-reduce, time of a step, and what it learns.

ddptop-run --standalone --nproc-per-node 2 examples/comm_hooks.py
ddptop                                       # in a second terminal

Each hook trains the same model from the same weights on the same data. `noop` sends nothing, so that its
time is what computing alone takes; its ranks drift apart, and no training should use it. All bytes, times and
losses in the table are measured in this run.
"""

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.utils.data import TensorDataset

import ddptop

HOOKS = ["allreduce", "fp16", "bf16", "powersgd", "noop"]
WARM_UP = 20
"""Steps not counted: DDP arranges its buckets anew, and PowerSGD begins as a plain all-reduce."""


@contextlib.contextmanager
def bytes_counted() -> Iterator[list[int]]:
    """The sizes in bytes of what hooks hand to `dist.all_reduce` inside the block, a number for each call."""
    sizes: list[int] = []
    original = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
        sizes.append(tensor.numel() * tensor.element_size())
        return original(tensor, *args, **kwargs)

    dist.all_reduce = counting
    try:
        yield sizes
    finally:
        dist.all_reduce = original


def train(group: ddptop.Group, hook: str, dataset: TensorDataset, steps: int) -> tuple[float, float, float]:
    """Bytes and milliseconds of a step (medians), and the mean loss of the last ten steps over all ranks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
    state = None
    if hook == "powersgd":  # torch's own default would begin to compress after a thousand steps only
        state = PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=WARM_UP // 2)
    model = group.wrap(net, comm_hook=hook, hook_state=state)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    loader = group.loader(dataset, batch_size=64)
    batches = (batch for epoch in range(1 + steps) for batch in loader.epoch(epoch))
    sent, took, losses = [], [], []
    for x, y in itertools.islice(batches, WARM_UP + steps):
        began = time.perf_counter()
        with bytes_counted() as sizes:
            loss = nn.functional.mse_loss(model(x.to(group.device)), y.to(group.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())  # waits for the GPU, so that the time is all there
        took.append((time.perf_counter() - began) * 1000)
        sent.append(sum(sizes))
        ddptop.log(loss=loss)
    mean = group.mean(statistics.mean(losses[-10:]))
    return statistics.median(sent[WARM_UP:]), statistics.median(took[WARM_UP:]), mean


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200, help="for each hook")
    parser.add_argument("--hooks", nargs="+", default=HOOKS, choices=HOOKS)
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal\n", flush=True)
            print(f"{'hook':10} {'MB a step':>10} {'ms a step':>10} {'last loss':>10}", flush=True)

        x = torch.randn(8192, 64, generator=torch.Generator().manual_seed(1))
        dataset = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
        for hook in options.hooks:
            try:
                sent, took, loss = train(group, hook, dataset, options.steps)
                row = f"{sent / 1e6:10.2f} {took:10.1f} {loss:10.4f}"
            except TypeError as error:  # torch refuses bf16 where it has no NCCL
                row = f"  torch: {error}"
            if group.rank == 0:
                print(f"{hook:10} {row}", flush=True)


if __name__ == "__main__":
    main()
