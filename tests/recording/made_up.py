"""A made-up run as the collector would record it: figures follow from the step number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ddptop.analysis.reducer import Reducer, raise_again
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import VERSION
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import (
    Bucket,
    Bye,
    Card,
    Event,
    Flag,
    Hello,
    Layout,
    Message,
    Progress,
    Received,
    Run,
    StepRow,
    Steps,
)
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer

NS = 1_000_000_000
START_NS = 5_000 * NS
START_UNIX_NS = 1_700_000_000 * NS
STEP_US = 20_000
GIB = 1 << 30
TOGETHER = 12
"""Messages that `collect` takes at a time."""


def row(step: int, rank: int, *, begin_us: int = 0, buckets: int = 10) -> StepRow:
    """One step: rank 1 comes 5 ms late, the loss falls."""
    late = 5_000 if rank == 1 else 0
    cells = tuple(
        number for b in range(buckets) for number in (b, 4_000 + late + 900 * b, 6_000 - late + step % 7)
    )
    return StepRow(
        begin_us=begin_us,
        wall_us=STEP_US,
        data_us=200 + late,
        forward_us=3_000,
        backward_us=12_000,
        optimizer_us=900,
        forward_at_us=300 + late,
        backward_at_us=3_500 + late,
        optimizer_at_us=18_000,
        micro_steps=1,
        flags=int(Flag.DETAIL),
        cost_us=25,
        loss=3.0 / (1 + step) + rank * 0.01,
        cells=cells,
    )


def steps(first: int, count: int, rank: int, *, buckets: int = 10, start_ns: int = START_NS) -> Steps:
    """A batch of steps that follow each other without a pause."""
    rows = tuple(row(first + i, rank, begin_us=i * STEP_US, buckets=buckets) for i in range(count))
    return Steps(1, first, start_ns + first * STEP_US * 1000, rows)


def hello(rank: int, world: int, *, session: int = 0, incarnation: int = 0, t_ns: int = START_NS) -> Hello:
    """The first words of a rank."""
    return Hello(
        version=VERSION,
        run_id="run-1",
        session=session or 1000 + rank,
        rank=rank,
        world_size=world,
        local_rank=rank,
        incarnation=incarnation,
        host="node0",
        pid=4_000 + rank,
        device="cpu",
        backend="gloo",
        timing_path="reducer",
        monotonic_ns=t_ns,
        unix_ns=START_UNIX_NS + t_ns - START_NS,
        budget_pct=1.0,
    )


def run_message(state: str = "live", exit_code: int | None = None) -> Run:
    """What the collector says of the run."""
    argv = ("--lr", "0.1")
    return Run(
        VERSION, "run-1", "train-k7qf", "train.py", argv, START_UNIX_NS, START_NS, state, exit_code, False
    )


def layout(buckets: int = 10) -> Layout:
    """So many equal buckets."""
    return Layout(1, tuple(Bucket(0, i, 1 << 20, 1 << 20, 4, "float32", "") for i in range(buckets)))


def a_run(
    count: int,
    *,
    world: int = 2,
    batch: int = 10,
    buckets: int = 10,
    ending: bool = True,
    event_at: int | None = None,
) -> Iterator[Received]:
    """All messages of a run of `count` steps, in order of arrival."""
    numbers = dict.fromkeys(range(world), 0)

    def of(rank: int, t_ns: int, message: Message) -> Received:
        if isinstance(message, Hello | Progress):
            return Received(t_ns, rank, 1000 + rank, 0, message)
        numbers[rank] += 1
        return Received(t_ns, rank, 1000 + rank, numbers[rank], message)

    t_ns = START_NS
    yield Received(t_ns, -1, 0, 0, run_message())
    for rank in range(world):
        yield of(rank, t_ns + rank, hello(rank, world))
        yield of(rank, t_ns + rank, Card({"torch": "2.13.0", "ddp.bucket_cap_mb": 25}))
        yield of(rank, t_ns + rank, layout(buckets))
    for first in range(0, count, batch):
        size = min(batch, count - first)
        t_ns = START_NS + (first + size) * STEP_US * 1000
        for rank in range(world):
            yield of(rank, t_ns + rank * 1000, steps(first, size, rank, buckets=buckets))
        if first // batch % 5 == 0:
            for rank in range(world):
                beat = Progress(t_ns, first + size, 2, 3, first * 10, 1, 25.0, 0.1, 0)
                yield of(rank, t_ns + 5000 + rank, beat)
                yield Received(t_ns + 6000 + rank, rank, 1000 + rank, 0, Usage(t_ns, 1 << 28, 99.0))
        if event_at is not None and first <= event_at < first + batch:
            yield Received(t_ns + 9000, -1, 0, 0, Event("mute", t_ns, -1, event_at, {"message": "a pause"}))
    if ending:
        for rank in range(world):
            yield of(rank, t_ns + 10_000 + rank, Bye(t_ns, "finished"))
        yield Received(t_ns + 20_000, -1, 0, 0, run_message("finished", 0))


def write(path: Path, records: Iterable[Received], *, limit_bytes: int = GIB, close: bool = True) -> Writer:
    """Record them as the collector does."""
    writer = Writer(path, limit_bytes=limit_bytes)
    for received in records:
        writer.add(received, encode(received.message))
        writer.write_due(received.t_ns)
    if close:
        writer.close()
    else:
        writer.flush()
    return writer


def feed_runs(reducer: Reducer, recording: Recording) -> None:
    """Let a reducer take a recording run by run; an error of ours fails the test."""
    for run in recording.runs():
        reducer.feed_run(run, 0, raise_again)


def collect(writer: Writer, reducer: Reducer, messages: Iterable[Received]) -> None:
    """Record messages and feed a reducer with them, in small runs as a collector does."""
    in_order = [*messages]
    for first in range(0, len(in_order), TOGETHER):
        together = in_order[first : first + TOGETHER]
        for received in together:
            writer.add(received, encode(received.message))
        reducer.feed_run(MessageRun.of(together), 0, raise_again)
        writer.write_due(together[-1].t_ns)


def numbers(reducer: Reducer) -> dict[str, list[int]]:
    """All numbers of ranks and sessions."""
    tables = reducer.state.table, reducer.state.session_table
    return {name: getattr(table, name).tolist() for table in tables for name in table.INITIAL}
