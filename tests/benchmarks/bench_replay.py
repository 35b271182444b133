"""What a long recording costs: `python -m tests.benchmarks.bench_replay [STEPS [FILE]]` (a million steps).

Makes a recording of 8 ranks at 20 steps a second, written as the collector does, four blocks a second: a
minute or so and 270 MB (FILE keeps it for the next time). Printed are CPU time and wall time of opening it,
of jumps all over it, of steps back and on, and what playing takes of one core at several speeds.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddptop.protocol.codec import encode
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Flag, Progress, Received, StepRow, Steps
from ddptop.recording.history import ADDED, GROUP, HistoryPiece, join_pieces, pick_points
from ddptop.recording.writer import Writer
from ddptop.sources.replay import ReplaySource
from tests.made_up_run import START_NS, hello, layout, run_message

WORLD, PER_S, BATCH, EVERY, BUCKETS = 8, 20, 5, 8, 10
STEP_US = 1_000_000 // PER_S
PLAYED_S = 10.0


class Teller:
    """Tells the history in place of a reducer, which would take minutes over it."""

    def __init__(self) -> None:
        self.done = self._told = 0

    def take_back(self) -> None:
        """Not asked for: its disk takes everything."""

    def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
        """The steps since the last time."""
        stop = self.done if final else self._told + (self.done - self._told) // GROUP * GROUP
        if stop <= self._told:
            return None
        step = np.arange(self._told, stop, dtype=float)
        self._told = stop
        every = np.where(step % EVERY == 0, 2.0, np.nan)
        loss = 3.0 / (1 + step * 0.001)
        columns = {"step": step, "time_s": (step + 1) * STEP_US / 1e6, "step_ms": 50 + step % 7 * 0.1}
        columns |= {"loss_mean": loss, "loss_min": loss, "loss_max": loss + 0.1}
        columns |= {"wait_ms": every, "transfer_ms": every, "busbw_gbps": every}
        columns |= dict.fromkeys(ADDED, 10 + step % 5)
        groups = [
            pick_points({name: column[at : at + GROUP] for name, column in columns.items()})
            for at in range(0, len(step), GROUP)
        ]
        return HistoryPiece(join_pieces(groups), np.full(WORLD, 42.0), ())


def make(path: Path, steps: int) -> None:
    """Write the recording."""
    noise, teller = random.Random(1), Teller()
    writer = Writer(path, limit_bytes=8 << 30)
    writer.history = teller

    def put(received: Received) -> None:
        writer.add(received, encode(received.message))

    put(Received(START_NS, -1, 0, 0, run_message()))
    for rank in range(WORLD):
        put(Received(START_NS, rank, 1000 + rank, 0, hello(rank, WORLD)))
        put(Received(START_NS, rank, 1000 + rank, 1, layout(BUCKETS)))
    for first in range(0, steps, BATCH):
        base = START_NS + first * STEP_US * 1000
        now = base + BATCH * STEP_US * 1000
        for rank in range(WORLD):
            rows = tuple(row(first + i, rank, i, noise.randint(0, 900)) for i in range(BATCH))
            put(Received(now + rank, rank, 1000 + rank, 2 + first // BATCH, Steps(1, first, base, rows)))
            if first // BATCH % 4 == 0:
                beat = Progress(now, first + BATCH, 3, -1, BUCKETS * first, EVERY, 20.0, 0.1, 0)
                put(Received(now + rank, rank, 1000 + rank, 0, beat))
                put(Received(now + rank, rank, 1000 + rank, 0, Usage(now, 1 << 30, 99.0)))
        teller.done = first + BATCH
        writer.write_due(now + 260_000_000)
    put(Received(now + 1_000_000, -1, 0, 0, run_message("finished", 0)))
    writer.close()


def row(step: int, rank: int, at: int, jitter: int) -> StepRow:
    """A step; rank 1 is late in a third of the run."""
    late = 5000 if rank == 1 and step // 5000 % 3 == 1 else 0
    detail = step % EVERY == 0
    cells = [(b, 4000 + late + 900 * b + jitter % 50, 6000 - late + jitter % 37) for b in range(BUCKETS)]
    flat = tuple(number for cell in cells for number in cell) if detail else ()
    return StepRow(
        at * STEP_US, STEP_US + jitter % 100, 200 + late, 3000, 12_000 + jitter, 900, 300 + late, 3500 + late,
        18_000, 1, int(Flag.DETAIL) if detail else 0, 25, 3.0 / (1 + step * 0.001), flat,
    )  # fmt: skip


def timed(name: str, source: ReplaySource, act: Callable[[], object]) -> None:
    """One line: from an order to the frame that shows it."""
    before, wall, cpu = source.latest(), time.perf_counter(), time.process_time()
    act()
    while source.latest() is before:
        time.sleep(0.001)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    frame = source.latest()
    assert frame is not None
    print(
        f"{name:24s} {1000 * wall:7.0f} ms   CPU {1000 * cpu:6.0f} ms   at step {frame.group.step}",
        flush=True,
    )


def measure(path: Path, steps: int) -> None:
    """All lines."""
    wall, cpu = time.perf_counter(), time.process_time()
    source = ReplaySource(path, playing=False)
    source.start()
    while source.latest() is None:
        time.sleep(0.001)
    print(f"open, to the first frame {1000 * (time.perf_counter() - wall):7.0f} ms   ", end="")
    print(f"CPU {1000 * (time.process_time() - cpu):6.0f} ms   {path.stat().st_size / 1e6:.0f} MB")
    for share in (0.5, 0.1, 0.999, 0.3, 0.31, 0.8):
        timed(f"jump to {share:.1%}", source, lambda share=share: source.seek(step=int(steps * share)))
    for by in (-1, -1, 10, -10):
        timed(f"{by:+d} steps", source, lambda by=by: source.seek(by_steps=by))
    for speed in (1.0, 64.0, 1000.0, math.inf):
        source.seek(step=int(0.3 * steps))
        source.set_speed(speed)
        source.play(True)
        time.sleep(1.0)
        before, wall, cpu = source.latest(), time.perf_counter(), time.process_time()
        time.sleep(PLAYED_S)
        after, passed = source.latest(), time.perf_counter() - wall
        assert before is not None and before.playback is not None
        assert after is not None and after.playback is not None
        ran = (after.playback.position_s - before.playback.position_s) / passed
        share = 100 * (time.process_time() - cpu) / passed
        print(f"played at {speed:g}x: {ran:.1f}x, {share:.0f}% of a core", flush=True)
        source.play(False)
    source.close()


def main() -> None:
    """Make it where it is not there, and measure."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder, "long.ddptop")
        if not path.exists():
            make(path, steps)
        measure(path, steps)


if __name__ == "__main__":
    main()
