"""Prints what being recorded adds to a rank: threads, sockets, also of a forked child, and modules."""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddptop.training.attach import current_session
from ddptop.transport.zmtp import Dealer


def threads() -> int:
    return len([*Path("/proc/self/task").iterdir()])


def sockets() -> dict[str, int]:
    """A descriptor of each, by its name."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which the folder is read
            found[str(link.readlink())] = int(link.name)
    return {name: number for name, number in found.items() if name.startswith("socket:")}


def leads_to_collector(number: int) -> bool:
    with socket.socket(fileno=os.dup(number)) as end, suppress(OSError):  # not connected
        return end.getpeername() == f"{os.environ['DDPTOP_RUN_DIR']}/ingest"
    return False


dist.init_process_group("gloo")
# The rank may report already: its thread and its connection are those of the session later.
n_reporting = sum(thread.name == "ddptop-start" for thread in threading.enumerate())
threads_before = threads() - n_reporting
sockets_before = {name for name, number in sockets().items() if not leads_to_collector(number)}
model = DDP(nn.Linear(2, 2))
modules_before = set(sys.modules)
end = time.monotonic() + 60
while len(sockets().keys() - sockets_before) < 2 and time.monotonic() < end:
    time.sleep(0.01)
session = current_session()
remove = session.last_gradients.remove_hooks
session.last_gradients.remove_hooks = None  # a step of the work after a fork that fails
close = Dealer.close
Dealer.close = None  # it fails where the publisher's thread was in a system call
child = os.fork()
if child == 0:
    inherits = session.publisher is not None or session.recorder.counter != [0]
    os._exit(10 * inherits + len(sockets().keys() - sockets_before))
Dealer.close = close
session.last_gradients.remove_hooks = remove
figures = {
    "threads": threads() - threads_before,
    "sockets": len(sockets().keys() - sockets_before),
    "sockets of a child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
    "zmq": any(name.partition(".")[0] == "zmq" for name in sys.modules),
}
dist.destroy_process_group()  # waits until the publisher has said what there is
print(json.dumps(figures | {"imports": sorted(set(sys.modules) - modules_before)}))
