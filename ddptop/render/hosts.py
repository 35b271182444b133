"""Ranks by host: who needs attention first, and the figures of hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.conditions import SILENT_STATES
from ddptop.frames.hosts import HostFigures, host_index
from ddptop.frames.numbers import RATIO, counted, fixed
from ddptop.render.context import CALM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.frame import Frame
    from ddptop.render.context import RenderContext

NOT_RUNNING = frozenset(("lost", "failed", "finished", "waiting"))
"""States of a rank whose process does not run, or has not reported yet."""


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

    def of(self, host: int) -> list[int]:
        """The ranks of the host `hosts[at]`."""
        ranks: list[int] = self.ranks[self.starts[host] : self.starts[host + 1]].tolist()
        return ranks

    def least_and_largest(self, values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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


def figures_by_trouble(context: RenderContext) -> tuple[HostFigures, ...]:
    """The figures of every host. Silent hosts come first, then those with the worst ranks."""
    frame = context.frame
    index = host_index(frame.ranks.host)
    place, size = context.attention
    worst: dict[str, tuple[int, int]] = {}
    order = np.lexsort((-size, place))
    for rank, host in zip(order.tolist(), index.of_rank[order].tolist(), strict=True):
        worst.setdefault(index.names[host], (int(place[rank]), -int(size[rank])))
    silent = {state: (-1 - place, 0) for place, state in enumerate(SILENT_STATES)}

    def sort_key(host: HostFigures) -> tuple[int, int, bool]:
        place, size = silent.get(host.state) or worst.get(host.name, (CALM, 0))
        return place, size, host.local_recording is None

    return tuple(sorted(frame.hosts, key=sort_key))


def inexact_clock(frame: Frame) -> str:
    """` (gpu-006: ±6.20 ms)`: the host whose clock is known worst; empty where no bound is known."""
    unknown = [clock.host for clock in frame.clocks if clock.offset_ms is None]
    if unknown:
        and_others = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        return f" ({unknown[0]}{and_others}: not compared yet)"
    bounds = [(clock.bound_ms, clock.host) for clock in frame.clocks if clock.bound_ms]
    return f" ({max(bounds)[1]}: ±{fixed(max(bounds)[0], RATIO)} ms)" if bounds else ""


def rank_spans(ranks: list[int]) -> str:
    """`0-7`, `0 2 5`."""
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return " ".join(map(str, ranks))


def figures_by_name(frame: Frame) -> dict[str, HostFigures]:
    """The figures of the agents, by host; none where there are none."""
    return {host.name: host for host in frame.hosts}


def host_troubles(frame: Frame) -> list[str]:
    """How many hosts are silent, record by themselves, or leave detail out, in words."""
    counts: dict[str, int] = {
        state: sum(host.state == state for host in frame.hosts) for state in SILENT_STATES
    }
    counts["recording locally"] = sum(host.local_recording is not None for host in frame.hosts)
    counts["leaving out bucket detail"] = sum(host.thinned > 0 for host in frame.hosts)
    troubles = [(count, what) for what, count in counts.items() if count]
    # The unit once: room is scarce.
    return [
        f"{f'{count:,}' if index else counted(count, 'host')} {what}"
        for index, (count, what) in enumerate(troubles)
    ]
