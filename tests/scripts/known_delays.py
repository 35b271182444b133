"""A DDP script that knows what it injects: known_delays.py STEPS SLEEP_MS [NAMESPACE...]

Rank r comes r x 10 ms late to every backward. A communication hook lets each all-reduce take SLEEP_MS
longer in the second half of the steps. With a network namespace for each rank there is no hook, and the
ranks talk through whatever link joins the namespaces. Rank 0 prints a line of JSON for each half, or for all
steps where there is no hook, medians by the script's own clocks: `wait_ms` of each rank, `transfer_ms` until
backward returned, and `least_ms` of it until the hook was done, where there is one.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LATE_S = 0.01
WIDTH = 64
CLONE_NEWNET = 0x40000000


class Stamps:
    """When this rank had its gradients, and when the all-reduce was done."""

    def __init__(self) -> None:
        self.arrived: list[int] = []
        self.ended: list[int] = []
        self.hook_done: list[int] = []
        self._arrived = 0

    def gradient(self, _gradient: torch.Tensor) -> None:
        self._arrived = time.monotonic_ns()  # that of the last parameter stays: with it the bucket goes out

    def backward_done(self) -> None:
        self.arrived.append(self._arrived)
        self.ended.append(time.monotonic_ns())


def join(namespaces: list[str]) -> None:
    """Meet the other ranks, each in its own network namespace if there are any."""
    if not namespaces:
        dist.init_process_group("gloo")
        return
    rank = int(os.environ["RANK"])
    with Path("/run/netns", namespaces[rank]).open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ["GLOO_SOCKET_IFNAME"] = namespaces[rank]  # the device is called as its namespace
    store = dist.FileStore(str(Path.cwd() / "store"), len(namespaces))  # torchrun's is not within reach there
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(namespaces))


def main() -> None:
    steps, sleep_s, namespaces = int(sys.argv[1]), float(sys.argv[2]) / 1e3, sys.argv[3:]
    torch.set_num_threads(1)
    join(namespaces)
    torch.manual_seed(0)
    stamps = Stamps()
    net = nn.Linear(WIDTH, WIDTH)
    for parameter in net.parameters():
        parameter.register_hook(stamps.gradient)
    model = DDP(net)

    def slow_all_reduce(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        late = len(stamps.arrived) >= steps // 2

        def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            if late:
                time.sleep(sleep_s)
            result = done.value()[0]
            stamps.hook_done.append(time.monotonic_ns())
            return result

        tensor = bucket.buffer().div_(dist.get_world_size())
        return dist.all_reduce(tensor, async_op=True).get_future().then(finish)

    if not namespaces:
        model.register_comm_hook(None, slow_all_reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, WIDTH)).square().mean()
        time.sleep(dist.get_rank() * LATE_S)
        loss.backward()
        stamps.backward_done()
        optimizer.step()
    tell(stamps)
    dist.destroy_process_group()


def tell(stamps: Stamps) -> None:
    hooked = bool(stamps.hook_done)
    mine = torch.tensor([stamps.arrived, stamps.ended, stamps.hook_done if hooked else stamps.ended])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if dist.get_rank() != 0:
        return
    arrived, ended, hook_done = torch.stack(everyone, dim=1)
    last = arrived.max(dim=0).values
    waits, transfer = (last - arrived) / 1e6, ((ended - last) / 1e6).mean(dim=0)
    least = ((hook_done - last) / 1e6).mean(dim=0)
    middle = arrived.shape[1] // 2
    for half in (slice(middle), slice(middle, None)) if hooked else (slice(None),):
        told = {
            "wait_ms": waits[:, half].median(dim=1).values.tolist(),
            "transfer_ms": transfer[half].median().item(),
            "least_ms": least[half].median().item() if hooked else None,
        }
        print(json.dumps(told))


if __name__ == "__main__":
    main()
