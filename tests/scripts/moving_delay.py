"""A plain DDP script whose rank 1 sleeps in one place, then in another: moving_delay.py PLACE:STEPS...

PLACE is where in a step 20 ms are slept, or `nowhere`. Rank 0 prints at the end what the script itself saw,
one object of JSON, in ns of the machine's clock, each (steps, ranks): `slept_ns`, the sleep by the rank's own
clock (never shorter than asked for, and longer on a busy machine), `came_ns`, when the rank had its
gradients, and `reduced_ns`, when its backward had ended.
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

SLEEP_S = 0.02
NOISE_S = 0.003
"""Every rank's batches take up to this: else the order in which two cores serve four ranks decides."""


class Naps:
    """Sleeps where the plan says so, and keeps its own times."""

    def __init__(self, plan: list[tuple[str, int]], slow: bool) -> None:
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
        return len(self._naps.slept_ns)

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
    tell(naps)
    dist.destroy_process_group()


def tell(naps: Naps) -> None:
    mine = torch.tensor([naps.slept_ns, naps.came_ns, naps.reduced_ns])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if dist.get_rank() == 0:
        slept, came, reduced = torch.stack(everyone, dim=2).tolist()
        print(json.dumps({"slept_ns": slept, "came_ns": came, "reduced_ns": reduced}))


if __name__ == "__main__":
    main()
