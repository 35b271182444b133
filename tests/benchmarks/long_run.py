"""Makes recordings of long runs: simulated ranks, the reducer and the writer of the collector, no sockets.

`python -m tests.benchmarks.long_run FILE [RANKS [STEPS [RATE [DETAIL_EVERY]]]]` prints the size of the file
and the memory of this process on the way: the collector's analysis and recording, and a viewer's history.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgpack
import psutil

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.collector.record import Counts
from ddptop.frames.history import HistoryStore
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.limits import NS, REPORT_S
from ddptop.protocol.messages import Progress, Received
from ddptop.recording.writer import Writer
from ddptop.sources.simulation import ranks
from ddptop.sources.simulation.story import Story
from tests.made_up_run import GIB, START_NS, START_UNIX_NS, run_message

TICK_NS = NS // 50


def messages(world: int, steps: int, rate: float, detail_every: int) -> Iterator[tuple[Received, bytes]]:
    """The messages that the simulated ranks send and a collector keeps, each with its encoded form."""
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
    beaten_ns: dict[int, int] = {}
    yield Received(START_NS, -1, 0, 0, run_message()), encode(run_message())
    with (
        mock.patch.object(ranks, "time", clock),
        mock.patch.object(ranks, "REPORT_S", REPORT_S),
        mock.patch.object(ranks, "connect_dealer", lambda *args, **options: socket),
        mock.patch.object(ranks, "receive_messages", lambda socket: ()),
    ):
        played = ranks.SimulatedRanks(Story(world, rate, detail_every), "", "run-1", steps=steps)
        goes_on = True
        while goes_on:
            goes_on = played.work_due(now.ns)
            if not goes_on:
                played.close()
            for head, body in sent:
                session, rank, number, _ = msgpack.unpackb(head)
                received = Received(now.ns, rank, session, number, decode(body))
                if isinstance(received.message, Progress):
                    if now.ns - beaten_ns.get(session, 0) < NS:
                        continue
                    beaten_ns[session] = now.ns
                yield received, body
            sent.clear()
            now.ns += TICK_NS
    end = run_message("finished", 0)
    yield Received(now.ns, -1, 0, 0, end), encode(end)


def make(
    path: Path,
    world: int = 2,
    steps: int = 150_000,
    rate: float = 550.0,
    detail_every: int = 32,
    at_step: Callable[[int, Reducer], None] | None = None,
) -> None:
    """Record such a run as a collector does. `at_step`: called now and then with the newest complete step."""
    reducer, writer = Reducer(), Writer(path, limit_bytes=8 * GIB)
    writer.history = NewHistory(reducer)
    counts, counted_ns, told = Counts(), 0, 0
    for received, body in messages(world, steps, rate, detail_every):
        reducer.feed(received)
        writer.add(received, body)
        if received.t_ns - counted_ns >= NS // 4:
            counted_ns = received.t_ns
            for event in counts.new_events(reducer.state, received.t_ns):
                counted = Received(received.t_ns, -1, 0, 0, event)
                reducer.feed(counted)
                writer.add(counted, encode(event))
        writer.write_due(received.t_ns)
        complete = reducer.complete_step
        if at_step is not None and complete is not None and complete // 1000 != told:
            told = complete // 1000
            at_step(complete, reducer)
    writer.close()


def main() -> None:
    """Make one."""
    path, *numbers = sys.argv[1:]
    began, viewer = time.process_time(), HistoryStore()

    def at_step(step: int, reducer: Reducer) -> None:
        viewer.extend(reducer.frame(reducer.state.newest_ns, cursor=viewer.end).history)
        if step % 20_000 < 1_000:
            print(
                f"step {step:,} ({viewer.end:,}): {psutil.Process().memory_info().rss / 1e6:.1f} MB",
                flush=True,
            )

    defaults = ("2", "150000", "550", "32")
    world, steps, rate, detail_every = (*numbers, *defaults[len(numbers) :])
    make(Path(path), int(world), int(steps), float(rate), int(detail_every), at_step)
    size_mb = Path(path).stat().st_size / 1e6
    print(f"{path}: {size_mb:.1f} MB, made in {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
