"""What the evidence of causes costs: in a rank per step, and per second in the process that watches a host.

Thread CPU time of each part where it is used, less that of reading the clock: in the rank between the parts
of a real step (so with cold caches), in the other process once in the interval at which it is read. Medians.

Run by hand: python -m tests.benchmarks.bench_evidence [--steps N] [--ranks N]
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from threading import get_ident

import torch

from ddptop.agent.host_usage import HostSampler
from ddptop.host import connections, kernel_view
from ddptop.host.exits import RankProcess
from ddptop.protocol.limits import NS
from ddptop.training.cpu_wait import CpuWait
from ddptop.training.gc_pauses import GcPauses, unwatch_collector, watch_collector
from ddptop.training.step_record import Elements, Losses

WARM_UP = 50
CONNECTIONS = 64
"""TCP connections of the host, both ends of which the kernel lists."""

READINGS = 40
WITHOUT = "garbage collection without its two times"
clock = time.thread_time_ns


class Costs:
    """ns that each part took, by name."""

    def __init__(self) -> None:
        self.empty = min(-clock() + clock() for _ in range(1000))
        self._taken: dict[str, list[int]] = {}

    def of(self, name: str, part: Callable[..., object], *arguments: object) -> None:
        """Run a part once."""
        began = clock()
        part(*arguments)
        self._taken.setdefault(name, []).append(clock() - began - self.empty)

    def show(self, unit: str, every: dict[str, float]) -> None:
        """A line for each part and one for their sum; `every`: how many times it runs in a `unit`, if not
        once."""
        total = 0.0
        for name, taken in self._taken.items():
            us = median(taken[len(taken) // 5 :]) / 1e3
            total += us * every.get(name, 1.0)
            print(f"  {name:<58}{us:8.1f} us, {us * every.get(name, 1.0):8.2f} a {unit}")
        print(f"  {'together':<58}{'':12} {total:8.2f} a {unit}", flush=True)


def in_a_rank(steps: int) -> None:
    """Steps of one rank without communication, with every part once in each."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wait, pauses, elements, losses = CpuWait(), GcPauses(), Elements(), Losses()
    costs, walls = Costs(), []
    wait.step_ends(time.monotonic_ns())
    watch_collector(pauses)
    watched = [*gc.callbacks]
    for number in range(steps):
        began = time.monotonic_ns()
        inputs = torch.randn(32, 256)
        costs.of("batch size: elements of the inputs", elements.add_forward, (inputs,), {})
        loss = model(inputs).square().mean()
        costs.of("last losses: of a number that was read", losses.add_loss, loss.item())
        loss.backward()
        costs.of("waiting for a CPU: at the last gradient", wait.last_gradient, time.monotonic_ns())
        costs.of("waiting for a CPU: backward ends", wait.backward_ends, time.monotonic_ns())
        optimizer.step()
        optimizer.zero_grad()
        costs.of("waiting for a CPU: the step ends", wait.step_ends, time.monotonic_ns())
        costs.of("waiting for a CPU: of the step", wait.take_wait)
        costs.of("batch size: of the step", elements.take_count)
        costs.of("last losses: of the step", losses.take_loss)
        gc.callbacks[:] = watched if number % 2 else []
        costs.of(f"garbage collection with{'' if number % 2 else 'out'} its two times", gc.collect, 0)
        now = time.monotonic_ns()
        costs.of("garbage collections: of the step, by the publisher", pauses.take_paused, now, get_ident())
        walls.append(now - began)
    gc.callbacks[:] = watched
    unwatch_collector()
    step_ms = median(walls[WARM_UP:]) / 1e6
    print(f"in a rank, steps of {step_ms:.1f} ms, thread CPU, load {os.getloadavg()[0]:.0f}")
    costs.show("step", {WITHOUT: -1.0})


def on_a_host(ranks: int) -> None:
    """Readings of processes and connections at the rates of a host's agent."""
    with ExitStack() as stack:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        children = [stack.enter_context(subprocess.Popen(sleep)) for _ in range(ranks)]
        for child in children:
            stack.callback(child.kill)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS))
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(server.getsockname()))
            stack.enter_context(server.accept()[0])
        living = [RankProcess(i, i, child.pid) for i, child in enumerate(children)]
        pids = [child.pid for child in children]
        usage, host, links = kernel_view.UsageSampler(), HostSampler(tuple), connections.LinkSampler()
        folders = [path for pid in pids for path in kernel_view.folders_of(pid).values()]
        costs = Costs()
        each = {
            f"{ranks} processes: CPU, memory, faults, D, swap, clock, heat, quota": 1.0,
            f"{2 * CONNECTIONS} connections: TCP_INFO": NS / connections.PERIOD_NS,
            "the host: CPU, memory, network": 1.0,
            f"{len(folders)} folders that may be full": NS / kernel_view.DISKS_NS,
            f"{ranks} processes at a stall: state, wchan, workers": 0.0,
        }
        names = [*each]
        for number in range(1, READINGS + 1):
            costs.of(names[0], usage.sample_usage, living, number * NS)
            costs.of(names[1], links.sample_links, pids, number * connections.PERIOD_NS)
            costs.of(names[2], host.read_usage, number * NS)  # of its own connections in every fifth only
            costs.of(names[3], _read_disks, folders)
            costs.of(names[4], _read_at_a_stall, pids)
            time.sleep(0.05)
        print(f"on a host of {ranks} ranks, thread CPU, load {os.getloadavg()[0]:.0f}")
        costs.show("second", each)


def _read_disks(folders: list[str]) -> None:
    for folder in folders:
        kernel_view.is_full(folder)


def _read_at_a_stall(pids: list[int]) -> None:
    for pid in pids:
        kernel_view.kernel_view(pid)
        kernel_view.workers_of(pid)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    arguments = parser.parse_args()
    in_a_rank(arguments.steps)
    on_a_host(arguments.ranks)


if __name__ == "__main__":
    main()
