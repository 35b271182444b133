"""Ranks as a table of hosts by local ranks, folded where hosts are many: for heat map and overview."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.columns import distinct_texts, fold, keep_newest
from ddptop.frames.conditions import PROBLEM_STATES, SILENT_STATES
from ddptop.frames.hosts import host_index
from ddptop.render.line import worst_sign
from ddptop.render.text import clean_text, text_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.render.line import Role
    from ddptop.tui.scene import Scene

LONGEST_NAME = 14
"""Terminal cells of the name of a host."""


class HostTable(NamedTuple):
    """Which rank is where."""

    names: tuple[str, ...]
    """Names of the hosts, in order of their first ranks."""
    ranks: NDArray[np.int64]
    """(hosts, local ranks) the rank; -1: there is none."""
    longest: int
    """Terminal cells of the longest name."""


def table_by_host(scene: Scene) -> HostTable:
    """The ranks of the scene by host. The array is shared: it is not to be changed."""
    ranks = scene.frame.ranks
    places = np.where(np.isnan(ranks.local_rank), -1, ranks.local_rank).astype(np.int64)
    return _make_table(ranks.host, places.tobytes(), scene.ascii_only)


@keep_newest
def _make_table(host_of_rank: tuple[str, ...], local_ranks: bytes, ascii_only: bool) -> HostTable:
    """To place thousands of ranks takes as long as the rest of a picture, and they stay where they are."""
    places = np.frombuffer(local_ranks, np.int64)
    hosts: dict[str, list[int]] = {}
    for rank, name in enumerate(host_of_rank):
        hosts.setdefault(name, []).append(rank)
    widest = max([int(places.max(initial=0)) + 1, *map(len, hosts.values())]) if hosts else 0
    if widest > len(places) or any(  # a rank cannot have more ranks before it on its host than there are
        len({int(places[rank]) for rank in host_ranks}) < len(host_ranks) for host_ranks in hosts.values()
    ):
        widest = max(map(len, hosts.values()))  # not reported, or two jobs on a host: in order of rank
        places = np.full(len(places), -1)
    table: NDArray[np.int64] = np.full((len(hosts), max(1, widest)), -1, np.int64)
    for row, host_ranks in enumerate(hosts.values()):
        for index, rank in enumerate(host_ranks):
            table[row, places[rank] if places[rank] >= 0 else index] = rank
    table.setflags(write=False)
    names = tuple(clean_text(name, ascii_only) or "?" for name in host_index(host_of_rank).short)
    return HostTable(names, table, max(map(text_width, names), default=0))


def fold_cells(
    values: NDArray[np.float64], table: NDArray[np.int64], edges: NDArray[np.int64], down: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The worst value of every cell, and its rank: the first one where no value is known, -1 without a
    rank."""
    by_place = np.where(table >= 0, values[np.maximum(table, 0)], np.nan)
    value, who = fold(by_place, edges, worst_is_least=down)
    columns = np.arange(table.shape[1])[None]
    rank = table[np.where(np.isnan(who), 0, who).astype(np.int64), columns]
    first = np.maximum.reduceat(table, edges[:-1], axis=0)
    return value, np.where(np.isnan(who), first, rank)


def find_row_signs(scene: Scene, first: int, edges: NDArray[np.int64]) -> list[tuple[str, Role]]:
    """The sign of the worst state of the hosts and ranks of each row; blank while all are well."""
    index, states = host_index(scene.frame.ranks.host), scene.frame.ranks.state
    unwell: dict[int, list[str]] = {}
    for rank, state in enumerate(states) if not distinct_texts(states).isdisjoint(PROBLEM_STATES) else ():
        if state in PROBLEM_STATES:
            unwell.setdefault(int(index.of_rank[rank]), []).append(scene.state_word(rank))
    silent = {host.name: host.state for host in scene.frame.hosts if host.state in SILENT_STATES}
    for host, name in enumerate(index.names) if silent else ():
        if name in silent:
            unwell.setdefault(host, []).append(silent[name])
    if not unwell:
        return [worst_sign([])] * (len(edges) - 1)
    hosts = [range(first + int(edges[row]), first + int(edges[row + 1])) for row in range(len(edges) - 1)]
    return [worst_sign([state for host in row for state in unwell.get(host, ())]) for row in hosts]
