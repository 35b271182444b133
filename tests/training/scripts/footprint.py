"""Prints what being recorded adds to a rank: threads, sockets, also of a forked child, and modules."""

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddptop.training import start_report
from ddptop.training.attach import current_session


def threads() -> int:
    return len([*Path("/proc/self/task").iterdir()])


def sockets() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which the folder is read
            found.add(str(link.readlink()))
    return {name for name in found if name.startswith("socket:")}


dist.init_process_group("gloo")
reports = start_report._current
"""The rank may report already: its thread and its connection are those of the session later."""
begun = reports.sender if reports is not None else None
connected = begun._dealer._socket if begun is not None else None
early = {str(Path(f"/proc/self/fd/{connected.fileno()}").readlink())} if connected else set()
threads_before, sockets_before = threads() - (reports is not None), sockets() - early
model = DDP(nn.Linear(2, 2))
modules_before = set(sys.modules)
end = time.monotonic() + 60
while len(sockets() - sockets_before) < 2 and time.monotonic() < end:
    time.sleep(0.01)
session = current_session()
dealer = session.publisher._sender._dealer
remove = session.last_gradients.remove_hooks
session.last_gradients.remove_hooks = None  # a step of the work after a fork that fails
# As while the publisher's thread is in a system call. That thread must not run: it would fail.
sys.setswitchinterval(60)
with memoryview(dealer._unsent):
    child = os.fork()
    if child == 0:
        inherits = session.publisher is not None or session.recorder.counter != [0]
        os._exit(10 * inherits + len(sockets() - sockets_before))
sys.setswitchinterval(0.005)
session.last_gradients.remove_hooks = remove
figures = {
    "threads": threads() - threads_before,
    "sockets": len(sockets() - sockets_before),
    "sockets of a child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    "zmq": any(name.partition(".")[0] == "zmq" for name in sys.modules),
}
dist.destroy_process_group()  # waits until the publisher has said what there is
print(json.dumps(figures | {"imports": sorted(set(sys.modules) - modules_before)}))
