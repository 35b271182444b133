"""Trains under ddptop-run with more and more of the recorder, in turn: parts.py LAYERS WIDTH ROUNDS

CPU time of the training thread, and of the process (gloo's threads take the ends of buckets), the publisher's
apart. Segments are short, and compared by their median step; each part with the one before it in the same
round. Rank 0 prints a line of JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from alternate import Training
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import dataloader

from ddptop.training.attach import current_session

SEGMENT_STEPS = 15
WARM_UP_STEPS = 2

PARTS = (
    "plain",
    "control",
    "data",
    "forward",
    "backward",
    "last gradient",
    "optimizer, record",
    "loss",
    "replica check",
    "bucket detail",
)
"""Each with all before it: wrappers of the loader, of forward and of backward, the stamp at the last
gradient, the optimizer's hooks and with them a record per step, reading the loss, checksums, timed
all-reduces."""

NEVER = 4096


class Parts:
    """Puts the recorder's wrappers into torch one by one."""

    def __init__(self, model: DDP) -> None:
        session: Any = current_session()
        self._model = model
        self._recorder = session.recorder
        self._check = self._recorder.check
        self._budget = session.publisher.budget
        self.counted: dict[bool, list[int]] = {False: [], True: []}
        """By whether all-reduces were timed, what the recorder's clocks counted, where they were read."""
        account = self._budget.account_for

        def accounting(records: Any, *words: Any) -> None:
            for record in records:
                if record.cost:
                    self.counted[bool(record.calls)].append(record.cost)
            account(records, *words)

        self._budget.account_for = accounting
        self._switch: Callable[[bool], None] = session.switch_models
        self._last_gradients = session.last_gradients
        self._wrapped = {
            place: getattr(*place)
            for place in (
                (dataloader._SingleProcessDataLoaderIter, "_next_data"),
                (DDP, "_pre_forward"),
                (DDP, "_post_forward"),
                (torch.autograd, "backward"),
            )
        }
        pre, post = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
        self._hooks = [(hooks, dict(hooks)) for hooks in (pre, post)]

    def use(self, name: str) -> None:
        """Use this part and all before it."""
        has = set(PARTS[1 : PARTS.index(name) + 1])
        names = ("data", "forward", "forward", "backward")
        for part, (place, wrapped) in zip(names, self._wrapped.items(), strict=True):
            setattr(*place, wrapped if part in has else wrapped.__wrapped__)
        self._last_gradients.remove_hooks()
        if "last gradient" in has:
            self._last_gradients.watch_model(self._model)
        for hooks, kept in self._hooks:
            hooks.clear()
            hooks.update(kept if "optimizer, record" in has else {})
        recorder, budget = self._recorder, self._budget
        recorder.finish_step()
        recorder.reset_steps()
        recorder._entries += 1  # the publisher begins anew, too
        recorder.cost_clock = int  # without a record per step nothing else would set it
        recorder.on.choose_methods(timed=False)
        recorder.check = self._check if "replica check" in has else None
        budget.loss_every = recorder.loss_every = 1 if "loss" in has else NEVER
        recorder.wants_loss = "loss" in has
        detail = "bucket detail" in has
        budget.every = 1 if detail else NEVER
        recorder.rates = budget.rates
        recorder.detail = detail
        self._switch(detail)


def main() -> None:
    depth, width, rounds = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    training = Training(depth, width)
    training.steps(300)
    publisher: Any = current_session().publisher
    _hold_settings(publisher.budget)
    publishing = time.pthread_getcpuclockid(publisher.ident)
    parts = Parts(training.model)
    threads: dict[str, list[float]] = {name: [] for name in PARTS}
    processes: dict[str, list[float]] = {name: [] for name in PARTS}
    published, steps, walls = 0.0, 0, []
    for number in range(rounds):
        for name in PARTS if number % 2 else PARTS[::-1]:
            parts.use(name)
            training.steps(WARM_UP_STEPS)
            before = time.clock_gettime(publishing)
            wall, thread, process = medians(training, SEGMENT_STEPS)
            threads[name].append(thread)
            processes[name].append(process)
            if name == PARTS[-1]:
                published += time.clock_gettime(publishing) - before
                steps += SEGMENT_STEPS
            if name == PARTS[0]:
                walls.append(wall / 1e3)
    if dist.get_rank() == 0:
        both = (threads, processes)
        rows = {name: [added(measured, name) for measured in both] for name in PARTS[1:]}
        for name, until in (("all without detail", "replica check"), ("all", "bucket detail")):
            rows[name] = [median_of_differences(measured[until], measured["plain"]) for measured in both]
        counted = [statistics.median(costs) / 1e3 for costs in parts.counted.values() if costs]
        figures = {"ms": statistics.median(walls), "publisher": published / steps * 1e6, "rows": rows}
        figures["counted"] = counted
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


def medians(training: Training, count: int) -> tuple[float, float, float]:
    """Of so many steps: elapsed time, CPU time of this thread and of the process, in us.

    The publisher runs in few of the steps, so that it is not in a median.
    """
    clocks = (time.perf_counter_ns, time.thread_time_ns, time.process_time_ns)
    rows = []
    for _ in range(count):
        begins = [clock() for clock in clocks]
        training.steps(1)
        rows.append([clock() - begin for clock, begin in zip(clocks, begins, strict=True)])
    wall, thread, process = (statistics.median(column) / 1e3 for column in zip(*rows, strict=True))
    return wall, thread, process


def added(measured: dict[str, list[float]], name: str) -> float:
    """What a part adds to the one before it, per step in us. The control is measured against plain."""
    before = PARTS[PARTS.index(name) - 1] if name != "data" else "plain"
    return median_of_differences(measured[name], measured[before])


def median_of_differences(these: Iterable[float], those: Iterable[float]) -> float:
    return statistics.median(a - b for a, b in zip(these, those, strict=True))


def _hold_settings(budget: Any) -> None:
    """The collector does not change what is measured."""
    type(budget).detail_every = property(lambda self: self.every)


if __name__ == "__main__":
    main()
