"""The training of the moving picture: rank 3 becomes slow, later rank 1 waits for a lock.

`tests.tui.film` runs it, and holds the lock.
"""

import fcntl
import itertools
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import ddptop

SLOW_RANK, SLOW_FROM, SLOW_UNTIL = 3, 80, 260
HUNG_RANK, HUNG_AT = 1, 340

step = 0


class Accelerated(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.025)  # as layers on an accelerator
        return x


def read_batch(rank: int) -> None:
    if rank == SLOW_RANK and SLOW_FROM <= step < SLOW_UNTIL:
        time.sleep(0.045)  # as from a slow disk


def lock_cache() -> None:
    with open("cache.lock", "w") as file:  # noqa: PTH123
        fcntl.flock(file, fcntl.LOCK_EX)


def main() -> None:
    global step
    torch.set_num_threads(1)
    with ddptop.setup(seed=0) as group:

        def collate(samples: list) -> list:
            read_batch(group.rank)
            return default_collate(samples)

        x = torch.randn(4096, 64, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, collate_fn=collate)
        layers = nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        model = group.wrap(nn.Sequential(Accelerated(), *layers), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        for inputs, targets in itertools.chain.from_iterable(itertools.repeat(loader)):
            if group.rank == HUNG_RANK and step == HUNG_AT:
                lock_cache()
            loss = nn.functional.mse_loss(model(inputs.to(group.device)), targets.to(group.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddptop.log(loss=loss)
            step += 1


if __name__ == "__main__":
    main()
