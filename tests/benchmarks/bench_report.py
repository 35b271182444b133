"""What reading many ranks costs: `python -m tests.benchmarks.bench_report [RANKS [STEPS [RATE]]]`.

The simulation's ranks report in a time of their own to a recording, without collector and sockets: 4,096 and
148 steps unless told, RATE of them a second. It holds what a collector keeps of hosts with 8 ranks and a GPU
each: of each rank STEPS every 0.25 s, a heartbeat a second, its allocator's memory every 2 s, its process and
GPU every 5 s; of each agent, in a session of its own, clock and usage of the host every second. Printed are
the messages of each kind, CPU (with that of processes that were started) and wall time of each command's
reading, frames built and blocks read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgpack

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import REPORT_S
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import Clock, Message, Progress, Received
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockReader
from ddptop.recording.writer import Writer
from ddptop.report.build import read_report
from ddptop.sources.replay import frame_of
from ddptop.sources.simulation import ranks
from ddptop.sources.simulation import ranks as node
from ddptop.sources.simulation.hosts import RANKS_PER_NODE
from ddptop.sources.simulation.story import Story, usual_rate
from tests.made_up_run import NS, START_NS, START_UNIX_NS, run_message

TICK_NS = NS // 50

PERIODS_NS: dict[type[Message], int] = {Progress: NS, Memory: 2 * NS, Gpu: 5 * NS, Usage: 5 * NS}
"""Between two messages of a rank that are recorded."""


class Kept:
    """Writes what a collector would of the messages that the simulation sends."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._due_ns: dict[tuple[type[Message], int], int] = {}
        self.counts: Counter[str] = Counter()

    def take(self, received: Received, body: bytes) -> None:
        """A message of a rank. What it sends of its host is as of an agent."""
        message, rank = received.message, received.rank
        if isinstance(message, (Host, Clock, HostUsage)):
            self._add(received._replace(rank=-1, session=2**61 + rank // RANKS_PER_NODE, seq=0), body)
        elif not isinstance(message, Progress) or self._is_due(Progress, received):
            self._add(received, body)
        if isinstance(message, Progress):
            for reading in _readings(received.t_ns, rank):
                if self._is_due(type(reading), received):
                    self._add(received._replace(seq=0, message=reading), encode(reading))

    def _is_due(self, kind: type[Message], received: Received) -> bool:
        key = kind, received.session
        if received.t_ns < self._due_ns.get(key, 0):
            return False
        self._due_ns[key] = received.t_ns + PERIODS_NS[kind] - TICK_NS  # moments are spread over a tick
        return True

    def _add(self, received: Received, body: bytes) -> None:
        self.counts[type(received.message).__name__] += 1
        self._writer.add(received, body)


def _readings(t_ns: int, rank: int) -> tuple[Message, ...]:
    power_w = 400.0 + rank % 90
    return (
        Memory(t_ns, 60 << 30, 66 << 30, 65 << 30, 0),
        Usage(t_ns, 9 << 30, 101.5, None, 30 + rank % 7, 96, 0.0),
        Gpu(97.0, 70 << 30, 80 << 30, 60.5, power_w, 1_755, 1_980, "", 10**9, 10**9, None, None, t_ns),
    )


def make(path: Path, world: int, steps: int, steps_per_s: float) -> Counter[str]:
    """Record the simulation of so many ranks; returns how many messages of each kind."""
    now = SimpleNamespace(ns=START_NS)
    clock = SimpleNamespace(
        monotonic_ns=lambda: now.ns,
        time_ns=lambda: now.ns - START_NS + START_UNIX_NS,
        monotonic=lambda: now.ns / NS,
        sleep=lambda seconds: None,
    )
    sent: list[tuple[bytes, bytes]] = []
    socket = SimpleNamespace(
        send_multipart=lambda parts, flags: sent.append(parts), close=lambda linger: None
    )
    writer = Writer(path, limit_bytes=8 << 30)
    kept = Kept(writer)

    def put_sent() -> None:
        for head, body in sent:
            session, rank, number, _ = msgpack.unpackb(head)
            kept.take(Received(now.ns, rank, session, number, decode(body)), body)
        sent.clear()

    writer.add(Received(START_NS, -1, 0, 0, run_message()), encode(run_message()))
    with (
        mock.patch.object(ranks, "time", clock),
        mock.patch.object(ranks, "REPORT_S", REPORT_S),
        mock.patch.object(node, "connect_dealer", lambda *args, **options: socket),
        mock.patch.object(node, "receive_messages", lambda socket: ()),
    ):
        story = Story(world, steps_per_s, detail_every=1 if world <= 64 else 4)
        played = ranks.SimulatedRanks(story, "", "run-1", steps=steps)
        while played.work_due(now.ns):
            put_sent()
            writer.write_due(now.ns)
            now.ns += TICK_NS
        played.close()
        put_sent()
    end = run_message("finished", 0)
    writer.add(Received(now.ns, -1, 0, 0, end), encode(end))
    writer.close()
    return kept.counts


def timed(name: str, path: Path, act: Callable[[Recording], object]) -> None:
    """One line."""
    counts = {"frames": 0, "blocks": 0}

    def counted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            counts[what] += 1
            return call(*args, **options)

        return counting

    with (
        Recording.open(path) as recording,
        mock.patch.object(Reducer, "frame", counted("frames", Reducer.frame)),
        mock.patch.object(BlockReader, "read_messages", counted("blocks", BlockReader.read_messages)),
    ):
        cpu, wall = _cpu_s(), time.perf_counter()
        act(recording)
        cpu, wall = _cpu_s() - cpu, time.perf_counter() - wall
    told = "  ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{name:<14} {cpu:6.2f} s CPU {wall:6.2f} s wall  {told}")


def _cpu_s() -> float:
    """Of this process, and of those that it has started and that have ended."""
    return sum(os.times()[:4])


def main() -> None:
    """Make the recording and read it."""
    given = [float(word) for word in sys.argv[1:]]
    world, steps = [*map(int, given[:2]), *(4096, 148)[len(given) :]]
    rate = given[2] if len(given) > 2 else usual_rate(world)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.ddptop"
        kinds = make(path, world, steps, rate)
        print(f"{world:,} ranks, {steps:,} steps, {path.stat().st_size / 1e6:.0f} MB")
        print(", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()))
        timed("report", path, read_report)
        timed("replay --once", path, lambda recording: frame_of(recording, None))


if __name__ == "__main__":
    main()
