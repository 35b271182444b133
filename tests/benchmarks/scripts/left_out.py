"""Trains under ddptop-run, in turn in steps that are left out and without ddptop's hooks: left_out.py LAYERS
WIDTH ROUNDS

In steps that are left out torch's functions are not wrapped; what differs from plain training are the
optimizer's hooks. Prints a line of JSON: CPU time of the training thread, in us a step; by how much more than
plain, quartiles.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from alternate import Training
from torch.optim import optimizer as torch_optimizer

from ddptop.training.attach import current_session
from ddptop.training.sampling_rates import SamplingRates

SEGMENT_STEPS, WARM_UP_STEPS = 20, 3
KINDS = ("plain", "left out", "control")


def main() -> None:
    depth, width, rounds = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = Training(depth, width)
    training.steps(300)
    recorder = leave_steps_out(training)
    pre, post = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
    hooks_of_torch = [(hooks, dict(hooks)) for hooks in (pre, post)]
    spent_us: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            for hooks, ours in hooks_of_torch:
                hooks.clear()
                hooks.update(ours if kind == "left out" else {})
            training.steps(WARM_UP_STEPS)
            began = time.thread_time_ns()
            training.steps(SEGMENT_STEPS)
            spent_us[kind].append((time.thread_time_ns() - began) / SEGMENT_STEPS / 1e3)
            assert recorder.unseen.optimizer
    figures: dict[str, Any] = {"plain_us": statistics.median(spent_us["plain"])}
    for kind in KINDS[1:]:
        differences = [us - plain for us, plain in zip(spent_us[kind], spent_us["plain"], strict=True)]
        figures[kind] = statistics.quantiles(differences)
    print(json.dumps(figures), flush=True)
    for hooks, ours in hooks_of_torch:
        hooks.update(ours)
    dist.destroy_process_group()


def leave_steps_out(training: Training) -> Any:
    """Train until only the ends of steps are seen, and have it stay so. Returns the recorder."""
    session: Any = current_session()
    recorder, budget = session.recorder, session.publisher.budget
    rates = SamplingRates(detail_every=4096, record_every=1 << 40, loss_every=4096, marks_every=4096)
    type(budget).rates = property(lambda _budget: rates)
    session.request_description = lambda: None  # it would have a step seen
    recorder.rates = rates
    while not recorder.unseen.optimizer:
        training.steps(1)
    training.steps(100)
    return recorder


if __name__ == "__main__":
    main()
