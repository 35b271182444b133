"""Trains on GPUs under ddptop-run, in two of three segments without the recorder: alternate_gpu.py ROUNDS MS

As `alternate.py`, whose wrappers it takes out and puts back; the batch is doubled until a step takes MS. A
segment is timed from an idle device to an idle device, so that what the host hides costs nothing, as in
training. Prints a line of JSON per rank. On a CPU it runs over gloo.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from alternate import Recorder
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddptop.training.attach import current_session

CUDA = torch.cuda.is_available()
WIDTH, LAYERS, FIRST_BATCH, LARGEST_BATCH = 2048, 8, 64, 1 << 20
SEGMENT_S, WARM_UP_S = 0.3, 5.0
"""The second is long enough for the recorder to have chosen its sampling."""


class DeviceRecorder(Recorder):
    """Also takes out what marks the phases on the device and what stands below the reducer."""

    def __init__(self) -> None:
        super().__init__()
        session = current_session()
        assert session is not None
        self._recorder = session.recorder
        self._switch_models = session.switch_models
        self._marks = session.recorder.marks

    def use(self, yes: bool, model: DistributedDataParallel) -> None:
        super().use(yes, model)
        self._recorder.marks = self._marks if yes else None
        self._switch_models(yes and self._recorder.detail)


class Training:
    """A stack of linear layers, a bucket for each."""

    def __init__(self, device: torch.device) -> None:
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        cap = WIDTH * (WIDTH + 1) * 4 / 2**20 * 0.99
        self.model = DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=cap)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-7)
        self.batch = torch.randn(FIRST_BATCH, WIDTH, device=device)

    def steps(self, count: int) -> float:
        """Train; seconds a step, from an idle device to an idle device."""
        idle()
        begin = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
        idle()
        return (time.perf_counter() - begin) / count

    def grow(self, least_s: float) -> float:
        """Double the batch until a step takes so long on every rank; seconds a step, the same on all."""
        while True:
            self.steps(3)
            took = torch.tensor(self.steps(10), device=self.batch.device)
            dist.all_reduce(took, dist.ReduceOp.MIN)
            if took.item() >= least_s or len(self.batch) >= LARGEST_BATCH:
                return float(took)
            self.batch = self.batch.repeat(2, 1)


def idle() -> None:
    """Wait for the device."""
    if CUDA:
        torch.cuda.synchronize()


def main() -> None:
    rounds, least_s = int(sys.argv[1]), float(sys.argv[2]) / 1e3
    device = torch.device("cpu")
    if CUDA:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)
    training = Training(device)
    step_s = training.grow(least_s)
    training.steps(int(WARM_UP_S / step_s))
    session = current_session()
    assert session is not None and session.publisher is not None
    budget = session.publisher.budget
    told, every = budget.cost_us, budget.every
    budget.full_detail = True  # a segment without the recorder looks to it like one long step
    kinds: list[list[float]] = [[], [], []]
    recorder = DeviceRecorder()
    count = max(5, int(SEGMENT_S / step_s))
    for number in range(rounds):
        for kind in (0, 1, 2) if number % 2 else (2, 1, 0):
            recorder.use(kind == 0, training.model)
            training.steps(2)
            kinds[kind].append(training.steps(count))
    recorder.use(True, training.model)
    watched, plain, again = (list(kind) for kind in kinds)
    pairs = list(zip(watched, plain, again, strict=True))
    found = {
        "ms": statistics.median(plain) * 1e3,
        "ratio": statistics.median(2 * w / (p + a) for w, p, a in pairs),
        "control": statistics.median(a / p for _, p, a in pairs),
        "told_us": told,
        "every": every,
        "rank": dist.get_rank(),
        "gpu": torch.cuda.get_device_name(device) if CUDA else "none: a CPU",
    }
    time.sleep(0.1 * dist.get_rank())  # whole lines
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
