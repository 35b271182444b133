"""Three made-up runs, whose recordings are kept in `frozen/`.

`python -m tests.recording.frozen_runs` makes the recordings again.

`many`: 64 ranks on eight hosts; a slow loader, a loss that is NaN, a host that is silent for some time.
`two_hosts`: clocks that are apart and drift, a link that loses segments, a stall, a replica that differs.
`restart`: a rank fails, and all are started again, by now with another layout of buckets.

The delays are `random.Random`'s, which gives the same numbers in every version of Python.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ddptop.protocol.evidence import Evidence, GroupState, Operation, Stack, StackFrame
from ddptop.protocol.hosts import HostLink
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import (
    Bye,
    Event,
    Logged,
    Message,
    Phase,
    Received,
    Replica,
)
from tests.made_up_run import NS, START_NS, World, bucket, write

FOLDER = Path(__file__).parent / "frozen"
BATCH = 5
"""Steps of a message."""
PLACES = ("data", "forward", "before_backward", "backward", "optimizer")
NOISE_UNIT_US, NOISE_UNITS = 16, 16
"""A rank takes up to so much longer in each place. Coarse, so that a recording is small."""


def usual_loss(rank: int, step: int) -> float:
    """Falls; of few bits, so that a recording of it is small."""
    return 2.0 + 64 / (32 + step) + rank / 1024


class RunBuilder:
    """Messages of a run in order of arrival, and the world whose steps they are."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.slow_us: dict[tuple[int, str], int] = {}
        """Delays of every step, besides the noise."""
        self.remote_hosts = [host for host in dict.fromkeys(world.hosts) if host != "node0"]
        self.silent_hosts: set[str] = set()
        self.messages: list[Received] = []

    def add(self, *messages: Received) -> None:
        """Some messages, now."""
        self.messages += messages

    def begin(self, buckets: int = 2) -> None:
        """Hosts and ranks introduce themselves."""
        world = self.world
        self.add(*(world.host_message(host) for host in self.remote_hosts))
        for rank in range(world.size):
            if world.host(rank) not in self.silent_hosts:
                self.add(*self._introduction(rank, buckets))

    def _introduction(self, rank: int, buckets: int) -> Iterator[Received]:
        layout = tuple(bucket(index, 8_000_000 + 1_000 * index) for index in range(buckets))
        yield self.world.hello(rank)
        yield self.world.membership(rank, "0")
        yield self.world.layout(rank, layout)
        if rank == 0:
            yield from list(self.world.introduce())[1:2]  # its card

    def train(self, steps: int, loss: Callable[[int, int], float | None] = usual_loss) -> None:
        """So many steps, with what ranks and agents report beside them."""
        for first in range(0, steps, BATCH):
            self._take_batch(min(BATCH, steps - first), loss)

    def _take_batch(self, count: int, loss: Callable[[int, int], float | None]) -> None:
        first = self.world.step
        self.add(*self.world.steps(count, loss, batch=count, before_step=self._draw_delays))
        if first // BATCH % 4 == 0:
            self.report()

    def _draw_delays(self) -> None:
        world, draw = self.world, self.random.random
        noise = {
            (rank, place): NOISE_UNIT_US * int(NOISE_UNITS * draw())
            for rank in range(world.size)
            for place in PLACES
        }
        world.delays = {at: us + self.slow_us.get(at, 0) for at, us in noise.items()}
        world.gc_us = {rank: us // 8 for (rank, place), us in noise.items() if place == "data"}
        world.cpu_us = {rank: us // 4 for (rank, place), us in noise.items() if place == "forward"}

    def report(self) -> None:
        """Heartbeats of all ranks; readings of their processes, GPUs and hosts."""
        world = self.world
        self.add(*(message for host in self.remote_hosts for message in self._of_host(host)))
        for rank in range(world.size):
            if world.host(rank) in self.silent_hosts:
                continue
            now_ns = world.host_ns(world.host(rank), world.now_us)
            busy_pct = 90 + 8 * self.random.random()
            usage = Usage(now_ns, (4 << 30) + rank, round(busy_pct, 1), None, 12, 8, 0.0, 0.0, 0, 0.0)
            gpu = Gpu(
                *(round(busy_pct, 1), 40 << 30, 80 << 30, 61.0 + rank % 4, 412.5, 1_700, 1_980, ""),
                *(1_000_000, 2_000_000, None, None, now_ns),
            )
            self.add(world.progress(rank))
            self.add(*(world.about(rank, reading) for reading in (usage, gpu)))
            memory = Memory(now_ns, (30 << 30) + rank, 36 << 30, 34 << 30, rank % 2)
            self.add(world.received(rank, memory))

    def _of_host(self, host: str) -> Iterator[Received]:
        if host not in self.silent_hosts:
            lost = 40 if host == "node1" else 0
            link = HostLink("10.0.0.2", "10.0.0.1", 8, 900, 210, 20_000, lost, 1_200_000_000)
            yield self.world.compared(host, 0.2)
            yield self.world.usage(host, links=(link,))

    def stand_still(self, seconds: float, silent_ranks: Sequence[int] = ()) -> None:
        """Time passes without steps. Heartbeats come, but for these ranks."""
        world, until_us = self.world, self.world.now_us + int(seconds * 1e6)
        while world.now_us < until_us:
            world.now_us += 500_000
            for rank in range(world.size):
                if rank not in silent_ranks and world.host(rank) not in self.silent_hosts:
                    self.add(world.progress(rank, bucket=0))
            self.add(*(message for host in self.remote_hosts for message in self._of_host(host)))
        world.begin_us = [world.now_us] * world.size

    def answer(self, rank: int, number: int, stacks: tuple[Stack, ...], reason: str = "") -> Received:
        """A rank's evidence."""
        world = self.world
        sequence = 2 * world.step + (0 if number and "sample" in repr(stacks) else 1)
        groups = (GroupState("0", "gloo", world.size, sequence, sequence - 1),)
        operations = (Operation("0", sequence, "all_reduce", "[[1000]]", "Float", False, 9_000),)
        now_ns = world.host_ns(world.host(rank), world.now_us)
        evidence = (now_ns, number, world.step, Phase.BACKWARD, 0, reason, groups, stacks, operations)
        return world.received(rank, Evidence(*evidence))

    def say(self, rank: int, message: Message) -> None:
        """A message of a rank, now."""
        self.add(self.world.received(rank, message))

    def write(self, path: Path) -> None:
        """Record the messages, by the time of their arrival."""
        write(path, sorted(self.messages, key=lambda received: received.t_ns))


def stack_at(function: str, line: int) -> tuple[Stack, ...]:
    """The main thread, in a function of the script."""
    calls = (StackFrame("/home/me/train.py", line, function, "batch = next(samples)"),)
    return (Stack("MainThread", True, calls),)


def many() -> RunBuilder:
    """See above."""
    hosts = tuple(f"node{number}" for number in range(8))
    offsets = {host: 1_000_003 * number for number, host in enumerate(hosts)}
    run = RunBuilder(World(64, hosts, detail_every=4, own=True, offset_ns=offsets), 64)
    run.add(run.world.run())
    run.begin()
    run.train(20)
    run.slow_us = {(21, "data"): 6_000, (40, "data"): 5_000}
    run.train(45)
    run.slow_us.clear()
    run.train(10, lambda rank, step: math.nan if rank == 32 else usual_loss(rank, step))
    run.train(20)
    run.silent_hosts = {"node5"}
    run.stand_still(5.0)
    run.silent_hosts.clear()
    run.train(20)
    run.add(*(run.world.bye(rank) for rank in range(64)), run.world.run("finished", 0))
    return run


def two_hosts() -> RunBuilder:
    """See above."""
    apart = {"node1": 7 * NS + 123}
    world = World(4, ("node0", "node1"), own=True, offset_ns=apart, drift_ppm={"node1": 40.0})
    run = RunBuilder(world, 2)
    run.add(world.run())
    run.begin()
    run.train(60)
    run.slow_us = {(3, "backward"): 4_000}
    run.train(90)
    for rank in range(4):
        run.say(rank, Logged(world.step - 1, {"accuracy": 0.5 + rank / 64, "lr": 1e-3, "phase": "warm-up"}))
        run.say(rank, Replica(world.step - 1, 0, 2, 0, (17, 18 + (rank == 2))))
    run.stand_still(25.0, silent_ranks=(2,))
    for rank in range(4):
        stacks = stack_at("sample", 88) if rank == 2 else stack_at("step", 61)
        run.add(run.answer(rank, 1, stacks))
    run.stand_still(5.0, silent_ranks=(2,))
    run.slow_us.clear()
    run.train(100)
    run.add(*(world.bye(rank) for rank in range(4)), world.run("finished", 0))
    return run


def restart() -> RunBuilder:
    """See above."""
    run = RunBuilder(World(4, own=True), 3)
    run.add(run.world.run())
    run.begin()
    run.train(40)
    first, now_ns = run.world, START_NS + run.world.now_us * 1000
    run.add(run.answer(1, 0, stack_at("forward", 26), "ValueError: bad sample in shard 7"))
    run.say(1, Bye(now_ns, "ValueError"))
    for rank, (code, signal) in enumerate(((None, 15), (1, None), (None, 15), (None, 15))):
        fields = {"session": first.session(rank), "exit_code": code, "signal": signal}
        run.add(first.received(-1, Event("exit", now_ns + 1000 * rank, rank, -1, fields)))
    run.world = World(
        4, own=True, incarnation=1, session_base=200, now_us=first.now_us + 2_000_000, detail_every=2
    )
    run.world.generation = 1
    run.begin(buckets=2)
    run.train(30)
    run.slow_us = {(0, "optimizer"): 3_000}
    run.train(60)
    run.add(*(run.world.bye(rank) for rank in range(4)), run.world.run("finished", 0))
    return run


RUNS = {"many": many, "two_hosts": two_hosts, "restart": restart}


def main() -> None:
    """Make the recordings again."""
    for name, make in RUNS.items():
        path = FOLDER / f"{name}.ddptop"
        path.unlink(missing_ok=True)
        make().write(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
