"""What a frame says of each host of the run; which rank is on which host, and names that fit a column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import keep_newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import HostState


@dataclass(slots=True, unsafe_hash=True)
class HostFigures:
    """One host of the run, for the hosts view. None: not known.

    Not to be changed. Not frozen: to make the 512 of a frame of 4,096 ranks took 2.1 ms then, and takes 0.3.
    """

    name: str
    state: HostState
    ranks: int
    """Ranks whose present process runs, or ran, on it."""
    running: int
    """How many of these ranks run."""
    age_ms: float
    """Time since the newest message from it."""
    worst_rank: int | None
    """Its flagged rank, or the one with the largest excess."""
    excess_ms: float | None
    """Excess of that rank."""
    step_ms: float | None
    """Median over its ranks of their step time."""
    clock_offset_ms: float | None
    """To be added to its clock to get the collector's; None: not measured, or the collector's own host."""
    clock_bound_ms: float | None
    clock_drift_ppm: float | None
    clock_age_s: float | None
    """Since the clock was compared."""
    round_trip_ms: float | None
    cpu_pct: float | None
    """Use of all its processors together."""
    cores: int | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    received_bytes_s: float | None
    sent_bytes_s: float | None
    gpus: int
    """GPUs that its ranks use."""
    gpu_util_pct: float | None
    """Mean over these."""
    kept: int
    """Messages that its agent keeps because the collector has not acked them."""
    local_recording: str | None
    thinned: int
    """Step rows without bucket detail because the collector asked for it."""
    collector: bool
    """Whether the collector runs on it."""
    link_peer: str | None = None
    """Host at the other end of its ranks' worst TCP link; likewise below."""
    link_round_trip_ms: float | None = None
    """The least of the last minutes."""
    link_lost_pct: float | None = None
    """Share of the segments that were lost and sent again."""

    @property
    def memory_used_pct(self) -> float | None:
        """Share of its memory that is in use."""
        if self.memory_used_bytes is None or not self.memory_bytes:
            return None
        return 100 * self.memory_used_bytes / self.memory_bytes


def presumed_hosts(host_of: tuple[str, ...], local_rank: Column) -> tuple[str, ...]:
    """The host of every rank, also of missing ranks whose neighbours' hosts and local ranks are known.

    As torchrun numbers ranks: a host's ranks follow one another, and every host has as many.
    """
    if "" not in host_of:
        return host_of
    reported = np.flatnonzero(np.isfinite(local_rank)).tolist()
    if not reported:
        return host_of
    per_host, hosts = int(np.nanmax(local_rank)) + 1, list(host_of)
    firsts: dict[int, str] = {}
    for rank in reported:
        if firsts.setdefault(rank - int(local_rank[rank]), host_of[rank]) != host_of[rank]:
            return host_of  # numbered otherwise, or local ranks are not known
    # In one pass: a rank may claim any local rank, and each missing one would look as far back.
    first = -per_host
    for rank, host in enumerate(host_of):
        first = rank if rank in firsts else first
        if not host:
            hosts[rank] = firsts[first] if rank - first < per_host else ""
    return tuple(hosts)


SHORT_ENOUGH = 12
"""Cells up to which names of hosts are not shortened further than by their domain."""

_SEPARATORS = re.compile(r"[-_.]")


@dataclass(frozen=True, slots=True)
class HostIndex:
    """Which rank is on which host."""

    names: tuple[str, ...]
    """In order of their lowest rank."""
    of_rank: NDArray[np.int64]
    """(ranks,) place in `names`."""
    short: tuple[str, ...]
    """The names as they are shown in columns."""
    rank_short: tuple[str, ...]
    """(ranks,) the same of each rank's host."""

    def ranks(self, host: int) -> list[int]:
        """The ranks of a host, by its place in `names`."""
        return [int(rank) for rank in np.flatnonzero(self.of_rank == host)]


@keep_newest
def host_index(hosts: tuple[str, ...]) -> HostIndex:
    """The index of `Ranks.host`, which does not change from frame to frame."""
    places: dict[str, int] = {}
    of_rank = np.fromiter((places.setdefault(host, len(places)) for host in hosts), np.int64, len(hosts))
    names = tuple(places)
    short = short_names(names)
    return HostIndex(names, of_rank, short, tuple(short[index] for index in of_rank.tolist()))


@keep_newest
def short_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names without domain and, where they are long, without the beginning that all of them share, or
    else the end: columns cut names at the front, where they would look the same.

    `train-llama-worker-7.jobs.svc` as `worker-7`. What is left begins with a letter, differs from host to
    host, and is cut at a separator only: `ip-10-0-3-17` stays as it is.
    """
    plain = without_domain(names)
    non_empty = [name for name in plain if name]
    if len(set(non_empty)) < 2 or max(map(len, non_empty)) <= SHORT_ENOUGH:
        return plain
    shared = _shared_beginning(non_empty)
    cuts = [separator.end() for separator in _SEPARATORS.finditer(shared)]
    for cut in reversed(cuts):
        if all(name[cut : cut + 1].isalpha() for name in non_empty):
            return tuple(name[cut:] for name in plain)
    ending = _shared_beginning([name[::-1] for name in non_empty])
    words = (
        separator.end()
        for separator in _SEPARATORS.finditer(ending, 1)
        if ending[separator.start() - 1].isalpha()
    )
    last = max(words, default=0)
    return tuple(name[: len(name) - last] for name in plain)


def _shared_beginning(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    length = next(
        (index for index, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None
    )
    return first if length is None else first[:length]


@keep_newest
def without_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """`gpu017.cluster.local` as `gpu017`, where the hosts still differ."""
    # Cut only where the names stay apart: two clusters may both have a `node1`.
    short = {host: host.partition(".")[0] for host in set(hosts)}
    if len(set(short.values())) < len(short) or any(name.isdecimal() for name in short.values()):
        return hosts  # several of one name, or addresses
    return tuple(short[host] for host in hosts)
