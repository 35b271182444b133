"""The hosts of a frame: what its agent reports of each, its clock, and figures over its ranks."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.analysis.health.hosts import find_own_host, host_states, reports_of_hosts
from ddptop.analysis.health.links import lost_pct, names_of_addresses, worst_link
from ddptop.analysis.to_frame.tables import known_each
from ddptop.frames.frame import Clocks
from ddptop.frames.hosts import HostFigures
from ddptop.frames.phrases import blamed
from ddptop.frames.statistics import median
from ddptop.protocol.hosts import HostUsage
from ddptop.protocol.machine import Gpu
from ddptop.protocol.messages import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence, Set

    from ddptop.analysis.hosts import Hosts, KnownHost
    from ddptop.analysis.rank_columns import HelloColumns
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.figures import Ranks
    from ddptop.frames.frame import Straggler


FIELDS = tuple(field.name for field in fields(HostFigures))
COUNTS = ("kept", "thinned")
"""Fields of `HostUsage` that are 0 without it."""
USAGE = tuple(name for name in NAMES[HostUsage] if name in FIELDS and name not in COUNTS)
"""Fields of `HostUsage` that are None without it."""
AGENT = ("cores", "memory_bytes")
"""Fields of `Host`, where 0 stands for not known."""
CLOCK = ("offset_ms", "bound_ms", "drift_ppm", "age_s")
_usage_fields, _NO_USAGE = attrgetter(*USAGE, *COUNTS, "round_trip_ns"), (*[None] * len(USAGE), 0, 0, None)
_clock_fields, _NO_CLOCK = attrgetter(*CLOCK), (None,) * len(CLOCK)


def host_figures(
    state: RunState,
    ranks: Ranks,
    grave: Set[int],
    straggler: Straggler | None,
    clocks: Mapping[str, Clocks],
    now_ns: int,
) -> tuple[HostFigures, ...]:
    """One for each host, in order of the lowest rank; then those without ranks whose agents report.

    `grave`: ranks that are worse than the others of their hosts, whatever their excess.
    `clocks`: of the hosts with ranks, by `clocks_at`."""
    of_hosts, known_hosts = state.presence.hellos.of_hosts, state.hosts.known
    states, reported, own_host = host_states(state, now_ns), reports_of_hosts(state), find_own_host(state)
    if own_host is None and len(of_hosts) == 1 and not known_hosts:
        own_host = next(iter(of_hosts))
    spare = [name for name in known_hosts if name not in of_hosts and states[name] == "live"]
    clocks = {**clocks, **clocks_at(state, spare, now_ns)}
    names = [*of_hosts, *spare]
    if not names:
        return ()
    columns: dict[str, Sequence[Any]] = {
        "name": names,
        "state": [*map(states.__getitem__, names)],
        "age_ms": [max(0, now_ns - reported[name]) / 1e6 for name in names],
        "collector": [name == own_host for name in names],
        **_figures_over_ranks(state, ranks, grave, straggler, len(spare)),
        **_of_clocks([clocks[name] for name in names], own_host),
        **_of_agents([known_hosts.get(name) for name in names]),
        **_of_links(state.hosts, names),
    }
    return tuple(map(HostFigures, *(columns[name] for name in FIELDS)))


def _figures_over_ranks(
    state: RunState, ranks: Ranks, grave: Set[int], straggler: Straggler | None, n_spare: int
) -> dict[str, Sequence[Any]]:
    """Figures over the ranks of each host; `n_spare` hosts after these have none."""
    hellos = state.presence.hellos
    n_hosts = len(hellos.of_hosts)
    worst = _ranks_of_largest(ranks.excess_ms, hellos)
    if straggler is not None and blamed(straggler) and straggler.rank < state.world:
        worst[hellos.host_at[straggler.rank]] = straggler.rank
    for rank in sorted((rank for rank in grave if rank < state.world), key=_rank_sort_key(ranks.excess_ms)):
        worst[hellos.host_at[rank]] = rank
    excess_of_worst = np.where(worst < 0, np.nan, ranks.excess_ms[worst])
    of_gpus = hellos.host_at[hellos.gpus]
    util_pct = state.table.newest_values(Gpu, "util_pct")[hellos.gpus] if hellos.gpus.size else np.empty(0)
    busy = ~np.isnan(util_pct)
    n_busy = np.bincount(of_gpus[busy], minlength=n_hosts).tolist()
    total_pct = np.bincount(of_gpus[busy], util_pct[busy], n_hosts).tolist()
    mean_pct = [pct / n if n else None for pct, n in zip(total_pct, n_busy, strict=True)]
    none, zero = [None] * n_spare, [0] * n_spare
    return {
        "ranks": hellos.counts.tolist() + zero,
        "running": np.bincount(hellos.host_at[state.presence.running], minlength=n_hosts).tolist() + zero,
        "worst_rank": [None if rank < 0 else rank for rank in worst.tolist()] + none,
        "excess_ms": known_each(excess_of_worst) + none,
        "step_ms": known_each(_medians(ranks.step_ms, hellos)) + none,
        "gpus": np.bincount(of_gpus, minlength=n_hosts).tolist() + zero,
        "gpu_util_pct": mean_pct + none,
    }


def _of_clocks(clocks: Sequence[Clocks], own: str | None) -> dict[str, Sequence[Any]]:
    """Each host's clock, where it was compared with that of another host, the collector's."""
    rows = [
        _NO_CLOCK if host_clock.host == own or host_clock.offset_ms is None else _clock_fields(host_clock)
        for host_clock in clocks
    ]
    return dict(zip([f"clock_{name}" for name in CLOCK], zip(*rows, strict=True), strict=True))


def _of_agents(hosts: Sequence[KnownHost | None]) -> dict[str, Sequence[Any]]:
    """What the agent of each host reports of it; None: it has no agent."""
    agents = [None if known_host is None else known_host.agent for known_host in hosts]
    rows = [
        _NO_USAGE if known_host is None or known_host.usage is None else _usage_fields(known_host.usage)
        for known_host in hosts
    ]
    *usage, round_trip_ns = zip(*rows, strict=True)
    return {
        **dict(zip((*USAGE, *COUNTS), usage, strict=True)),
        **{name: [getattr(agent, name, None) or None for agent in agents] for name in AGENT},
        "round_trip_ms": [None if ns is None else ns / 1e6 for ns in round_trip_ns],
    }


def _of_links(hosts: Hosts, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The worst TCP link of each host's ranks."""
    peers = names_of_addresses(hosts)
    links = [worst_link(hosts, name, peers) for name in names] if peers else [None] * len(names)
    return {
        "link_peer": [None if link is None else link[0] for link in links],
        "link_round_trip_ms": [None if link is None else link[1].least_us / 1e3 for link in links],
        "link_lost_pct": [None if link is None else lost_pct(link[1]) for link in links],
    }


