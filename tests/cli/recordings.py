"""Writes the recording of a run that never was: two ranks, one bucket, rank 1 late by 5 ms in every step."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from ddptop.protocol.codec import encode
from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Bucket, Bye, Flag, Hello, Layout, Message, Received, Run, StepRow, Steps
from ddptop.recording.writer import Writer

START_NS = 1_000_000_000_000
START_UNIX_NS = 1_700_000_000_000_000_000
STEP_US = 20_000
STEP_NS = STEP_US * 1000
LATE_US = 5_000
BATCH = 10


def write_recording(
    path: Path,
    *,
    steps: int = 100,
    ranks: int = 2,
    run_id: str = "aa11",
    ended: bool = True,
    name: str = "",
) -> None:
    """Write it; with `ended` false the collector never got to say how it ended.

    `name`: of the run; empty: that of the file.
    """
    writer = Writer(path, limit_bytes=1 << 30)
    numbers = {rank: count(1) for rank in range(ranks)}

    def add(t_ns: int, rank: int, message: Message) -> None:
        acked = rank >= 0 and not isinstance(message, Hello)
        seq = next(numbers[rank]) if acked else 0
        writer.add(Received(t_ns, rank, 100 + rank if rank >= 0 else 0, seq, message), encode(message))

    add(START_NS, -1, _run(name or path.stem, run_id, "live", None))
    for rank in range(ranks):
        add(START_NS, rank, _hello(rank, ranks, run_id))
        add(START_NS, rank, Layout(0, (Bucket(0, 0, 8_000_000, 8_000_000, 4, "float32", ""),)))
    for first in range(0, steps, BATCH):
        for rank in range(ranks):
            t_ns = START_NS + (first + BATCH) * STEP_NS
            rows = tuple(_row(place, rank) for place in range(min(BATCH, steps - first)))
            add(t_ns, rank, Steps(0, first, START_NS + first * STEP_NS, rows))
    end_ns = START_NS + (steps + BATCH) * STEP_NS
    if ended:
        for rank in range(ranks):
            add(end_ns, rank, Bye(end_ns, "finished"))
        add(end_ns, -1, _run(name or path.stem, run_id, "finished", 0))
    writer.close()


def _run(name: str, run_id: str, state: str, exit_code: int | None) -> Run:
    argv = ("train.py", "--lr", "0.1")
    return Run(VERSION, run_id, name, "train.py", argv, START_UNIX_NS, START_NS, state, exit_code, False)


def _hello(rank: int, ranks: int, run_id: str) -> Hello:
    return Hello(
        version=VERSION,
        run_id=run_id,
        session=100 + rank,
        rank=rank,
        world_size=ranks,
        local_rank=rank,
        incarnation=0,
        host="node0",
        pid=4000 + rank,
        device="cpu",
        backend="gloo",
        timing_path="reducer",
        monotonic_ns=START_NS,
        unix_ns=START_UNIX_NS,
        budget_pct=1.0,
    )


def _row(place: int, rank: int) -> StepRow:
    late = LATE_US if rank == 1 else 0
    ready, end = 8_000 + late, 15_000
    return StepRow(
        begin_us=place * STEP_US,
        wall_us=STEP_US,
        data_us=1_000 + late,
        forward_us=4_000,
        backward_us=11_000 - late,
        optimizer_us=2_000,
        forward_at_us=1_000 + late,
        backward_at_us=5_000 + late,
        optimizer_at_us=16_000,
        micro_steps=1,
        flags=Flag.DETAIL,
        cost_us=30,
        loss=0.5,
        cells=(0, ready, end - ready),
    )
