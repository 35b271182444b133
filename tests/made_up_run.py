"""Made-up runs: the messages that real ranks, agents and collectors would send, in order of arrival.

`World` moves ranks with known delays from step to step. `a_run` is a whole run for tests to
which only its length matters.
`write` records messages as the collector does, `feed_together` gives them to a reducer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddptop.analysis.reducer import Reducer, raise_again
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import VERSION
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import (
    UNKNOWN_OWN_TIME,
    Bucket,
    Bye,
    Card,
    Clock,
    Event,
    Flag,
    Hello,
    Layout,
    Membership,
    Message,
    OwnTime,
    Phase,
    Progress,
    Received,
    Run,
    StepRow,
    Steps,
)
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.report.build import read_report
from ddptop.report.content import Report

NS = 1_000_000_000
START_NS = 5_000 * NS
START_UNIX_NS = 1_700_000_000 * NS
STEP_US = 20_000
"""Length of a step of `a_run`."""
LATE_US = 5_000
"""How late rank 1 of `a_run` comes in every step."""
GIB = 1 << 30
TOGETHER = 12
"""Messages that `collect` takes at a time."""

DATA, FORWARD, OPTIMIZER, OTHER = 1_000, 4_000, 800, 200
READY = (3_000, 6_000)
"""Microseconds after the start of backward at which an undisturbed rank has its first and last bucket."""
TRANSFER = (1_000, 2_000)
"""Microseconds that the first and the last bucket take from the last arrival."""


def bucket(index: int, size: int = 8_000_000) -> Bucket:
    return Bucket(model=0, index=index, bytes=size, wire_bytes=size, parameters=4, dtype="float32", hook="")


def hello(rank: int, world: int, *, t_ns: int = START_NS, **changes: Any) -> Hello:
    """The first words of a rank; `changes`: other values of its fields."""
    values = {
        "version": VERSION,
        "run_id": "run-1",
        "session": 1000 + rank,
        "rank": rank,
        "world_size": world,
        "local_rank": rank,
        "incarnation": 0,
        "host": "node0",
        "pid": 4_000 + rank,
        "device": "cpu",
        "backend": "gloo",
        "timing_path": "reducer",
        "monotonic_ns": t_ns,
        "unix_ns": START_UNIX_NS + t_ns - START_NS,
        "budget_pct": 1.0,
    }
    return Hello(**values | changes)


def progress(t_ns: int, step: int, **changes: Any) -> Progress:
    """A heartbeat; `changes`: other values of its fields."""
    values = {
        "phase": Phase.BACKWARD,
        "bucket": 1,
        "sequence": 2 * step,
        "detail_every": 1,
        "cost_us": 25.0,
        "cost_pct": 0.4,
        "failures": 0,
    }
    return Progress(t_ns, step, **values | changes)


def run_message(state: str = "live", exit_code: int | None = None, **changes: Any) -> Run:
    """What the collector says of the run; `changes`: other values of its fields."""
    values = {"run_id": "run-1", "name": "train-k7qf", "script": "train.py", "argv": ("--lr", "0.1")}
    clocks = {"unix_ns": START_UNIX_NS, "monotonic_ns": START_NS}
    return Run(
        VERSION, **values | clocks | {"state": state, "exit_code": exit_code, "simulated": False} | changes
    )


def evenly_between(first: int, last: int, count: int) -> list[int]:
    """So many numbers from the first to the last; one alone is the last."""
    return [last - (last - first) * left // max(1, count - 1) for left in reversed(range(count))]


@dataclass
class World:
    """Ranks that take the same time for everything, but for `delays`: (rank, phase) -> us, each step.

    `backward` delays both buckets, `late_backward` the last one only. All clocks agree.
    """

    size: int = 4
    hosts: tuple[str, ...] = ("node0",)
    delays: dict[tuple[int, str], int] = field(default_factory=dict)
    detail_every: int = 1
    session_base: int = 100
    unix_ns: int = START_UNIX_NS
    incarnation: int = 0
    step: int = 0
    now_us: int = 0
    """When the ranks left the last step's all-reduce, each its own (below)."""
    offset_ns: dict[str, int] = field(default_factory=dict)
    """By host: what has to be added to its clock to get the collector's, at the world's beginning."""
    drift_ppm: dict[str, float] = field(default_factory=dict)
    """By host: how much faster the collector's clock runs."""
    groups: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """For each bucket the ranks that reduce it together; empty: all of them."""
    joined: set[int] = field(default_factory=set)
    """Ranks that have run out of inputs: they shadow the others' collectives, as `join()` does."""
    stamped_late: dict[int, int] = field(default_factory=dict)
    """By rank: microseconds by which its completion callbacks run late."""
    own: bool = False
    """Rows have their `OwnTime`, as those of this version; without it they are those of 0.1.0."""
    no_last_gradient: set[int] = field(default_factory=set)
    """Ranks whose last gradient is unknown."""
    waited: dict[tuple[int, str], int] = field(default_factory=dict)
    """(rank, phase) -> us of it waited in collectives of the script's own; it is part of the delay there."""

    gc_us: dict[int, int] = field(default_factory=dict)
    """By rank: how long garbage collections took; part of some delay. -1: not known."""

    elements: dict[int, int] = field(default_factory=dict)
    """By rank: elements of its inputs."""
    cpu_us: dict[int, int] = field(default_factory=dict)
    """By rank: us of its own time in which it waits for a CPU; empty: not known."""
    buffers: dict[int, int] = field(default_factory=dict)
    """By rank: us of what it waits in forward (`waited`) that are DDP's broadcast of buffers."""

    buckets: int = 2

    def __post_init__(self) -> None:
        self.begin_us = [self.now_us] * self.size
        self.ready_us = evenly_between(*READY, self.buckets)
        self.transfer_us = evenly_between(*TRANSFER, self.buckets)
        self.generation = 0
        self.seq = 0

    def session(self, rank: int) -> int:
        return self.session_base + rank

    def host(self, rank: int) -> str:
        return self.hosts[rank * len(self.hosts) // self.size]

    def base_ns(self, rank: int) -> int:
        """The world's beginning on the clock of the rank's host."""
        return START_NS - self.offset_ns.get(self.host(rank), 0)

    def slower(self, host: str) -> float:
        """How long a unit of the collector's time is on the host's clock."""
        return 1 / (1 + self.drift_ppm.get(host, 0.0) * 1e-6)

    def host_ns(self, host: str, t_us: int) -> int:
        """A time of the world on the host's clock."""
        return START_NS - self.offset_ns.get(host, 0) + round(t_us * 1000 * self.slower(host))

    def agent(self, host: str) -> int:
        """Session of the host's agent."""
        return 9_000 + sorted({*self.hosts}).index(host)

    def of_agent(self, host: str, message: Message, t_us: int | None = None) -> Received:
        """A message of the host's agent."""
        at = self.now_us if t_us is None else t_us
        return Received(START_NS + at * 1000, -1, self.agent(host), 1, message)

    def host_message(self, host: str, *, own: bool = False, addresses: tuple[str, ...] = ()) -> Received:
        now_ns = self.host_ns(host, self.now_us)
        session = 0 if own else self.agent(host)
        message = Host(1, "id", session, host, 70, now_ns, START_UNIX_NS, 64, 1 << 38, "boot", addresses)
        return self.of_agent(host, message)._replace(session=session)

    def usage(self, host: str, t_us: int | None = None, **changes: Any) -> Received:
        at = self.now_us if t_us is None else t_us
        values = {"kept": 0, "local_recording": None, "thinned": 0, **changes}
        message = HostUsage(self.host_ns(host, at), 12.5, 1 << 36, 1e6, 2e6, 160_000, **values)
        return self.of_agent(host, message, at)

    def about(self, rank: int, message: Message, t_us: int | None = None) -> Received:
        return self.of_agent(self.host(rank), About(rank, self.session(rank), encode(message)), t_us)

    def compared(self, host: str, bound_ms: float, *, wrong_ms: float = 0.0) -> Received:
        """The host's agent reports its clock as the collector's clock compares with it now."""
        t_ns = self.host_ns(host, self.now_us)
        offset_ns = START_NS + self.now_us * 1000 - t_ns + int(wrong_ms * 1e6)
        drift_ppb = round(self.drift_ppm.get(host, 0.0) * 1000)
        return self.of_agent(host, Clock(t_ns, host, offset_ns, int(bound_ms * 1e6), drift_ppb, 160_000))

    def received(self, rank: int, message: Message, t_us: int | None = None) -> Received:
        self.seq += 1
        at = self.now_us if t_us is None else t_us
        session = 0 if rank < 0 else self.session(rank)
        return Received(START_NS + at * 1000, rank, session, self.seq, message)

    def run(self, state: str = "live", exit_code: int | None = None) -> Received:
        names = {"run_id": "id", "name": "toy", "script": "toy.py", "argv": ("--fast",)}
        return self.received(-1, run_message(state, exit_code, **names))

    def hello(self, rank: int) -> Received:
        message = hello(
            rank,
            self.size,
            run_id="id",
            session=self.session(rank),
            incarnation=self.incarnation,
            host=self.host(rank),
            monotonic_ns=self.base_ns(rank),
            unix_ns=self.unix_ns,
        )
        return self.received(rank, message)

    def layout(self, rank: int, buckets: tuple[Bucket, ...] = (bucket(0), bucket(1))) -> Received:
        return self.received(rank, Layout(self.generation, buckets))

    def clock(self, host: str, bound_ms: float, *, wrong_ms: float = 0.0) -> Received:
        offset_ns = self.offset_ns.get(host, 0) + int(wrong_ms * 1e6)
        return self.received(-1, Clock(START_NS + self.now_us * 1000, host, offset_ns, int(bound_ms * 1e6)))

    def membership(self, rank: int, group: str, *ranks: int, model: int = 0) -> Received:
        return self.received(rank, Membership(model, group, "gloo", ranks))

    def introduce(self) -> Iterator[Received]:
        for rank in range(self.size):
            yield self.hello(rank)
            card = {"torch": "2.13", "script": "toy.py", "argv": "--fast", "ddp.static_graph": False}
            yield self.received(rank, Card(dict(card)))
            yield self.layout(rank)

    def progress(self, rank: int, t_us: int | None = None, **changes: int) -> Received:
        at = self.now_us if t_us is None else t_us
        values = {"step": self.step, "sequence": 2 * self.step, "detail_every": self.detail_every, **changes}
        return self.received(rank, progress(self.host_ns(self.host(rank), at), **values), at)

    def event(self, kind: str, rank: int = -1, **fields: str | int) -> Received:
        return self.received(-1, Event(kind, START_NS + self.now_us * 1000, rank, -1, dict(fields)))

    def bye(self, rank: int, reason: str = "finished") -> Received:
        return self.received(rank, Bye(START_NS + self.now_us * 1000, reason))

    def rows(self, loss: Callable[[int, int], float | None] = lambda rank, step: 1.0) -> list[StepRow]:
        """The next step of every rank; moves the world on."""
        late = [self._arrivals(rank) for rank in range(self.size)]
        rows = []
        alike: list[int] = []  # in one group all ranks see the same ends: 1,024 ranks work them out once
        for rank in range(self.size):
            ends = [] if self.groups else alike
            for i, moving in enumerate(self.transfer_us if not ends else ()):  # a lane for each: none queues
                ends.append(max(late[other][i] for other in self._with(rank, i)) + moving)
            rows.append(self._row(rank, late[rank], ends, loss(rank, self.step)))
        self.step += 1
        self.now_us = max(self.begin_us)
        return rows

    def _with(self, rank: int, i: int) -> Sequence[int]:
        """The ranks that reduce bucket `i` of this rank."""
        if not self.groups:
            return [other for other in range(self.size) if other not in self.joined]
        return next(ranks for ranks in self.groups[i] if rank in ranks)

    def _delay(self, rank: int, phase: str) -> int:
        return self.delays.get((rank, phase), 0)

    def _arrivals(self, rank: int) -> tuple[int, ...]:
        start = self.begin_us[rank] + DATA + OTHER + FORWARD
        before = ("after_optimizer", "data", "other", "forward", "before_backward", "backward")
        start += sum(self._delay(rank, phase) for phase in before)
        *earlier, last = (start + ready_us for ready_us in self.ready_us)
        return *earlier, last + self._delay(rank, "late_backward")

    def _row(self, rank: int, ready: tuple[int, ...], ends: list[int], loss: float | None) -> StepRow:
        begin = self.begin_us[rank]
        data = DATA + self._delay(rank, "data")
        forward = FORWARD + self._delay(rank, "forward")
        between = self._delay(rank, "after_optimizer") + self._delay(rank, "before_backward")
        backward_at = begin + data + OTHER + self._delay(rank, "other") + forward + between
        optimizer = OPTIMIZER + self._delay(rank, "optimizer")
        done = max(ends)
        clipped = self._delay(rank, "before_optimizer")
        self.begin_us[rank] = done + clipped + optimizer
        detail = self.step % self.detail_every == 0
        stamp = self.stamped_late.get(rank, 0)
        cells = (
            tuple(n for i in range(self.buckets) for n in (i, ready[i] - begin, ends[i] + stamp - ready[i]))
            if detail
            else ()
        )
        return StepRow(
            begin_us=begin,
            wall_us=done + clipped + optimizer - begin,
            data_us=data,
            forward_us=forward,
            backward_us=done - backward_at,
            optimizer_us=optimizer,
            forward_at_us=backward_at - self._delay(rank, "before_backward") - forward - begin,
            backward_at_us=backward_at - begin,
            optimizer_at_us=done + clipped - begin,
            micro_steps=1,
            flags=(Flag.DETAIL if detail else 0) | (Flag.JOINED if rank in self.joined else 0),
            cost_us=20,
            loss=loss,
            cells=cells,
            own=self._own(rank, done - max(ready)) if self.own else UNKNOWN_OWN_TIME,
        )

    def _own(self, rank: int, exposed_us: int) -> OwnTime:
        phases = ("data", "forward", "backward", "optimizer", "other")
        waited = [self.waited.get((rank, phase), 0) for phase in phases]
        before_forward = OTHER + self._delay(rank, "other") - waited[4]
        between = (self._delay(rank, "before_backward"), self._delay(rank, "before_optimizer"))
        unknown = rank in self.no_last_gradient
        own = OwnTime(-1 if unknown else exposed_us, before_forward, *between, *waited)
        return own._replace(
            gc=self.gc_us.get(rank, 0),
            elements=self.elements.get(rank, -1),
            buffers=self.buffers.get(rank, -1),
            cpu_wait=self.cpu_us.get(rank, 0) if self.cpu_us else -1,
        )

    def steps(
        self,
        count: int,
        loss: Callable[[int, int], float | None] = lambda rank, step: 1.0,
        *,
        batch: int = 1,
        before_step: Callable[[], None] = lambda: None,
    ) -> Iterator[Received]:
        """The next `count` steps of all ranks, a message for each rank and `batch` of steps."""
        end = self.step + count
        while self.step < end:
            first, batches = self.step, []
            for _ in range(min(batch, end - first)):
                before_step()
                batches.append([self._on_own_clock(rank, row) for rank, row in enumerate(self.rows(loss))])
            for rank, rows in enumerate(zip(*batches, strict=True)):
                yield self.received(rank, Steps(self.generation, first, self.base_ns(rank), rows))

    def _on_own_clock(self, rank: int, row: StepRow) -> StepRow:
        """The row with its begin and the times of its buckets as the clock of the rank's host counts them."""
        slower = self.slower(self.host(rank))
        if slower == 1.0:
            return row
        cells = (cell if at % 3 == 0 else round(cell * slower) for at, cell in enumerate(row.cells))
        return row._replace(begin_us=round(row.begin_us * slower), cells=tuple(cells))


def feed_together(reducer: Reducer, messages: Iterable[Received]) -> None:
    """Feed messages in runs, as a recording is read: the same figures in a fraction of the time."""
    in_order = [*messages]
    for first in range(0, len(in_order), 1024):
        run, place = MessageRun.of(in_order[first : first + 1024]), 0
        while place < len(run):
            place = reducer.feed_run(run, place, raise_again)


@lru_cache(1)  # asked for by rank after rank
def rows_of_two(first: int, count: int, buckets: int) -> list[list[StepRow]]:
    """Steps of one length in which the second rank comes late; their arrivals differ by microseconds."""
    delays = {(0, "forward"): 1_000, (1, "data"): LATE_US}
    world, rows = World(2, buckets=buckets, delays=delays, step=first), []
    for step in range(first, first + count):
        world.delays |= {(1, "forward"): 1_000 - step % 7, (1, "late_backward"): step % 7}
        rows.append(world.rows())
    return rows


def steps(first: int, count: int, rank: int, *, buckets: int = 10, start_ns: int = START_NS) -> Steps:
    """A batch of steps that follow each other without a pause: rank 1 comes late, the loss falls."""
    rows = tuple(
        both[rank == 1]._replace(loss=3.0 / (1 + step) + rank * 1e-9)
        for step, both in enumerate(rows_of_two(first, count, buckets), first)
    )
    return Steps(1, first, start_ns + first * STEP_US * 1000, rows)


def layout(buckets: int = 10) -> Layout:
    """So many equal buckets."""
    return Layout(1, tuple(bucket(index, 1 << 20) for index in range(buckets)))


def a_run(
    count: int,
    *,
    world: int = 2,
    batch: int = 10,
    buckets: int = 10,
    ending: bool = True,
    event_at: int | None = None,
    name: str = "train-k7qf",
    run_id: str = "run-1",
) -> Iterator[Received]:
    """All messages of a run of `count` steps, in order of arrival."""
    numbers = dict.fromkeys(range(world), 0)

    def of(rank: int, t_ns: int, message: Message) -> Received:
        if isinstance(message, Hello | Progress):
            return Received(t_ns, rank, 1000 + rank, 0, message)
        numbers[rank] += 1
        return Received(t_ns, rank, 1000 + rank, numbers[rank], message)

    t_ns = START_NS
    yield Received(t_ns, -1, 0, 0, run_message(name=name, run_id=run_id))
    for rank in range(world):
        yield of(rank, t_ns + rank, hello(rank, world, run_id=run_id))
        yield of(rank, t_ns + rank, Card({"torch": "2.13.0", "ddp.bucket_cap_mb": 25}))
        yield of(rank, t_ns + rank, layout(buckets))
    for first in range(0, count, batch):
        size = min(batch, count - first)
        t_ns = START_NS + (first + size) * STEP_US * 1000
        for rank in range(world):
            yield of(rank, t_ns + rank * 1000, steps(first, size, rank, buckets=buckets))
        if first // batch % 5 == 0:
            for rank in range(world):
                beat = progress(t_ns, first + size, phase=Phase.FORWARD)
                yield of(rank, t_ns + 5000 + rank, beat)
                yield Received(t_ns + 6000 + rank, rank, 1000 + rank, 0, Usage(t_ns, 1 << 28, 99.0))
        if event_at is not None and first <= event_at < first + batch:
            yield Received(t_ns + 9000, -1, 0, 0, Event("mute", t_ns, -1, event_at, {"message": "a pause"}))
    if ending:
        for rank in range(world):
            yield of(rank, t_ns + 10_000 + rank, Bye(t_ns, "finished"))
        yield Received(t_ns + 20_000, -1, 0, 0, run_message("finished", 0, name=name, run_id=run_id))


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


def report_from_messages(messages: Iterable[Received], *, growing: bool = False) -> Report:
    """The report of the recording that the collector makes of these messages; `growing`: it still writes."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.ddptop")
        write(path, messages, close=not growing)
        with Recording.open(path) as recording:
            return read_report(recording)


def write_recording(path: Path, count: int = 100, **options: Any) -> None:
    """Record a small run under the name of the file."""
    write(path, a_run(count, **{"buckets": 1, "name": path.stem} | options))


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
    tables = reducer.state.table, reducer.state.sessions.table
    return {name: getattr(table, name).tolist() for table in tables for name in table.INITIAL}