def _rank_sort_key(values: Column) -> Callable[[int], tuple[float, int]]:
    """A key that sorts ranks by their values, the largest last; among equals the lowest rank last."""
    sizes: list[float] = np.nan_to_num(values, nan=-np.inf).tolist()
    return lambda rank: (sizes[rank], -rank)


def _ranks_of_largest(values: Column, hellos: HelloColumns) -> Indices:
    """(hosts,) of each the rank with the largest value; -1: it is known of none. `values`: (ranks,)."""
    members = hellos.members
    if not members.size:
        return np.full(len(members), -1)
    of_hosts = values[members]
    place = np.where(np.isnan(of_hosts), -np.inf, of_hosts).argmax(axis=1)
    return np.where(np.isfinite(of_hosts).any(axis=1), members[np.arange(len(members)), place], -1)


def _medians(values: Column, hellos: HelloColumns) -> Column:
    """(hosts,) of each the median over its ranks; no finite number: not known. `values`: (ranks,)."""
    most = hellos.members.shape[1]
    is_rank = np.arange(most) < hellos.counts[:, None]
    return median(np.where(is_rank, values[hellos.members], np.asarray(np.nan, values.dtype)))


def clocks_at(state: RunState, hosts: Sequence[str], now_ns: int) -> dict[str, Clocks]:
    """The hosts' clocks compared with the collector's: their offsets and bounds now."""
    compared, newest = state.clocks.newest(hosts)
    t_ns, offset_ns, _, drift_ppb, round_trip_ns, arrived_ns = newest
    # Of a message that was kept while its host was cut off, the time of its arrival says little.
    age_s = np.maximum(now_ns - np.where(round_trip_ns, t_ns + offset_ns, arrived_ns), 0) / 1e9
    # The clock's own drift of the collector's time that has passed: the difference is below 1 ns a second.
    passed_ns = np.where((compared > 1) & (round_trip_ns > 0), age_s * 1e9, 0.0)
    bound_ms = state.clocks.of_hosts(hosts).bounds_at(t_ns + np.rint(passed_ns).astype(np.int64))
    offset_ms = (offset_ns + drift_ppb * passed_ns / 1e9) / 1e6
    columns = (offset_ms, bound_ms, drift_ppb / 1e3, age_s)
    rows = zip(hosts, compared.tolist(), *(column.tolist() for column in columns), strict=True)
    return {
        host: Clocks(host, offset, bound, drift, age if n_compared > 1 else None)
        if n_compared
        else Clocks(host, None, None)
        for host, n_compared, offset, bound, drift, age in rows
    }
