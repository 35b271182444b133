"""All ranks as columns: what their HELLOs say, and what they have reported by now.

A frame reads these; the ranks are those of `RunState.ranks`. What ranks report (heartbeats, readings of their
processes and GPUs) is put into columns where it came in columns, else when a frame is made.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ddptop.analysis.ranks import PHASE_NAMES
from ddptop.frames.reasons import Beside
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import is_constant
from ddptop.protocol.messages import NAMES, Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.frames.frame import GpuFacts
    from ddptop.protocol.message_run import Placed, Readings
    from ddptop.protocol.messages import Hello, Message
    from ddptop.protocol.vocabulary import RankPhase

_HELLO = attrgetter("hello")
_PHASES = np.array(["", *map(PHASE_NAMES.__getitem__, range(len(PHASE_NAMES))), ""], object)
"""By number of the phase and one: first that of no heartbeat, last that of a number of a later version."""


class HasRanks(Protocol):
    """What the columns are of: a `RunState`."""

    @property
    def world(self) -> int: ...
    @property
    def ranks(self) -> Sequence[Any]: ...
    def with_readings(self, rank: int) -> Any: ...


class HelloColumns(NamedTuple):
    """What the HELLOs of all ranks say; empty or NaN for ranks that have sent none."""

    hellos: list[Hello | None]
    host: tuple[str, ...]
    device: tuple[str, ...]
    local_rank: Column
    pid: Column
    incarnation: Column
    budget_pct: float | None
    """The largest; None: no rank has sent HELLO."""
    of_hosts: dict[str, list[int]]
    """The ranks of each host, in order of the lowest rank."""
    members: Indices
    """(hosts, most ranks of one) the same as rows, filled up with each host's first rank."""
    counts: Indices
    """(hosts,) how many ranks each host has."""
    host_at: Indices
    """(ranks,) place of each rank's host in `of_hosts`; -1: none."""
    gpus: Indices
    """(GPUs,) the last rank on each CUDA device of each host."""


def hello_columns(ranks: Sequence[object], before: HelloColumns | None) -> HelloColumns:
    """The HELLOs of these ranks; `before` itself where they are the same."""
    hellos: list[Hello | None] = [*map(_HELLO, ranks)]
    if before is not None and hellos == before.hellos:  # the same objects, which is quick to see
        return before
    of_hosts: dict[str, list[int]] = {}
    gpus: dict[tuple[str, str], int] = {}
    for rank, hello in enumerate(hellos):
        if hello is not None:
            of_hosts.setdefault(hello.host, []).append(rank)
            if hello.device.startswith("cuda"):
                gpus[hello.host, hello.device] = rank
    most = max(map(len, of_hosts.values()), default=0)
    places = {name: place for place, name in enumerate(of_hosts)}
    rows = [mine + mine[:1] * (most - len(mine)) for mine in of_hosts.values()]

    def numbers(name: str) -> Column:
        return np.array([None if hello is None else getattr(hello, name) for hello in hellos], np.float64)

    return HelloColumns(
        hellos,
        tuple("" if hello is None else hello.host for hello in hellos),
        tuple("" if hello is None else hello.device for hello in hellos),
        numbers("local_rank"),
        numbers("pid"),
        numbers("incarnation"),
        max((hello.budget_pct for hello in hellos if hello is not None), default=None),
        of_hosts,
        np.array(rows, np.int64).reshape(len(rows), most),
        np.array([*map(len, of_hosts.values())], np.int64),
        np.array([-1 if hello is None else places[hello.host] for hello in hellos], np.int64),
        np.array([*gpus.values()], np.int64),
    )


