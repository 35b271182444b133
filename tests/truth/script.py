"""Trains in steps of some 10 ms, alternately even and with a fault, and stamps its own delays.

script.py FOLDER SPEC: SPEC is a JSON object of the fields of `Row` (rows.py) plus `steps` (of a window),
`windows`, `seed` and `seconds`. Odd windows have the fault; its rank is drawn for each. Each rank writes
FOLDER/rank-N.jsonl: a header, then for every step its wall time, how long it was late, and its backward.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH = 320, 4, 48
DATA_S = 0.002
"""Every batch takes this."""

ASLEEP_WIDTH, VARIES = 16, 0.1
"""Of ranks whose work is sleep: a model that takes next to nothing, and the standard deviation of a sleep as
a share of its mean. They do not need a core at the same time, so that the machine changes little."""

SMALLEST, LARGEST, LARGER = 16, 1024, 3
"""Sizes of uneven batches, and how many times as many samples a larger one has."""

HEAP = 200_000
"""Objects that a garbage collection goes through: some 25 ms. Those of torch itself are frozen."""

QUOTA_US, PERIOD_US = 30_000, 100_000
"""CPU time that the rank may use in each period."""

CGROUPS = Path("/sys/fs/cgroup")
STOP_AND_GO = (
    "import os, signal, sys, time\npid = int(sys.argv[1])\n"
    "while os.getppid() == pid:\n"
    " os.kill(pid, signal.SIGSTOP); time.sleep(0.05); os.kill(pid, signal.SIGCONT); time.sleep(0.05)"
)


def own_cgroup() -> Path:
    """The folder of this process's CPU cgroup, of version 1 or 2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return CGROUPS / "cpu" / path.lstrip("/")
        version_2 = CGROUPS / path.lstrip("/")
    return version_2


BUSY = "import os, sys\npid = int(sys.argv[1])\nwhile os.getppid() == pid: pass"


class Quota:
    """Limits the CPU time of this process: a cgroup, or where none can be made, SIGSTOP and SIGCONT."""

    def __init__(self) -> None:
        self._parent = own_cgroup()
        self._group = self._parent / f"ddptop-truth-{os.getpid()}"
        self._child: subprocess.Popen[bytes] | None = None
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
            self.limit(False)
            self.how = "cgroup"
        except OSError:
            with contextlib.suppress(OSError):
                self._group.rmdir()
            self.how = "SIGSTOP and SIGCONT"

    def limit(self, on: bool) -> None:
        if self._group.is_dir():
            if (self._group / "cpu.max").exists():
                (self._group / "cpu.max").write_text(f"{QUOTA_US if on else 'max'} {PERIOD_US}")
            else:
                (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self._group / "cpu.cfs_quota_us").write_text(str(QUOTA_US if on else -1))
        elif on:
            self._child = subprocess.Popen([sys.executable, "-c", STOP_AND_GO, str(os.getpid())])
        else:
            self.end()

    def throttled_ms(self) -> float:
        """How long it was throttled so far, as the kernel counts it; 0 where it does not."""
        with contextlib.suppress(OSError):
            for line in (self._group / "cpu.stat").read_text().splitlines():
                name, value = line.split()
                if name in ("throttled_time", "throttled_usec"):
                    return int(value) / (1e6 if name == "throttled_time" else 1e3)
        return 0.0

    def end(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()
            self._child = None
        if self._group.is_dir():
            self.limit(False)
            (self._parent / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):
                self._group.rmdir()


class Hog:
    """A busy loop on the core of this process, which has one to itself otherwise."""

    def __init__(self, rank: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.core = cores[rank % len(cores)]
        os.sched_setaffinity(0, {self.core})
        self.how = "a busy loop on its core"
        self._child: subprocess.Popen[bytes] | None = None

    def limit(self, on: bool) -> None:
        if on and self._child is None:
            self._child = subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())])
        elif not on:
            self.end()

    def throttled_ms(self) -> float:
        """Not known."""
        return 0.0

    def end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


class Fault:
    """Delays this rank where the plan says so, and keeps its own times."""

    def __init__(self, spec: dict[str, Any], rank: int, world: int) -> None:
        self.spec, self.rank, self.world = spec, rank, world
        self.step = self.micro = 0
        self.width = ASLEEP_WIDTH if spec["asleep_ms"] else WIDTH
        self.late_ms = 0.0
        """Of the present step; of an after-optimizer delay, which lies in the next step, see `after`."""
        self.quota: Quota | Hog | None = None
        if spec["kind"] in ("quota", "hog"):
            self.quota = Quota() if spec["kind"] == "quota" else Hog(rank)
        if spec["kind"] == "gc":
            gc.disable()
            gc.freeze()
            self.heap = [[] for _ in range(HEAP)]

    def window(self, step: int) -> int:
        return step // self.spec["steps"]

    def drawn(self, window: int, key: str = "") -> list[int]:
        """The late ranks of a window, the same on all ranks."""
        spec = self.spec
        if window % 2 == 0 or window >= spec["windows"] or spec["kind"] in ("none", "no_sync"):
            return []
        return random.Random(f"{spec['seed']} {key or window}").sample(range(self.world), spec["late"])

    def late_ranks(self, step: int) -> list[int]:
        """The ranks that are late in a step."""
        spec, one_in = self.spec, self.spec["one_in"]
        block = random.Random(f"{spec['seed']} block {step // one_in}")
        if block.randrange(one_in) != step % one_in:
            return []
        return self.drawn(self.window(step), f"step {step}" if spec["rotating"] else "")

    def at(self, place: str, step: int | None = None) -> None:
        """Sleep or collect garbage here if this is the place and the rank is late in this step."""
        step, spec = self.step if step is None else step, self.spec
        if place != spec["place"] or spec["kind"] not in ("sleep", "gc"):
            return
        if self.rank not in self.late_ranks(step) or self.micro != spec["micro"] // 2:
            return
        begin = time.monotonic_ns()
        if spec["kind"] == "gc":
            gc.collect()
        else:
            time.sleep(spec["ms"] / 1e3)
        self.late_ms += (time.monotonic_ns() - begin) / 1e6

    def work(self) -> None:
        """Sleep as the work of this step: the time is drawn for each rank and step."""
        mean_ms = self.spec["asleep_ms"]
        if mean_ms:
            drawn = random.Random(f"{self.spec['seed']} {self.rank} {self.step}").gauss(1.0, VARIES)
            time.sleep(mean_ms * max(0.0, drawn) / 1e3)

    def samples(self, step: int) -> int:
        """How many samples the batch of this step has."""
        kind, late = self.spec["kind"], self.late_ranks(step)
        if kind == "uneven" and late:
            return random.Random(f"{self.spec['seed']} {self.rank} {step}").randint(SMALLEST, LARGEST)
        return BATCH * (LARGER if kind == "larger" and self.rank in late else 1)


