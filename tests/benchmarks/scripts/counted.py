"""Trains under ddptop-run, and prints where the cost goes that ddptop counts: counted.py LAYERS WIDTH SECONDS

Prints a line of JSON: medians over the seconds, in us a step, and the publisher's CPU time by its clock.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from alternate import Training

from ddptop.training.attach import current_session
from ddptop.training.medians import median_or_zero

WARM_UP_S = 25.0
"""Until the pattern has settled: 4 s in full detail, and with a small budget a few batches of 4 s."""


def main() -> None:
    depth, width, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = Training(depth, width)
    training.steps(100)
    session: Any = current_session()
    budget, recorder = session.publisher.budget, session.recorder
    train_for(training, WARM_UP_S)
    clock = time.pthread_getcpuclockid(session.publisher.ident)
    published_s, began_s, first = time.clock_gettime(clock), time.monotonic(), recorder.step
    rows = []
    for _ in range(int(seconds)):
        train_for(training, 1.0)
        rows.append(parts_of(budget))
    figures = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    elapsed_s = time.monotonic() - began_s
    figures["publisher, % of a core"] = 100 * (time.clock_gettime(clock) - published_s) / elapsed_s
    figures["mean step"] = 1e6 * elapsed_s / (recorder.step - first)
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def train_for(training: Training, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        training.steps(5)


def parts_of(budget: Any) -> dict[str, float]:
    """What the budget knows, in us a step; the recorded steps' share is spread over all."""
    recorded_ns, detail_ns = budget._recorded_step_ns()
    every = budget.record_every
    return {
        "step": budget.step_ns / 1e3,
        "counted, %": budget.cost_pct,
        "one step in": every,
        "left out": budget._aside_ns / 1e3 if every > 1 else 0.0,
        "a recorded step": recorded_ns / 1e3,
        "recorded steps": recorded_ns / every / 1e3,
        "detail": detail_ns / budget._detail_distance(budget.detail_every) / 1e3,
        "publisher": median_or_zero(budget._publishing) * budget.step_ns / 1e3,
    }


if __name__ == "__main__":
    main()
