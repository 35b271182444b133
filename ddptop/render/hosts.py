"""Ranks by host: names of hosts that fit a column, figures of hosts, and who needs attention first.

A host without figures of its agent (`Frame.hosts`) has those that its ranks report.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.hosts import HostFigures
from ddptop.protocol.vocabulary import ENDED
from ddptop.render.context import CALM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.frame import Frame
    from ddptop.protocol.vocabulary import HostState, RankStatus
    from ddptop.render.context import RenderContext

SHORT_ENOUGH = 12
"""Cells up to which names of hosts are not shortened further than by their domain."""

_SEPARATORS = re.compile(r"[-_.]")

SILENT_STATES = ("unreachable", "lost")
"""States of a host that say more than those of its ranks."""

NOT_RUNNING = ("lost", "failed", "finished", "waiting")
"""States of a rank whose process does not run, or has not reported yet."""


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


@lru_cache(maxsize=4)
def host_index(hosts: tuple[str, ...]) -> HostIndex:
    """The index of `Ranks.host`, which does not change from frame to frame."""
    places: dict[str, int] = {}
    of_rank = np.fromiter((places.setdefault(host, len(places)) for host in hosts), np.int64, len(hosts))
    names = tuple(places)
    short = short_names(names)
    return HostIndex(names, of_rank, short, tuple(short[at] for at in of_rank.tolist()))


@lru_cache(maxsize=4)
def short_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names without domain and, where they are long, without the beginning that all of them share.

    `train-llama-worker-7.jobs.svc` as `worker-7`. What is left begins with a letter, differs from host to
    host, and is cut at a separator only: `ip-10-0-3-17` stays as it is.
    """
    plain = without_domain(names)
    known = [name for name in plain if name]
    if len(set(known)) < 2 or max(map(len, known)) <= SHORT_ENOUGH:
        return plain
    shared = _shared_beginning(known)
    cuts = [found.end() for found in _SEPARATORS.finditer(shared)]
    for cut in reversed(cuts):
        if all(name[cut : cut + 1].isalpha() for name in known):
            return tuple(name[cut:] for name in plain)
    return plain


def _shared_beginning(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), None)
    return first if length is None else first[:length]


@lru_cache(maxsize=4)
def without_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """`gpu017.cluster.local` as `gpu017`, where the hosts still differ."""
    short = {host: host.partition(".")[0] for host in set(hosts)}
    if len(set(short.values())) < len(short) or any(name.isdecimal() for name in short.values()):
        return hosts  # several of one name, or addresses
    return tuple(short[host] for host in hosts)


def several_hosts(frame: Frame) -> bool:
    """Whether the run has more than one host, as far as it is known."""
    return frame.run.nodes > 1 or len(frame.hosts) > 1


def rank_host(frame: Frame, rank: int) -> str:
    """The short name of a rank's host; empty where all ranks are on one host, and where it is not known."""
    index = host_index(frame.ranks.host)
    if not several_hosts(frame) or not 0 <= rank < len(index.of_rank):
        return ""
    return index.short[int(index.of_rank[rank])]


def worst_first(context: RenderContext, chosen: Sequence[int]) -> NDArray[np.int64]:
    """The chosen ranks by their attention; those that need none stay in their order."""
    place, size = context.attention
    ranks = np.asarray(chosen, np.int64)
    return ranks[np.lexsort((-size[ranks], place[ranks]))]


