"""Trains under ddptop-run and times the recorder's wrappers from outside: calls.py LAYERS WIDTH

Prints a line of JSON: us a step of each wrapper without what it wraps, their sum in steps without and with
the recorder's own clocks, and what the recorder counts, medians; ms of the step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from alternate import Training
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from ddptop.training.attach import current_session

PLACES: dict[str, tuple[Any, str]] = {
    "data": (dataloader._SingleProcessDataLoaderIter, "_next_data"),
    "pre_forward": (DDP, "_pre_forward"),
    "post_forward": (DDP, "_post_forward"),
    "backward": (torch.autograd, "backward"),
}
WARM_UP_STEPS, STEPS, NEVER = 260, 1200, 4096
clock = time.perf_counter_ns
spent: dict[str, int] = {}


def timed(name: str, sign: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose time is added to or taken from what is spent under this name."""

    def timing(*args: Any, **kwargs: Any) -> Any:
        began = clock()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0) + sign * (clock() - began)

    return timing


def median_us(rows: list[float]) -> float:
    return round(statistics.median(rows) / 1e3, 1) if rows else float("nan")


def main() -> None:
    depth, width = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name, place in PLACES.items():  # below the wrappers, which come with the first model
        setattr(*place, timed(name, -1, getattr(*place)))
    training = Training(depth, width)
    session: Any = current_session()
    for name, place in PLACES.items():
        setattr(*place, timed(name, 1, getattr(*place)))
    for name in ("pre", "post"):
        hooks = getattr(torch_optimizer, f"_global_optimizer_{name}_hooks")
        hooks.update({key: timed(f"optimizer, {name}", 1, hook) for key, hook in hooks.items()})
    recorder, budget = session.recorder, session.publisher.budget
    kind = type(recorder)
    kind.last_gradient = timed("last gradient", 1, kind.last_gradient)
    budget.every = NEVER
    recorder.rates = budget.rates
    counted: list[float] = []
    account = budget.account_for

    def accounting(records: Any, *words: Any) -> None:
        counted.extend(record.cost for record in records if record.step > WARM_UP_STEPS and record.cost)
        account(records, *words)

    budget.account_for = accounting
    rows: dict[bool, list[dict[str, int]]] = {False: [], True: []}
    walls = []
    for step in range(STEPS):
        spent.clear()
        wall, _ = training.steps(1)
        measured = recorder.cost_clock is not int  # until the next forward closes the step
        if step > WARM_UP_STEPS:
            walls.append(wall * 1e9)
            rows[measured].append(dict(spent))
    time.sleep(1.0)  # the publisher takes the last ones
    figures = {name: median_us([row.get(name, 0) for row in rows[False]]) for name in rows[False][-1]}
    figures["sum"] = median_us([sum(row.values()) for row in rows[False]])
    figures["with clocks"] = median_us([sum(row.values()) for row in rows[True]])
    figures["counted"] = median_us(counted)
    figures["ms"] = median_us(walls) / 1e3
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
