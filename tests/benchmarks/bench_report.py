"""What reading many ranks costs: `python -m tests.benchmarks.bench_report [RANKS [STEPS]]`.

The simulation's ranks (4,096 and 148 steps unless told) report in a time of their own to a recording, without
collector and sockets. Printed are CPU and wall time of each command's reading, frames built and blocks read.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgpack

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.codec import decode, encode
from ddptop.protocol.messages import Received
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockReader
from ddptop.recording.writer import Writer
from ddptop.report.build import read
from ddptop.sources.replay import frame_of
from ddptop.sources.simulation import ranks
from ddptop.sources.simulation import ranks as node
from ddptop.sources.simulation.__main__ import usual_rate
from ddptop.sources.simulation.story import Story
from tests.recording.made_up import NS, START_NS, START_UNIX_NS, run_message

TICK_NS = NS // 50


def make(path: Path, world: int, steps: int) -> None:
    """Record the simulation of so many ranks."""
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

    def put_sent() -> None:
        for head, body in sent:
            session, rank, number, _ = msgpack.unpackb(head)
            writer.add(Received(now.ns, rank, session, number, decode(body)), body)
        sent.clear()

    writer.add(Received(START_NS, -1, 0, 0, run_message()), encode(run_message()))
    with (
        mock.patch.object(ranks, "time", clock),
        mock.patch.object(node, "connect", lambda *args, **options: socket),
        mock.patch.object(node, "arrived", lambda socket: ()),
    ):
        story = Story(world, usual_rate(world), detail_every=1 if world <= 64 else 4)
        played = ranks.Ranks(story, "", "run-1", steps=steps)
        while played.work(now.ns):
            put_sent()
            writer.tick(now.ns)
            now.ns += TICK_NS
        played.close()
        put_sent()
    end = run_message("finished", 0)
    writer.add(Received(now.ns, -1, 0, 0, end), encode(end))
    writer.close()


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
        mock.patch.object(BlockReader, "read", counted("blocks", BlockReader.read)),
    ):
        cpu, wall = time.process_time(), time.perf_counter()
        act(recording)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    told = "  ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{name:<14} {cpu:6.2f} s CPU {wall:6.2f} s wall  {told}")


def main() -> None:
    """Make the recording and read it."""
    given = [int(word) for word in sys.argv[1:]]
    world, steps = [*given, *(4096, 148)[len(given) :]]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.ddptop"
        make(path, world, steps)
        print(f"{world:,} ranks, {steps:,} steps, {path.stat().st_size / 1e6:.0f} MB")
        timed("report", path, read)
        timed("replay --once", path, lambda recording: frame_of(recording, None))


if __name__ == "__main__":
    main()
