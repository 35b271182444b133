"""Trains until its launcher ends it by a signal, and keeps in a file how many steps each rank has finished.

`ended.py CAUSE PLACE...`: after STEPS steps rank 0 sends SIGTERM to the launcher (`signalled`), or exits with
code 3 (`failed`). By then each rank is in its PLACE: it `trains` on, `sleeps`, `waits` (in a collective, with
the last rank), `computes` (in C code without the interpreter lock), `holds` it, or `handles` SIGTERM itself
while it sleeps, and exits with code 7.
"""

import hashlib
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

cause, *places = sys.argv[1:]
STEPS = 60
rank = int(os.environ["RANK"])
place = places[rank]
count = os.open(f"steps-{rank}", os.O_RDWR | os.O_CREAT, 0o600)
dist.init_process_group("gloo")
everybody, both = dist.new_group(), dist.new_group([0, len(places) - 1])


def handle(*_: object) -> None:
    """A handler of the script's own."""
    sys.exit(7)


def stay() -> None:
    """All ranks have finished STEPS steps."""
    handler = signal.SIG_DFL if place != "handles" else handle
    assert signal.getsignal(signal.SIGTERM) == handler
    assert signal.set_wakeup_fd(-1) == -1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    dist.barrier(everybody)
    if rank == 0 and cause == "failed":
        os._exit(3)
    if rank == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    if place in ("sleeps", "handles"):
        time.sleep(600)
    elif place == "waits":
        dist.barrier(both)
    elif place == "computes":
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
    elif place == "holds":
        sum(range(1 << 40))


if place == "handles":
    signal.signal(signal.SIGTERM, handle)


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.pwrite(count, str(self.steps).encode(), 0)  # finished: the next one has begun
        if self.steps == STEPS:
            stay()
        self.steps += 1
        return self.inner(x)


torch.manual_seed(1)
model = DistributedDataParallel(Counted())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    time.sleep(0.005)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
