"""Trains under ddptop-run, in turn in steps that are left out and without ddptop's hooks: left_out.py JSON

In steps that are left out torch's functions are not wrapped; what differs from plain training are the
optimizer's hooks. So `optimizer.step()` is timed alone: a median over steps leaves out those in which the
operating system ran another process, and little else is in it. CPU time of whole steps also has what is
slower after the hooks. Prints a line of JSON: how long it takes, in us; by how much longer than plain, and
the same of CPU time, quartiles; what the recorder clocks of it, once in each segment.
"""

import json
import statistics
import sys
import time
from collections import deque
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from alternate import Training
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from ddptop.training.attach import current_session
from ddptop.training.phases import make_clocked_end
from ddptop.training.sampling_rates import SamplingRates

SEGMENT_STEPS, WARM_UP_STEPS = 20, 3
KINDS = ("plain", "left out", "control")
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=1e-7),
    "Adam, foreach": partial(torch.optim.Adam, lr=1e-7, foreach=True),
    "Adam, fused": partial(torch.optim.Adam, lr=1e-7, fused=True),
}


class TimedTraining(Training):
    """Training whose optimizer's steps are timed. `micro_steps`: of which all but the last are in
    `no_sync()`; `evicted_mb`: so much other memory is read before the optimizer steps."""

    def __init__(
        self, depth: int, width: int, *, optimizer: str = "SGD", micro_steps: int = 1, evicted_mb: int = 0
    ) -> None:
        super().__init__(depth, width)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self._micro_steps = micro_steps
        self._other = torch.zeros(evicted_mb << 18)

    def optimizer_steps_us(self, count: int) -> list[float]:
        """Train; how long each `optimizer.step()` has taken, in us."""
        took_us = []
        for _ in range(count):
            self.optimizer.zero_grad()
            for left in reversed(range(self._micro_steps)):
                with self.model.no_sync() if left else nullcontext():
                    self.model(next(self.loader)).square().mean().backward()
            self._other.sum()
            began_ns = time.perf_counter_ns()
            self.optimizer.step()
            took_us.append((time.perf_counter_ns() - began_ns) / 1e3)
        return took_us


def main() -> None:
    words = json.loads(sys.argv[1])
    rounds = words.pop("rounds")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = TimedTraining(**words)
    training.optimizer_steps_us(300)
    recorder = leave_steps_out(training)
    pre, post = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
    hooks_of_torch = [(hooks, dict(hooks)) for hooks in (pre, post)]
    handle: Any = RemovableHandle(post)
    handle.id, unseen_end = next(iter(post.items()))
    clocked_ns: deque[int] = deque()
    took_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
    cpu_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            for hooks, ours in hooks_of_torch:
                hooks.clear()
                hooks.update(ours if kind == "left out" else {})
            if kind == "left out":
                post[handle.id] = make_clocked_end(unseen_end, handle, clocked_ns)
            training.optimizer_steps_us(WARM_UP_STEPS)
            began_ns = time.thread_time_ns()
            took_us[kind].append(statistics.median(training.optimizer_steps_us(SEGMENT_STEPS)))
            cpu_us[kind].append((time.thread_time_ns() - began_ns) / 1e3 / SEGMENT_STEPS)
            assert recorder.unseen.optimizer
    figures: dict[str, Any] = {"plain_us": statistics.median(took_us["plain"])}
    for kind in KINDS[1:]:
        for name, measured in ((kind, took_us), (f"{kind}, whole step", cpu_us)):
            differences = [us - plain for us, plain in zip(measured[kind], measured["plain"], strict=True)]
            figures[name] = statistics.quantiles(differences)
    figures["clocked"] = [ns / 1e3 for ns in statistics.quantiles(clocked_ns)]
    print(json.dumps(figures), flush=True)
    for hooks, ours in hooks_of_torch:
        hooks.update(ours)
    dist.destroy_process_group()


def leave_steps_out(training: TimedTraining) -> Any:
    """Train until only the ends of steps are seen, and have it stay so. Returns the recorder."""
    session: Any = current_session()
    recorder, budget = session.recorder, session.publisher.budget
    rates = SamplingRates(detail_every=4096, record_every=1 << 40, loss_every=4096, marks_every=4096)
    type(budget).rates = property(lambda _budget: rates)
    session.request_description = lambda: None  # it would have a step seen
    recorder.rates = rates
    while not recorder.unseen.optimizer:
        training.optimizer_steps_us(1)
    training.optimizer_steps_us(100)
    return recorder


if __name__ == "__main__":
    main()