class _Latest:
    """Numbers of the newest message of a kind of each rank: (numbers, ranks), NaN without one."""

    def __init__(self, kind: type[Message], numbers: Sequence[str]) -> None:
        self._kind, self._unknown = kind, (None,) * len(numbers)
        get = attrgetter(*numbers)
        self._of_message: Callable[[Any], Any] = get if len(numbers) > 1 else lambda one: (get(one),)
        self._columns = [NAMES[kind].index(name) for name in numbers]
        self._newest: list[Message | Placed | None] = []
        self.values: Column = np.empty((len(numbers), 0))

    def update(self, ranks: Sequence[Any]) -> None:
        """Read the messages that are others than at the last call."""
        if not self._newest:  # before the first frame a large world takes no memory
            self._newest = [None] * len(ranks)
            self.values = np.full((len(self.values), len(ranks)), np.nan)
        kind, before, values = self._kind, self._newest, self.values
        self._newest = [one.readings.get(kind) for one in ranks]
        changed = [*map(operator.is_not, self._newest, before)]
        at = np.flatnonzero(changed)
        if len(at):
            fresh = [*compress(self._newest, changed)]
            numbers = self._of_message if {*map(type, fresh)} == {kind} else self._numbers
            values[:, at] = np.array([*map(numbers, fresh)], np.float64).T

    def _numbers(self, one: Message | Placed | None) -> Any:
        if type(one) is tuple:
            readings, at = one
            return tuple([readings.values[column][at] for column in self._columns])
        return self._unknown if one is None else self._of_message(one)

    def take(self, readings: Readings, places: Indices, ranks: Indices) -> None:
        """Of these `readings` those at some places are the newest messages of these ranks."""
        if self._newest:
            for row, column in enumerate(self._columns):
                values = readings.values[column]
                self.values[row, ranks] = values[:1] if is_constant(values) else values[places]

    def note(self, ranks: Indices, placed: Sequence[Placed]) -> None:
        """The ranks have got these messages, whose numbers were taken."""
        if self._newest:
            for rank, one in zip(ranks.tolist(), placed, strict=True):
                self._newest[rank] = one


NUMBERS: dict[type[Message], tuple[str, ...]] = {
    Progress: ("phase", "bucket", "sequence", "step", "cost_pct", "cost_us", "detail_every", "failures"),
    Usage: (
        *("rss_bytes", "cpu_pct", "major_faults_s", "blocked_pct", "clock_pct", "heat_pct", "watcher_pct"),
        *("cores", "first_core", "throttled_pct"),
    ),
    Gpu: ("util_pct",),
}
"""By kind of message the numbers that are read of it as columns."""


def newest(ranks: Sequence[Any], kind: type[Message], name: str) -> Column:
    """(ranks,) a number of the newest message of a kind; NaN where there is none."""
    latest = _Latest(kind, (name,))
    latest.update(ranks)
    return np.asarray(latest.values[0])


