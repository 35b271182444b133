"""Trains on gloo, is slow now and then, and stamps what it does: ledger.py FOLDER CASE [WORDS...].

Each rank writes FOLDER/rank-N.json: when it came to each all-reduce or barrier, and when what `bench_ledger`
compares began and ended, by time.monotonic, which all ranks of a host share. Durations are those of the
situations that they stand for, shortened.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset

HEAP = 2_500_000
"""Objects that a garbage collection goes through: some 0.2 s."""


class Stamps:
    def __init__(self) -> None:
        self.arrived: list[tuple[int, float]] = []
        """In which step, and when, this rank came to an all-reduce or a barrier."""
        self.spans: list[tuple[int, float, float]] = []
        """What is compared: its step, begin and end."""
        self.step = 0

    def arrive(self) -> None:
        self.arrived.append((self.step, time.monotonic()))

    @contextmanager
    def span(self, *, of_next_step: bool = False) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.spans.append((self.step + of_next_step, begin, time.monotonic()))


class Training:
    def __init__(self, inputs: int = 64) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.rank = dist.get_rank()
        self.model = DDP(nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.stamps = Stamps()

    def step(self, x: torch.Tensor) -> None:
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        self.stamps.arrive()
        loss.backward()
        self.optimizer.step()

    def pause(self, seconds: float) -> None:
        """After a step, and so in the next one."""
        with self.stamps.span(of_next_step=True):
            time.sleep(seconds)

    def end_step(self) -> None:
        self.stamps.step += 1


def batches(steps: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(32 * steps, 64)), 32)


def save(every: int, seconds: float, steps: int, *, loader: bool) -> Callable[[], Stamps]:
    """Rank 0 saves every so many steps."""

    def train() -> Stamps:
        training = Training()
        for step, x in enumerate(
            batches(steps) if loader else ((torch.randn(32, 64),) for _ in range(steps))
        ):
            time.sleep(0.02)
            training.step(x[0])
            if step % every == every - 1 and training.rank == 0:
                training.pause(seconds)
            training.end_step()
        return training.stamps

    return train


def evaluate_on_rank_0() -> Stamps:
    """As nanoGPT's train.py: rank 0 alone estimates the loss, then all go on."""
    training = Training()
    for step in range(160):
        if step % 30 == 0 and training.rank == 0:
            with training.stamps.span():
                training.model.eval()
                with torch.no_grad():
                    for _ in range(50):
                        training.model(torch.randn(256, 64)).square().mean().item()
                        time.sleep(0.05)
                training.model.train()
        time.sleep(0.03)
        training.step(torch.randn(32, 64))
        training.end_step()
    return training.stamps


EPOCHS = 7


class OpensFiles(Dataset):
    """Each new worker opens its files."""

    ready = False

    def __len__(self) -> int:
        return 32 * 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if not OpensFiles.ready:
            time.sleep(3)
            OpensFiles.ready = True
        return torch.randn(64)


def workers_anew() -> Stamps:
    training = Training()
    for epoch in range(EPOCHS):
        source = iter(DataLoader(OpensFiles(), 32, num_workers=2))
        for batch in itertools.count():
            is_first = batch == 0 and epoch > 0
            begin = time.monotonic()
            x = next(source, None)
            if is_first or (x is None and epoch < EPOCHS - 1):  # the end of a pass ends its workers
                training.stamps.spans.append((training.stamps.step, begin, time.monotonic()))
            if x is None:
                break
            time.sleep(0.02)
            training.step(x)
            training.end_step()
    return training.stamps


def garbage() -> Stamps:
    """Rank 0 collects garbage every 25 steps, and makes a little of it in each."""
    training = Training()
    gc.disable()
    gc.freeze()
    heap = [[] for _ in range(HEAP if training.rank == 0 else 0)]
    for step in range(1200):
        time.sleep(0.008)
        if training.rank == 0:
            time.sleep(0.0014)
            if step % 25 == 24:
                with training.stamps.span():
                    gc.collect()
        training.step(torch.randn(32, 64))
        training.end_step()
    del heap
    return training.stamps


def validate() -> Stamps:
    """All ranks validate for 16 s, twice."""
    training = Training()
    for step, (x,) in enumerate(batches(300)):
        time.sleep(0.02)
        training.step(x)
        if step % 120 == 119:
            with training.stamps.span(of_next_step=True):
                training.model.eval()
                end = time.monotonic() + 16.0
                with torch.no_grad():
                    for (y,) in batches(10_000):
                        training.model(y)
                        time.sleep(0.05)
                        if time.monotonic() > end:
                            break
                training.model.train()
        training.end_step()
    return training.stamps


