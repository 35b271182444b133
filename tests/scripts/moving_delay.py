"""A plain DDP script whose rank 1 sleeps in one place, then in another: moving_delay.py PLACE:STEPS...

PLACE is where in a step 20 ms are slept, or `nowhere`. Rank 0 prints at the end what the script itself saw
of it, for each stretch a line of JSON, medians over its last 100 steps: `slept_ms`, rank 1's sleep by its
own clock (never shorter than asked for, and longer on a busy machine), and, from when each rank had its
gradients, `late_ms`, how much later rank 1 had them than the median of the others, `ranks_wait_ms`, of each
rank how much sooner it had them than the last one, `reduced_ms`, from when the last one had them to the end
of backward, the mean of the ranks, and `ranks_late_ms`, of each rank how much later it had them than the
median of the others: the median over the steps, and what a tenth of them exceed.
"""

from __future__ import annotations

import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

WINDOW = 100
"""Steps that ddptop's figures are made of."""
SLEEP_S = 0.02
NOISE_S = 0.003
"""Every rank's batches take up to this: else the order in which two cores serve four ranks decides."""


class Naps:
    """Sleeps where the plan says so, and keeps its own times."""

    def __init__(self, plan: list[tuple[str, int]], slow: bool) -> None:
        self.stretches = [number for number, (_, steps) in enumerate(plan) for _ in range(steps)]
        self._places = [place for place, steps in plan for _ in range(steps)]
        self._slow = slow
        self.slept_ns = [0] * len(self._places)
        self.came_ns = [0] * len(self._places)
        self.reduced_ns = [0] * len(self._places)
        self.step = 0

    def nap(self, place: str, step: int | None = None) -> None:
        step = self.step if step is None else step
        if self._slow and self._places[step] == place:
            begin = time.monotonic_ns()
            time.sleep(SLEEP_S)
            self.slept_ns[step] = time.monotonic_ns() - begin

    def came(self, _gradient: torch.Tensor) -> None:
        self.came_ns[self.step] = time.monotonic_ns()


class Samples(Dataset):
    def __init__(self, naps: Naps) -> None:
        self._naps = naps

    def __len__(self) -> int:
        return len(self._naps.stretches)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(random.uniform(0, NOISE_S))
        self._naps.nap("data", index)
        return torch.ones(4, 16)


class Net(nn.Module):
    def __init__(self, naps: Naps) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self._naps = naps
        for parameter in self.parameters():
            parameter.register_hook(
                naps.came
            )  # DDP's own comes right after: with the last, its bucket goes out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._naps.nap("forward")
        x = self.layer(x)
        x.register_hook(lambda _: self._naps.nap("backward"))
        return x


class SlowSGD(torch.optim.SGD):
    def __init__(self, model: nn.Module, naps: Naps) -> None:
        super().__init__(model.parameters(), lr=1e-6)
        self._naps = naps

    def step(self, closure: object = None) -> None:
        self._naps.nap("optimizer")
        super().step(closure)


def main() -> None:
    plan = [(place, int(steps)) for place, _, steps in (word.partition(":") for word in sys.argv[1:])]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(dist.get_rank())
    naps = Naps(plan, slow=dist.get_rank() == 1)
    model = DDP(Net(naps))
    optimizer = SlowSGD(model, naps)
    for step, x in enumerate(DataLoader(Samples(naps), batch_size=None)):
        naps.step = step
        optimizer.zero_grad()
        model(x).square().mean().backward()
        naps.reduced_ns[step] = time.monotonic_ns()
        optimizer.step()
        naps.nap("other")
    tell(naps, len(plan))
    dist.destroy_process_group()


def tell(naps: Naps, stretches: int) -> None:
    mine = torch.tensor([naps.slept_ns, naps.came_ns, naps.reduced_ns])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if dist.get_rank() != 0:
        return
    stretch = torch.tensor(naps.stretches)
    slept = everyone[1][0] / 1e6
    came, reduced = (torch.stack([times[row] for times in everyone], dim=1) for row in (1, 2))
    reduced = (reduced - came.max(dim=1, keepdim=True).values).double().mean(dim=1) / 1e6
    came = (came - came[:, :1]) / 1e6
    late = torch.stack([lateness(came, rank) for rank in range(came.shape[1])], dim=1)
    wait = came.max(dim=1, keepdim=True).values - came
    for number in range(stretches):
        here = (stretch == number).nonzero().squeeze(1)[-WINDOW:]
        names = {"slept_ms": slept, "late_ms": late[:, 1], "ranks_wait_ms": wait, "reduced_ms": reduced}
        told = {name: times[here].median(dim=0).values.tolist() for name, times in names.items()}
        quantiles = torch.tensor([0.5, 0.9], dtype=late.dtype)
        print(json.dumps(told | {"ranks_late_ms": late[here].quantile(quantiles, dim=0).T.tolist()}))


def lateness(came: torch.Tensor, rank: int) -> torch.Tensor:
    """(steps,) how much later than the median of the others `rank` came, of `came` (steps, ranks)."""
    others = [other for other in range(came.shape[1]) if other != rank]
    return came[:, rank] - came[:, others].median(dim=1).values


if __name__ == "__main__":
    main()
