"""Trains under ddptop-run and takes the recorder out of the way in every other segment: alternate.py LAYERS WIDTH

Prints, per rank, the CPU time of the process per step that the recorder adds, as JSON. Two plain segments
in a row are the control.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset, dataloader

from ddptop.runtime.attach import current_session

ROUNDS = 25
SEGMENT_S = 0.5
SETTLE_S = 5.0


class Slices:
    """Batches of neighbouring samples: drawing them costs next to nothing."""

    def __init__(self, samples: int, batch: int) -> None:
        self._starts = range(0, samples, batch)
        self._batch = batch

    def __iter__(self) -> Iterator[range]:
        return (range(start, start + self._batch) for start in self._starts)


class Recorder:
    """Takes ddptop's wrappers out of torch, and puts them back."""

    def __init__(self) -> None:
        loader = dataloader._SingleProcessDataLoaderIter
        self._places = [(DDP, "forward"), (torch.autograd, "backward"), (loader, "_next_data")]
        self._wrapped = [getattr(owner, name) for owner, name in self._places]
        pre, post = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
        self._hooks = [(hooks, dict(hooks)) for hooks in (pre, post)]

    def use(self, yes: bool) -> None:
        for (owner, name), wrapped in zip(self._places, self._wrapped, strict=True):
            setattr(owner, name, wrapped if yes else wrapped.__wrapped__)
        for hooks, kept in self._hooks:
            hooks.clear()
            hooks.update(kept if yes else {})


def main() -> None:
    depth, width = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = DDP(nn.Sequential(*layers), bucket_cap_mb=width * (width + 1) * 4 / 2**20 * 0.99)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)  # the loss must not fall to denormal numbers, which are slow
    data = TensorDataset(torch.randn(64 * 16, width))

    def steps(count: int) -> float:
        """Train, and return the CPU seconds of this process per step."""
        done, before = 0, time.process_time()
        while done < count:
            for (x,) in DataLoader(data, batch_sampler=Slices(len(data), 16)):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                done += 1
        return (time.process_time() - before) / done

    dist.barrier()
    start = time.perf_counter()
    steps(256)
    per_segment = torch.tensor(SEGMENT_S / ((time.perf_counter() - start) / 256))
    dist.broadcast(per_segment, 0)
    segment = int(per_segment.item())
    steps(int(segment * SETTLE_S / SEGMENT_S))
    recorder, added, control = Recorder(), [], []
    for _ in range(ROUNDS):
        recorder.use(True)
        watched = steps(segment)
        recorder.use(False)
        first, second = steps(segment), steps(segment)
        added.append(watched - (first + second) / 2)
        control.append(second - first)
    recorder.use(True)
    steps(2 * segment)
    report(added, control, (time.perf_counter() - start))
    dist.destroy_process_group()


def report(added: list[float], control: list[float], _took: float) -> None:
    session: Any = current_session()
    budget = session._publisher._budget
    time.sleep(0.1 * dist.get_rank())  # two lines, not one
    print(
        json.dumps(
            {
                "added_us": statistics.median(added) * 1e6,
                "control_us": statistics.median(control) * 1e6,
                "told_us": budget.cost_us,
                "told_pct": budget.cost_pct,
                "detail_every": budget.every,
                "loss_every": budget.loss_every,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