class ReportColumns:
    """What the ranks have reported by now, (ranks,) each, from `RankState`. Read when needed, then kept until
    a message is taken alone; what is taken in columns is put into them."""

    def __init__(self, state: HasRanks) -> None:
        self._state = state
        self.world = state.world
        self._kept: dict[str, NDArray[Any]] = {}
        self._latest = {kind: _Latest(kind, names) for kind, names in NUMBERS.items()}
        self.gpu_facts: dict[int, GpuFacts] = {}
        """By rank what the last frame said of its GPU and memory, as long as its readings are the same."""
        self.running: Mask = np.zeros(self.world, bool)
        """`RankState.running`."""
        self.ended: tuple[int, ...] = ()
        """Ranks that have sent BYE or whose process was seen to have exited."""

    def read_presence(self) -> None:
        """A rank has joined or exited."""
        self.running = np.array([*map(attrgetter("running"), self._state.ranks)], bool)
        ends = map(attrgetter("bye", "gone_ns"), self._state.ranks)
        self.ended = tuple(rank for rank, end in enumerate(ends) if end != (None, None))
        self.forget()

    def forget(self) -> None:
        """A message was taken alone: the columns are to be read again."""
        self._kept = {}
        self.gpu_facts = {}

    def keep(self, columns: dict[str, NDArray[np.int64]]) -> None:
        """What `integers` is to give."""
        self._kept |= columns

    def put(self, name: str, ranks: Indices | slice, values: Indices) -> None:
        """These ranks have got these values of a field."""
        if name in self._kept:
            self._kept[name][ranks] = values

    def add_rows(self, ranks: Indices, rows: Indices, micro_steps: Indices) -> None:
        """So many rows of these ranks were taken; `micro_steps`: in the last one of each, 0: not known."""
        if "records" in self._kept:
            self._kept["records"][ranks] += rows
        self.put("micro_steps", ranks[micro_steps > 0], micro_steps[micro_steps > 0])

    def integers(self, name: str) -> NDArray[np.int64]:
        """A field of `RankState` that is an integer."""
        if name not in self._kept:
            self._kept[name] = np.fromiter(map(attrgetter(name), self._state.ranks), np.int64, self.world)
        return self._kept[name]

    def numbers(self, name: str) -> Column:
        """A field of `RankState` that is a number or None, which is NaN."""
        if name not in self._kept:
            self._kept[name] = np.array([*map(attrgetter(name), self._state.ranks)], np.float64)
        return self._kept[name]

    def where(self, what: str, has: Callable[[Any], bool]) -> Indices:
        """The ranks whose state has something, which is kept under the name `what`."""
        if what not in self._kept:
            self._kept[what] = np.array([*map(has, self._state.ranks)], bool)
        return np.flatnonzero(self._kept[what])

    def with_gpu(self) -> Indices:
        """The ranks whose GPU or CUDA memory is known."""
        return self.where("gpu", lambda one: Gpu in one.readings or Memory in one.readings)

    def beat(self, name: str) -> Column:
        """A number of the newest heartbeats; NaN: none has come."""
        return self._newest(Progress, name)

    def usage(self, name: str) -> Column:
        """A number of the newest readings of the ranks' processes; NaN: none has come."""
        return self._newest(Usage, name)

    def usage_beside(self, rank: int, late: Sequence[int], name: str) -> Beside:
        """Such a number of a rank beside those of the ranks that are not `late`."""
        column = self.usage(name)
        others = np.delete(column, late)
        least = float(np.fmin.reduce(others, initial=np.nan))
        return Beside(float(column[rank]), float(np.fmax.reduce(others, initial=0.0)), least)

    def gpu(self, name: str) -> Column:
        """A number of the newest readings of the ranks' GPUs; NaN: none has come."""
        return self._newest(Gpu, name)

    def phases(self) -> tuple[RankPhase, ...]:
        """The phase of each rank, by its newest heartbeat."""
        at = np.nan_to_num(self.beat("phase"), nan=-1).astype(np.int64) + 1
        return tuple(_PHASES.take(at, mode="clip").tolist())

    def reported(self, hellos: HelloColumns, now_ns: int) -> dict[str, Column]:
        """Columns of a frame that are no figures over steps, but what the ranks have reported by `now_ns`."""
        introduced = ~np.isnan(hellos.pid)
        step = self.integers("step").astype(np.float64)
        age_ms = np.maximum(now_ns - self.integers("heard_ns"), 0) / 1e6
        bucket, sequence = self.beat("bucket"), self.beat("sequence")
        here = (bucket >= 0) & (self.beat("step") == step)
        joined = np.where(introduced, self.integers("joined").astype(np.float64), np.nan)
        return {
            "age_ms": np.where(introduced, age_ms, np.nan),
            "step": np.where(introduced, step, np.nan),
            "bucket": np.where(here, bucket, np.nan),
            "sequence": np.where(sequence >= 0, sequence, np.nan),
            "records": self.integers("records").astype(np.float64),
            "lost_records": self.integers("lost_records").astype(np.float64),
            "rss_bytes": self.usage("rss_bytes").copy(),
            "cpu_pct": self.usage("cpu_pct").astype(np.float32),
            "joined": joined.astype(np.float32),
            "micro_steps": self.numbers("micro_steps").astype(np.float32),
        }

    def largest_of_beats(self, name: str) -> Any:
        """The largest such number, as it was sent; None: no heartbeat has come."""
        column = self.beat(name)
        if np.isnan(column).all():
            return None
        return getattr(self._state.with_readings(int(np.nanargmax(column))).progress, name)

    def take(self, readings: Readings, places: Indices, ranks: Indices) -> None:
        """These ranks have got these `RankState.readings`."""
        if readings.kind in self._latest:
            self._latest[readings.kind].take(readings, places, ranks)
        if readings.kind in (Gpu, Memory) and "gpu" in self._kept:
            self._kept["gpu"][ranks] = True
            for rank in ranks.tolist():
                self.gpu_facts.pop(rank, None)

    def note(self, kind: type[Message], ranks: Indices, placed: Sequence[Placed]) -> None:
        """What was taken of these ranks is now in their `readings`."""
        if kind in self._latest:
            self._latest[kind].note(ranks, placed)

    def _newest(self, kind: type[Message], name: str) -> Column:
        if kind.__name__ not in self._kept:
            self._latest[kind].update(self._state.ranks)
            self._kept[kind.__name__] = self._latest[kind].values
        return np.asarray(self._kept[kind.__name__][NUMBERS[kind].index(name)])