class Batches(Dataset):
    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __len__(self) -> int:
        spec = self._fault.spec
        return spec["steps"] * spec["windows"] * spec["micro"]

    def __getitem__(self, index: int) -> torch.Tensor:
        micro = self._fault.spec["micro"]
        time.sleep(DATA_S)
        self._fault.micro = index % micro
        self._fault.at("data", index // micro)
        return torch.ones(self._fault.samples(index // micro) // micro, self._fault.width)


class LateBackward(torch.autograd.Function):
    fault: Fault

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        LateBackward.fault.at("backward")
        return gradient


class Net(nn.Module):
    def __init__(self, fault: Fault) -> None:
        super().__init__()
        width = fault.width
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.first, self.second = nn.Sequential(*layers[:LAYERS]), nn.Sequential(*layers[LAYERS:])
        self._fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._fault.at("forward")
        self._fault.work()
        return self.second(LateBackward.apply(self.first(x)))


class LateSGD(torch.optim.SGD):
    def __init__(self, parameters: Iterator[nn.Parameter], fault: Fault) -> None:
        super().__init__(parameters, lr=1e-7)
        self._fault = fault

    def step(self, closure: object = None) -> None:
        self._fault.at("optimizer")
        super().step(closure)


def train(fault: Fault, out: Any) -> None:
    """All windows, or as many as fit into `seconds`."""
    spec = fault.spec
    LateBackward.fault = fault
    model = DDP(Net(fault), bucket_cap_mb=spec["bucket_mb"])
    optimizer = LateSGD(model.parameters(), fault)
    metric, go_on = torch.zeros(1), torch.ones(1)
    begin = first = time.monotonic_ns()
    throttled = fault.quota.throttled_ms() if fault.quota else 0.0
    backward_ms = 0.0
    for index, x in enumerate(DataLoader(Batches(fault), batch_size=None)):
        step, micro = divmod(index, spec["micro"])
        fault.step = step
        fault.at("before_forward")
        silent = spec["kind"] == "no_sync" and fault.window(step) % 2 == 1
        with model.no_sync() if silent or micro < spec["micro"] - 1 else contextlib.nullcontext():
            loss = model(x).square().mean()
            fault.at("before_backward")
            if spec["metric"]:
                metric.fill_(1.0)
                dist.all_reduce(metric)
            started = time.monotonic_ns()
            loss.backward()
            backward_ms += (time.monotonic_ns() - started) / 1e6
        if micro < spec["micro"] - 1:
            continue
        fault.at("before_optimizer")
        optimizer.step()
        optimizer.zero_grad()
        now = time.monotonic_ns()
        if fault.quota:
            before, throttled = throttled, fault.quota.throttled_ms()
            fault.late_ms = throttled - before
        stamp = {"step": step, "wall_ms": (now - begin) / 1e6, "late_ms": fault.late_ms}
        out.write(json.dumps(stamp | {"backward_ms": backward_ms}) + "\n")
        begin, fault.late_ms, backward_ms = now, 0.0, 0.0
        fault.at("after_optimizer", step + 1)
        if (step + 1) % spec["steps"] == 0:
            if fault.quota:
                fault.quota.limit(fault.rank in fault.drawn(fault.window(step + 1)))
            if spec["seconds"]:
                go_on.fill_(time.monotonic_ns() - first < 1e9 * spec["seconds"])
                dist.broadcast(go_on, 0)  # all ranks end at the same step
                if not go_on:
                    break


def main() -> None:
    folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, world = dist.get_rank(), dist.get_world_size()
    fault = Fault(spec, rank, world)
    how = fault.quota.how if fault.quota else spec["kind"]
    late = [fault.drawn(window) for window in range(min(spec["windows"], 1000))]
    with (folder / f"rank-{rank}.jsonl").open("w") as out:
        out.write(json.dumps({"rank": rank, "world": world, "how": how, "late": late, "spec": spec}) + "\n")
        try:
            train(fault, out)
        finally:
            if fault.quota:
                fault.quota.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
