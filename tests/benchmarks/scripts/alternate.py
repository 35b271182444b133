"""Trains under ddptop-run, in two of three segments without the recorder: alternate.py LAYERS WIDTH ROUNDS

Segments are short and compared by their median step, so that a noisy neighbour hits all three alike. Two
segments without the recorder are the control. Prints a line of JSON per rank.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from ddptop.training.attach import current_session

WARM_UP_S = 5.0
"""Long enough for the recorder to have chosen its sampling."""

SEGMENT_S = 0.15


class Recorder:
    """Takes ddptop's wrappers out of torch, and puts them back."""

    def __init__(self) -> None:
        loader = dataloader._SingleProcessDataLoaderIter
        self._places = [
            (DDP, "_pre_forward"),
            (DDP, "_post_forward"),
            (torch.autograd, "backward"),
            (loader, "_next_data"),
        ]
        self._wrapped = [getattr(owner, name) for owner, name in self._places]
        pre, post = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
        self._hooks = [(hooks, dict(hooks)) for hooks in (pre, post)]
        self._last_gradients: Any = current_session().last_gradients

    def use(self, yes: bool, model: DDP) -> None:
        self._last_gradients.remove_hooks()
        if yes:
            self._last_gradients.watch_model(model)
        for (owner, name), wrapped in zip(self._places, self._wrapped, strict=True):
            setattr(owner, name, wrapped if yes else wrapped.__wrapped__)
        for hooks, kept in self._hooks:
            hooks.clear()
            hooks.update(kept if yes else {})


class Training:
    """Plain DDP on gloo, a bucket for each layer."""

    def __init__(self, depth: int, width: int) -> None:
        layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
        cap = width * (width + 1) * 4 / 2**20 * 0.99
        self.model = DDP(nn.Sequential(*layers), bucket_cap_mb=cap)
        # Weights that learn to be zero end in denormal numbers, which are slow.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-7)
        self.loader = iter(_Endless(torch.randn(16, width)))

    def steps(self, count: int) -> tuple[float, float]:
        """Train; median wall time of a step and mean CPU time of this process per step, in seconds."""
        walls = []
        cpu = time.process_time()
        for _ in range(count):
            begin = time.perf_counter()
            x = next(self.loader)
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()
            walls.append(time.perf_counter() - begin)
        return statistics.median(walls), (time.process_time() - cpu) / count


class _Endless(dataloader.DataLoader):
    """A real loader's iterator over one batch that never ends."""

    def __init__(self, batch: torch.Tensor) -> None:
        class Batches(torch.utils.data.IterableDataset):
            def __iter__(self):
                while True:
                    yield batch

        super().__init__(Batches(), batch_size=None)


def main() -> None:
    depth, width, rounds = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = Training(depth, width)
    wall, _ = training.steps(100)
    agreed = torch.tensor(wall)
    dist.broadcast(agreed, 0)
    training.steps(int(WARM_UP_S / agreed.item()))
    budget: Any = current_session().publisher.budget
    told, every = budget.cost_us, budget.every
    budget.full_detail = True  # a segment without the recorder looks to it like one long step
    kinds: list[list[tuple[float, float]]] = [[], [], []]
    recorder = Recorder()
    for number in range(rounds):
        for kind in (0, 1, 2) if number % 2 else (2, 1, 0):
            recorder.use(kind == 0, training.model)
            training.steps(2)
            kinds[kind].append(training.steps(max(5, int(SEGMENT_S / agreed.item()))))
    recorder.use(True, training.model)
    time.sleep(0.1 * dist.get_rank())  # two lines, not one
    print(json.dumps(compare(*kinds) | {"told_us": told, "every": every}), flush=True)
    dist.destroy_process_group()


def compare(
    watched: list[tuple[float, float]], plain: list[tuple[float, float]], again: list[tuple[float, float]]
) -> dict[str, float]:
    """Medians over the rounds: ratios of wall time, differences of CPU time, and the same of the control."""
    rounds = list(zip(watched, plain, again, strict=True))
    return {
        "ms": statistics.median(p[0] for p in plain) * 1e3,
        "ratio": statistics.median(2 * w[0] / (p[0] + a[0]) for w, p, a in rounds),
        "control": statistics.median(a[0] / p[0] for _, p, a in rounds),
        "cpu_us": statistics.median(w[1] - (p[1] + a[1]) / 2 for w, p, a in rounds) * 1e6,
        "cpu_control_us": statistics.median(a[1] - p[1] for _, p, a in rounds) * 1e6,
    }


if __name__ == "__main__":
    main()