class Shards(Dataset):
    """Rank 2 tokenizes a shard every 70 batches."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def __len__(self) -> int:
        return 420

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._training.rank == 2 and index % 70 == 69:
            with self._training.stamps.span():
                end, total = time.monotonic() + 2.0, 0
                while time.monotonic() < end:
                    total += total % 7
        return torch.randn(32, 64)


def shards() -> Stamps:
    training = Training()
    for x in DataLoader(Shards(training), batch_size=None):
        time.sleep(0.02)
        training.step(x)
        training.end_step()
    return training.stamps


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def loop(seconds: float) -> int:
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        total += total % 7
    return total


def read_file(seconds: float) -> int:
    path, size = next(Path(torch.__file__).parent.glob("lib/libtorch_python.*")), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        size += len(path.read_bytes())
    return size


def sort_array(seconds: float) -> None:
    array = np.random.default_rng(0).random(20_000)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        np.sort(array)


SLOW: dict[str, Callable[[float], object]] = {
    function.__name__: function for function in (sleep, loop, read_file, sort_array)
}


class Rare:
    """A rank that is slow in one step of so many, and in which place."""

    def __init__(self, rank: str, place: str, kind: str, every: str, seconds: str) -> None:
        self.rank, self.place, self.every = int(rank), place, int(every)
        self._slow, self._seconds = SLOW[kind], float(seconds)
        self.step = 0
        self.stamps = Stamps()

    def reach(self, place: str, step: int | None = None) -> None:
        """Be slow, if it is the place and the step."""
        step = self.step if step is None else step
        if (dist.get_rank(), place) == (self.rank, self.place) and step % self.every == self.every - 1:
            self.stamps.step = step
            # The others wait for what comes after backward in the all-reduce of the next step.
            with self.stamps.span(of_next_step=place in ("before_optimizer", "optimizer", "after_optimizer")):
                self._slow(self._seconds)


class RareSamples(Dataset):
    def __init__(self, rare: Rare) -> None:
        self._rare = rare

    def __len__(self) -> int:
        return 2 * self._rare.every + 30

    def __getitem__(self, index: int) -> torch.Tensor:
        self._rare.reach("data", index)
        return torch.randn(32, 64)


class RareNet(nn.Module):
    def __init__(self, rare: Rare) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
        self._rare = rare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._rare.reach("forward")
        return self.layers(x)


class RareSGD(torch.optim.SGD):
    rare: Rare

    def step(self, closure: object = None) -> None:
        self.rare.reach("optimizer")
        super().step(closure)


def rarely(*words: str) -> Stamps:
    """Slow in two steps: RANK PLACE KIND EVERY SECONDS."""
    rare = RareSGD.rare = Rare(*words)
    torch.set_num_threads(1)
    model = DDP(RareNet(rare))
    optimizer = RareSGD(model.parameters(), 0.01)
    for step, x in enumerate(DataLoader(RareSamples(rare), batch_size=None)):
        rare.step = rare.stamps.step = step
        rare.reach("before_forward")
        time.sleep(0.005)
        loss = model(x).square().mean()
        rare.reach("before_backward")
        rare.stamps.arrive()
        loss.backward()
        rare.reach("before_optimizer")
        optimizer.step()
        optimizer.zero_grad()
        rare.reach("after_optimizer")
    return rare.stamps


def summary_before_barrier() -> Stamps:
    """Rank 1 writes a summary every 60 steps, and all meet in a barrier."""
    training = Training()
    for step in range(430):
        time.sleep(0.02)
        training.step(torch.randn(32, 64))
        training.end_step()
        if step % 60 == 59:
            if training.rank == 1:
                with training.stamps.span():
                    time.sleep(2.5)
            training.stamps.arrive()
            dist.barrier()
    return training.stamps


CASES: dict[str, Callable[..., Stamps]] = {
    "save every 100": save(100, 3.0, 500, loader=True),
    "save every 50": save(50, 1.5, 450, loader=False),
    "save every 40, loader": save(40, 1.5, 400, loader=True),
    "4 s now and then": save(30, 4.0, 150, loader=False),
    "evaluation on rank 0": evaluate_on_rank_0,
    "workers anew": workers_anew,
    "garbage": garbage,
    "validation": validate,
    "shards": shards,
    "summary, barrier": summary_before_barrier,
    "rarely": rarely,
}


def main() -> None:
    folder, case, *words = Path(sys.argv[1]), *sys.argv[2:]
    dist.init_process_group("gloo")
    stamps = CASES[case](*words)
    written = {"arrived": stamps.arrived, "spans": stamps.spans}
    (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps(written))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
