"""Who is late by torch's flight recorder: what reading it costs, and how well it tells.

`TORCH_FR_BUFFER_SIZE=400 torchrun --standalone --nproc-per-node 2 -m tests.benchmarks.bench_flight
[--steps N] [--every S] [--slow-ms MS]`

FSDP2 on gloo; rank 1 is late before each forward. A thread of each rank reads the recorder every so many
seconds. Afterwards the launches of equal group and number are compared between the ranks: the largest
lateness of a step should be the delay, in the first collective of the step.
"""

from __future__ import annotations

import argparse
import pickle
import threading
import time
from collections import Counter, defaultdict
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

Launches = dict[tuple[str, int], int]
"""By process group and number in it, when a collective was launched."""


class Reader(threading.Thread):
    """Reads the recorder again and again, and times itself."""

    def __init__(self, every_s: float) -> None:
        super().__init__(daemon=True)
        self.launches: Launches = {}
        self.cpu_s: list[float] = []
        self.entries = 0
        self._every_s = every_s
        self._ends = threading.Event()

    def run(self) -> None:
        """Until the end."""
        while not self._ends.wait(self._every_s):
            self.read_once()

    def read_once(self) -> None:
        """Keep what is new."""
        begin = time.thread_time()
        dump = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False, False))
        for entry in dump["entries"]:
            key = (entry["process_group"][0], entry["collective_seq_id"])
            self.launches[key] = entry["time_created_ns"]
        self.cpu_s.append(time.thread_time() - begin)
        self.entries = max(self.entries, len(dump["entries"]))

    def end(self) -> None:
        """End the thread."""
        self._ends.set()
        self.join()


def train(steps: int, slow_ms: float) -> float:
    """Returns its seconds."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = time.perf_counter()
    for _ in range(steps):
        if dist.get_rank() == 1:
            time.sleep(slow_ms / 1e3)
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return time.perf_counter() - begin


def compare(first: Launches, second: Launches, steps: int) -> None:
    """Print how late rank 1 was in each step."""
    both = sorted(first.keys() & second.keys())
    launched = max(number for _, number in first)
    per_step = launched // steps
    late: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for key in both:
        step, place = divmod(key[1] - 1, per_step)
        late[step].append(((second[key] - first[key]) / 1e6, place))
    worst = [max(entries) for entries in late.values() if len(entries) == per_step]
    cuts = quantiles([ms for ms, _ in worst], n=10)
    print(f"{100 * len(both) / launched:.0f} % of {launched} collectives seen on both ranks")
    middle = median(ms for ms, _ in worst)
    print(f"largest lateness of a step, ms: {middle:.1f} ({cuts[0]:.1f} to {cuts[-1]:.1f})")
    (place, times), *_ = Counter(place for _, place in worst).most_common(1)
    print(f"in collective {place} of {per_step} in {times} of {len(worst)} steps")


def main() -> None:
    """Train, read, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--slow-ms", type=float, default=20.0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    reader = Reader(options.every)
    reader.start()
    seconds = train(options.steps, options.slow_ms)
    reader.end()
    reader.read_once()
    of_ranks: list[Any] = [None, None]
    dist.all_gather_object(of_ranks, reader.launches)
    if dist.get_rank() == 0:
        per_read = 1e3 * median(reader.cpu_s)
        share = 100 * sum(reader.cpu_s) / seconds
        print(f"{reader.entries} entries: {per_read:.1f} ms of CPU a read, {share:.2f} % of the time")
        compare(*of_ranks[:2], options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
