"""Facts of all ranks as columns, for frames: with thousands of ranks a loop over them takes milliseconds."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.ranks import RankState
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.messages import Hello

_HELLO = attrgetter("hello")
_NEWEST = attrgetter("heard_ns", "seen_ns", "bye", "gone_ns")


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


def hello_columns(ranks: Sequence[RankState], before: HelloColumns | None) -> HelloColumns:
    """The HELLOs of these ranks; `before` itself where they are the same."""
    hellos: list[Hello | None] = [*map(_HELLO, ranks)]
    if before is not None and hellos == before.hellos:  # the same objects, which is quick to see
        return before
    of_hosts: dict[str, list[int]] = {}
    for rank, hello in enumerate(hellos):
        if hello is not None:
            of_hosts.setdefault(hello.host, []).append(rank)
    most = max(map(len, of_hosts.values()), default=0)
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
    )


class HostColumns(NamedTuple):
    """One value for each host with ranks, in the order of `HelloColumns.of_hosts`."""

    newest_ns: NDArray[np.int64]
    """When a rank of it was heard last, or its process read."""
    running: Mask
    """Whether any of its ranks runs."""


def host_columns(ranks: Sequence[RankState], hellos: HelloColumns) -> HostColumns:
    """What the hosts' ranks report."""
    if not hellos.of_hosts:
        return HostColumns(np.zeros(0, np.int64), np.zeros(0, bool))
    heard, seen, bye, gone = zip(*map(_NEWEST, ranks), strict=True)
    newest = np.maximum(np.array(heard, np.int64), np.array(seen, np.int64))
    running = np.ones(len(ranks), bool)
    if any(one is not None for one in bye) or any(one is not None for one in gone):
        running = np.array([one.running for one in ranks], bool)
    return HostColumns(newest[hellos.members].max(axis=1), np.any(running[hellos.members], axis=1))
