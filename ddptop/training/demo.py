"""The training of `ddptop demo`: a classifier on synthetic data, with one rank slow in some of the steps.

It is like a user's own script with `ddptop.setup` and `group.wrap`, with one difference: it ends when its
standard input does, which is a pipe from `ddptop demo`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import ddptop
from ddptop.host.processes import InputEnd

if __name__ == "__main__":
    # Before torch is imported: that can take longer than a process without its parent may stay.
    input_end = InputEnd(lambda: os._exit(1))


FEATURES, CLASSES, WIDTH = 256, 10, 768
BATCH = 128
"""Samples of a rank in a step: some 16 ms of computing on a CPU core."""
FORWARD_S = 0.03
"""Every rank waits so long in its forward, as for an accelerator. With that a step lasts 50 to 60 ms on two
idle cores, as in many real trainings: in much shorter ones ddptop's own cost is over its budget."""
SLOW_S = 0.05
"""Least delay of the slow rank in a step: about as long as the rest of the step on two idle CPU cores."""
MEASURED_STEPS = 50
"""Where the median of so many steps before it is longer, that is the delay: seen on a busy machine too."""
AHEAD = 2
"""Steps from the request to end to the last one."""
GRACE_S = 5.0
"""Once asked to end: for the steps until the last one, of 0.1 s, and the end of the process group."""
LAST = "ddptop-demo-last"
"""Key of the last step's number in the store."""


class Teacher(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]  # torch is not followed
    """Random vectors, labelled by a fixed random layer: something that can be learned."""

    def __init__(self, samples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, FEATURES, generator=generator)
        self.y = (self.x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class SlowCollate:
    """Collates a batch, which takes one rank longer in some of the steps."""

    def __init__(self, slow: bool, steps: tuple[int, int, int]) -> None:
        """`steps`: slow from the first to the second of every so many."""
        self._slow = slow
        self._begin, self._end, self._every = steps
        self._batches = itertools.count()
        self._begun_s: deque[float] = deque(maxlen=MEASURED_STEPS)

    def __call__(self, samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        if self._slow and self._begin <= next(self._batches) % self._every < self._end:
            steps = [later - earlier for earlier, later in itertools.pairwise(self._begun_s)]
            time.sleep(max(SLOW_S, statistics.median(steps)) if steps else SLOW_S)
        else:
            # Only usual steps are measured, not those that are made slow.
            self._begun_s.append(time.monotonic())
        x, y = zip(*samples, strict=True)
        return torch.stack(x), torch.stack(y)


class Accelerated(nn.Module):  # type: ignore[misc]  # torch is not followed
    """Takes as long as layers on an accelerator, and changes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return x


def build_model() -> nn.Module:
    """About 1.4 million parameters: several buckets at a cap of 1 MB."""
    return nn.Sequential(
        Accelerated(),
        nn.Linear(FEATURES, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


def endless_batches(
    group: ddptop.Group, steps: tuple[int, int, int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without end, in a new order every epoch."""
    dataset = Teacher(8192)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(dataset)
    slow = group.rank == group.world_size - 1 and group.world_size > 1
    loader = DataLoader(dataset, BATCH, sampler=sampler, collate_fn=SlowCollate(slow, steps), drop_last=True)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


class CommonStop:
    """Ends training on all ranks after the same step, some steps after rank 0 was asked to end.

    Rank 0 then writes the number of the last step into the store. No rank can finish a step that rank 0 has
    not begun: all of them read that number before they come to it.
    """

    def __init__(self, request: threading.Event, store: torch.distributed.Store, rank: int) -> None:
        self._request = request if rank == 0 else None
        self._store = store

    def is_beyond_last(self, step: int) -> bool:
        """Whether `step`, which has not begun, is beyond the last one."""
        if self._request is not None and self._request.is_set():
            self._store.set(LAST, str(step + AHEAD))
            self._request = None
        return bool(self._store.check([LAST])) and step > int(self._store.get(LAST))


def main(request: InputEnd) -> None:
    """Train for `--steps` steps, or until `request` is set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=0, help="0: until asked to end")
    parser.add_argument("--slow", type=int, nargs=3, metavar=("FROM", "UNTIL", "EVERY"), required=True)
    options = parser.parse_args()
    # One thread for each rank, so that ranks on few cores do not take them from each other.
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    with ddptop.setup() as group:
        ddp = group.wrap(build_model(), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        common_stop = CommonStop(request, store, group.rank)
        # Only now: until here a process without its parent ends at once.
        request.grace_s = GRACE_S
        endless = endless_batches(group, tuple(options.slow))
        for step, (x, y) in enumerate(itertools.islice(endless, options.steps or None)):
            if common_stop.is_beyond_last(step):
                break
            loss = cross_entropy(ddp(x.to(group.device)), y.to(group.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddptop.log(loss=loss)


if __name__ == "__main__":
    main(input_end)
