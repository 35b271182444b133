"""Trains until something goes wrong on one rank: incident_script.py FOLDER SPEC

SPEC is a JSON object: `kind` (below), `rank`, `step` and `steps`. Just before the fault its rank writes
FOLDER/fault.json: the time, and the line of this file that follows, at which the fault begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.008
LIMIT_BYTES = 64 << 20
MEMORY = Path("/sys/fs/cgroup/memory")

FOLDER = Path(sys.argv[1])
LOCK = threading.Lock()


def mark() -> None:
    """Write that the fault begins, on the caller's next line."""
    caller = sys._getframe(1)
    stamp = {"unix_s": time.time(), "line": caller.f_lineno + 1, "function": caller.f_code.co_name}
    new = FOLDER / "fault.new"
    new.write_text(json.dumps(stamp))
    new.replace(FOLDER / "fault.json")


# -- hangs ----------------------------------------------------------------------


def asleep(mine: bool) -> None:
    if mine:
        LOCK.acquire()
        mark()
        LOCK.acquire()


def loop(mine: bool) -> None:
    if mine:
        mark()
        while True:
            pass


class Stuck(Dataset[int]):
    """A sample that never comes."""

    def __getitem__(self, index: int) -> int:
        time.sleep(600)
        return index

    def __len__(self) -> int:
        return 8


def next_batch() -> None:
    batches = iter(DataLoader(Stuck(), num_workers=2))
    mark()
    next(batches)


def worker(mine: bool) -> None:
    if mine:
        next_batch()


def lock(mine: bool) -> None:
    if mine:
        mark()
        ctypes.PyDLL(None).sleep(600)


def stopped(mine: bool) -> None:
    if mine:
        mark()
        os.kill(os.getpid(), signal.SIGSTOP)


def save_checkpoint() -> None:
    mark()
    time.sleep(600)


def checkpoint(mine: bool) -> None:
    if mine:
        save_checkpoint()
    dist.barrier()


# -- deaths ---------------------------------------------------------------------


def exception(mine: bool) -> None:
    if mine:
        mark()
        raise ValueError("bad sample")


def shape(mine: bool) -> None:
    if mine:
        mark()
        torch.ones(8, 31) @ torch.ones(32, 8)


def kill(mine: bool) -> None:
    if mine:
        mark()
        os.kill(os.getpid(), signal.SIGKILL)


def memory(mine: bool) -> None:
    if mine:
        mark()
        kept = [bytearray(1 << 20) for _ in range(1 << 12)]
        print(len(kept))


def limit_memory() -> None:
    """Put this process into a cgroup of its own, as a container would be. Raises OSError."""
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line)
    group = MEMORY / own.partition(":memory:")[2].lstrip("/") / f"ddptop-truth-{os.getpid()}"
    group.mkdir()
    (FOLDER / "cgroup").write_text(str(group))
    (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def segv(mine: bool) -> None:
    if mine:
        mark()
        ctypes.string_at(1)


def abort(mine: bool) -> None:
    if mine:
        mark()
        os.abort()


def leave(mine: bool) -> None:
    if mine:
        mark()
        sys.exit(0)


def exit(mine: bool) -> None:
    if mine:
        mark()
        os._exit(3)


# -- mismatches -----------------------------------------------------------------


def operation(mine: bool) -> None:
    if mine:
        mark()
        dist.broadcast(torch.ones(1000), 0)
    else:
        dist.all_reduce(torch.ones(1000))


def size(mine: bool) -> None:
    if mine:
        mark()
        dist.all_reduce(torch.ones(2000))
    else:
        dist.all_reduce(torch.ones(1000))


def type_(mine: bool) -> None:
    if mine:
        mark()
        dist.all_reduce(torch.ones(1000, dtype=torch.float64))
    else:
        dist.all_reduce(torch.ones(1000))


def left_out(mine: bool) -> None:
    if not mine:
        dist.barrier()


def order(mine: bool) -> None:
    groups = [dist.new_group(), dist.new_group()]
    if mine:
        mark()
        dist.all_reduce(torch.ones(4), group=groups[1])
        dist.all_reduce(torch.ones(4), group=groups[0])
    else:
        dist.all_reduce(torch.ones(4), group=groups[0])
        dist.all_reduce(torch.ones(4), group=groups[1])


# -- wrong numbers, and all ranks slower together ---------------------------------


def spoil(kind: str, model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """What this rank does in the step of the fault: its loss becomes NaN, or its replica another one."""
    if kind == "nan":
        mark()
        return loss * torch.nan
    if kind == "drift":
        mark()
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    return loss


_NAMED = (asleep, loop, worker, lock, stopped, checkpoint, exception, shape, kill, memory, segv, abort)
FAULTS: dict[str, Callable[[bool], None]] = {
    **{one.__name__: one for one in (*_NAMED, leave, exit, operation, size, order)},
    "type": type_,
    "left-out": left_out,
}


def train(spec: dict[str, Any], mine: bool) -> None:
    """Steps of some 10 ms, with the fault in one of them."""
    model = DDP(nn.Sequential(*(nn.Linear(32, 32) for _ in range(3))), bucket_cap_mb=0.004)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    fault = FAULTS.get(spec["kind"], lambda _: None)
    for step in range(spec["steps"]):
        if spec["kind"] == "fewer" and mine and step == spec["step"]:
            break
        slower = spec["kind"] == "all" and step >= spec["step"]
        if slower and mine and step == spec["step"]:
            mark()
        time.sleep(STEP_S * (4 if slower else 1))
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32, generator=generator)).square().mean()
        if step == spec["step"]:
            fault(mine)
            loss = spoil(spec["kind"], model, loss) if mine else loss
        if spec["kind"] == "left-out" and mine and step == spec["step"]:
            mark()
            loss.backward()
        else:
            loss.backward()
        optimizer.step()
    if spec["kind"] == "fewer" and mine:
        mark()
    dist.barrier()


def main() -> None:
    spec = json.loads(sys.argv[2])
    mine = int(os.environ["RANK"]) == spec["rank"]
    torch.set_num_threads(1)
    if spec["kind"] == "late" and mine:
        mark()
        time.sleep(600)
    if spec["kind"] == "memory" and mine:
        limit_memory()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(spec, mine)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
