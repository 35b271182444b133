"""All ranks as columns: what their HELLOs say, and what they have reported by now.

A frame reads these; the ranks are those of `RunState.ranks`. What a rank reports as one object (a heartbeat,
the reading of its process) is put into columns when a frame is made, for the ranks that have a new one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.messages import Hello

_HELLO = attrgetter("hello")


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
    gpus: dict[str, dict[str, int]]
    """Of each host the CUDA devices that its ranks use, and the last rank on each."""


def hello_columns(ranks: Sequence[object], before: HelloColumns | None) -> HelloColumns:
    """The HELLOs of these ranks; `before` itself where they are the same."""
    hellos: list[Hello | None] = [*map(_HELLO, ranks)]
    if before is not None and hellos == before.hellos:  # the same objects, which is quick to see
        return before
    of_hosts: dict[str, list[int]] = {}
    gpus: dict[str, dict[str, int]] = {}
    for rank, hello in enumerate(hellos):
        if hello is not None:
            of_hosts.setdefault(hello.host, []).append(rank)
            devices = gpus.setdefault(hello.host, {})
            if hello.device.startswith("cuda"):
                devices[hello.device] = rank
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
        gpus,
    )


class _Latest:
    """Numbers of one object per rank, such as its newest heartbeat: (numbers, ranks), NaN without one."""

    def __init__(self, name: str, numbers: Sequence[str]) -> None:
        self._object, self._numbers = attrgetter(name), attrgetter(*numbers)
        self._unknown = (None,) * len(numbers)
        self.objects: list[Any] = []
        self.values: Column = np.empty((len(numbers), 0))

    def update(self, ranks: Sequence[object]) -> None:
        """Read the objects that are others than at the last call."""
        if not self.objects:  # before the first frame a large world takes no memory
            self.objects = [None] * len(ranks)
            self.values = np.full((len(self.values), len(ranks)), np.nan)
        before, self.objects = self.objects, [*map(self._object, ranks)]
        changed = [*map(operator.is_not, self.objects, before)]
        at = np.flatnonzero(changed)
        if len(at):
            fresh = compress(self.objects, changed)
            rows = [self._unknown if one is None else self._numbers(one) for one in fresh]
            self.values[:, at] = np.array(rows, np.float64).T


BEAT = ("phase", "bucket", "sequence", "step", "cost_pct", "cost_us", "detail_every", "failures")
"""Numbers of a heartbeat."""

USAGE = ("rss_bytes", "cpu_pct")
"""Numbers of a reading of a rank's process."""


class ReportColumns:
    """What the ranks have reported by now, (ranks,) each, from `RankState`. Read when needed, then kept until
    the next message."""

    def __init__(self, ranks: Sequence[object]) -> None:
        self._ranks = ranks
        self.world = len(ranks)
        self._taken = 0
        self._kept: dict[str, NDArray[Any]] = {}
        self._beats = _Latest("progress", BEAT)
        self._usages = _Latest("usage", USAGE)
        self.running: Mask = np.zeros(self.world, bool)
        """`RankState.running`."""
        self.ended: tuple[int, ...] = ()
        """Ranks that have sent BYE or whose process was seen to have exited."""

    def update(self, taken: int, *, presence: bool) -> None:
        """The state has taken so many messages by now. `presence`: a rank has joined or exited."""
        if presence:
            self.running = np.array([*map(attrgetter("running"), self._ranks)], bool)
            ends = map(attrgetter("bye", "gone_ns"), self._ranks)
            self.ended = tuple(rank for rank, end in enumerate(ends) if end != (None, None))
        if presence or taken != self._taken:
            self._kept, self._taken = {}, taken

    def keep(self, columns: dict[str, NDArray[np.int64]]) -> None:
        """What `integers` is to give, until the next message."""
        self._kept |= columns

    def integers(self, name: str) -> NDArray[np.int64]:
        """A field of `RankState` that is an integer."""
        if name not in self._kept:
            self._kept[name] = np.fromiter(map(attrgetter(name), self._ranks), np.int64, self.world)
        return self._kept[name]

    def numbers(self, name: str) -> Column:
        """A field of `RankState` that is a number or None, which is NaN."""
        return np.array([*map(attrgetter(name), self._ranks)], np.float64)

    def beat(self, name: str) -> Column:
        """A number of the newest heartbeats; NaN: none has come."""
        return np.asarray(self._values(self._beats)[BEAT.index(name)])

    def usage(self, name: str) -> Column:
        """A number of the newest readings of the ranks' processes; NaN: none has come."""
        return np.asarray(self._values(self._usages)[USAGE.index(name)])

    def largest_of_beats(self, name: str) -> Any:
        """The largest such number, as it was sent; None: no heartbeat has come."""
        column = self.beat(name)
        if np.isnan(column).all():
            return None
        return getattr(self._beats.objects[int(np.nanargmax(column))], name)

    def _values(self, latest: _Latest) -> Column:
        key = "beats" if latest is self._beats else "usages"
        if key not in self._kept:
            latest.update(self._ranks)
            self._kept[key] = latest.values
        return latest.values