@dataclass(frozen=True, slots=True)
class ByHost:
    """Ranks in an order, those of a host together: hosts in the order of their first ranks."""

    hosts: NDArray[np.int64]
    """Places in the index of hosts."""
    ranks: NDArray[np.int64]
    starts: NDArray[np.int64]
    """(hosts + 1,) where the ranks of each host begin in `ranks`, and the end."""

    def of(self, at: int) -> list[int]:
        """The ranks of the host `hosts[at]`."""
        found: list[int] = self.ranks[self.starts[at] : self.starts[at + 1]].tolist()
        return found

    def extremes(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(hosts,) least and largest of a value per rank."""
        column, starts = values[self.ranks], self.starts[:-1]
        return np.minimum.reduceat(column, starts), np.maximum.reduceat(column, starts)


def by_host(frame: Frame, order: Sequence[int] | NDArray[np.int64]) -> ByHost:
    """The ranks of `order` by host."""
    ranks = np.asarray(order, np.int64)
    of_rank = host_index(frame.ranks.host).of_rank[ranks]
    hosts, first, counts = np.unique(of_rank, return_index=True, return_counts=True)
    turn = np.argsort(first)
    position = np.zeros(int(hosts.max(initial=-1)) + 1, np.int64)
    position[hosts[turn]] = np.arange(len(hosts))
    starts = np.concatenate([[0], np.cumsum(counts[turn])])
    return ByHost(hosts[turn], ranks[np.argsort(position[of_rank], kind="stable")], starts)


def host_figures(context: RenderContext) -> tuple[HostFigures, ...]:
    """Of every host, worst first: lost and unreachable hosts, then by the worst of their ranks, then those
    that record locally."""
    frame = context.frame
    hosts = frame.hosts or _of_ranks(context)
    index = host_index(frame.ranks.host)
    place, size = context.attention
    worst: dict[str, tuple[int, int]] = {}
    order = np.lexsort((-size, place))
    for rank, host in zip(order.tolist(), index.of_rank[order].tolist(), strict=True):
        worst.setdefault(index.names[host], (int(place[rank]), -int(size[rank])))
    silent = {"lost": (-2, 0), "unreachable": (-1, 0)}

    def trouble(host: HostFigures) -> tuple[int, int, bool]:
        place, size = silent.get(host.state) or worst.get(host.name, (CALM, 0))
        return place, size, host.local_recording is None

    return tuple(sorted(hosts, key=trouble))


def figures_by_name(frame: Frame) -> dict[str, HostFigures]:
    """The figures of the agents, by host; none where there are none."""
    return {host.name: host for host in frame.hosts}


def host_troubles(frame: Frame) -> list[str]:
    """What is the matter with how many hosts: silent, recording by themselves, detail left out."""
    hosts = frame.hosts
    words = []
    for state in SILENT_STATES:
        count = sum(host.state == state for host in hosts)
        words += [f"{count:,} {state}"] if count else []
    local = sum(host.local_recording is not None for host in hosts)
    words += [f"{local:,} recording locally"] if local else []
    thinned = sum(host.thinned > 0 for host in hosts)
    return [*words, f"{thinned:,} thinned"] if thinned else words


def _of_ranks(context: RenderContext) -> tuple[HostFigures, ...]:
    """What the ranks tell of their hosts, where no agent has reported."""
    frame = context.frame
    ranks, index = frame.ranks, host_index(frame.ranks.host)
    clocks = {clock.host: clock for clock in frame.clocks}
    gpus = {gpu.rank: gpu for gpu in frame.gpus}
    found = []
    groups = by_host(frame, range(len(ranks.state)))
    for host, name in enumerate(index.names):
        own = groups.of(host)
        states = {ranks.state[rank] for rank in own}
        clock = clocks.get(name)
        busy = [gpus[rank].util_pct for rank in own if rank in gpus]
        loads = [load for load in busy if load is not None]
        found.append(
            HostFigures(
                name=name,
                state=_state(states),
                ranks=len(own),
                running=sum(ranks.state[rank] not in NOT_RUNNING for rank in own),
                age_ms=_least(ranks.age_ms[own]),
                worst_rank=_worst_rank(context, own),
                excess_ms=_largest(ranks.excess_ms[own]),
                step_ms=_median(ranks.step_ms[own]),
                clock_offset_ms=None if clock is None else clock.offset_ms,
                clock_bound_ms=None if clock is None else clock.bound_ms,
                clock_drift_ppm=None,
                clock_age_s=None,
                round_trip_ms=None,
                cpu_pct=None,
                cores=None,
                memory_used_bytes=None,
                memory_bytes=None,
                received_bytes_s=None,
                sent_bytes_s=None,
                gpus=sum(rank in gpus for rank in own),
                gpu_util_pct=float(np.mean(loads)) if loads else None,
                kept=0,
                local_recording=None,
                thinned=0,
                collector=False,
            )
        )
    return tuple(found)


def _state(states: set[RankStatus]) -> HostState:
    if states == {"unreachable"}:
        return "unreachable"
    if states == {"lost"}:
        return "lost"
    return "finished" if states and states <= ENDED else "live"


def _worst_rank(context: RenderContext, own: list[int]) -> int | None:
    flagged = [rank for rank in own if rank in context.stragglers]
    if flagged:
        return flagged[0]
    excess = context.frame.ranks.excess_ms[own]
    return None if np.isnan(excess).all() else own[int(np.nanargmax(excess))]


def _least(values: NDArray[np.float64]) -> float:
    return float("nan") if np.isnan(values).all() else float(np.nanmin(values))


def _largest(values: NDArray[np.float64]) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmax(values))


def _median(values: NDArray[np.float64]) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmedian(values))
