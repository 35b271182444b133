"""The hosts of a frame: what its agent reports of each, its clock, and figures over its ranks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.health.hosts import find_own_host, host_states, reports_of_hosts
from ddptop.analysis.health.links import lost_pct, names_of_addresses, worst_link
from ddptop.analysis.steps.medians import known
from ddptop.frames.frame import Clocks
from ddptop.frames.hosts import HostFigures
from ddptop.frames.phrases import blamed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.rank_columns import HelloColumns
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Ranks, Straggler
    from ddptop.protocol.vocabulary import HostState


def host_figures(
    state: RunState, ranks: Ranks, straggler: Straggler | None, clocks: Mapping[str, Clocks], now_ns: int
) -> tuple[HostFigures, ...]:
    """One for each host, in order of the lowest rank; then those without ranks whose agents report.

    `clocks`: of the hosts with ranks, by `clocks_at`."""
    hellos, states = state.hellos, host_states(state, now_ns)
    of_hosts, reported, own = hellos.of_hosts, reports_of_hosts(state), find_own_host(state)
    if own is None and len(of_hosts) == 1 and not state.hosts.known:
        own = next(iter(of_hosts))
    spare = [name for name in state.hosts.known if name not in of_hosts and states[name] == "live"]
    clocks = {**clocks, **clocks_at(state, spare, now_ns)}
    worst = dict(zip(of_hosts, _largest(ranks.excess_ms, hellos), strict=True))
    if straggler is not None and blamed(straggler) and straggler.rank < len(state.ranks):
        worst[state.ranks[straggler.rank].host] = straggler.rank
    running = np.bincount(hellos.host_at[state.reports.running], minlength=len(of_hosts)).tolist()
    steps = _medians(ranks.step_ms, hellos)
    peers = names_of_addresses(state.hosts)
    util_pct = state.reports.gpu("util_pct").tolist() if any(hellos.gpus.values()) else []
    of_ranks = dict(zip(of_hosts, zip(hellos.counts.tolist(), running, steps, strict=True), strict=True))
    return tuple(
        _figures(
            state,
            name,
            of_ranks.get(name, (0, 0, None)),
            [util_pct[rank] for rank in hellos.gpus.get(name, {}).values()],
            worst.get(name),
            ranks.excess_ms,
            clocks[name],
            states[name],
            reported[name],
            own,
            peers,
            now_ns,
        )
        for name in (*of_hosts, *spare)
    )


def _figures(
    state: RunState,
    name: str,
    of_ranks: tuple[int, int, float | None],
    util_pct: Sequence[float],
    worst: int | None,
    excess_ms: Column,
    clock: Clocks,
    host_state: HostState,
    heard_ns: int,
    own: str | None,
    peers: Mapping[str, str],
    now_ns: int,
) -> HostFigures:
    """`of_ranks`: how many ranks it has, how many of them run, and the median of their step time.
    `util_pct`: of each of its GPUs; NaN: not known. `peers`: the hosts by the addresses of their links."""
    n_ranks, n_running, step_ms = of_ranks
    found = state.hosts.known.get(name)
    agent, usage = (None, None) if found is None else (found.agent, found.usage)
    compared = name != own and clock.offset_ms is not None
    busy = [value for value in util_pct if not math.isnan(value)]
    link = worst_link(state.hosts, name, peers)
    round_trip_ns = None if usage is None else usage.round_trip_ns
    return HostFigures(
        name=name,
        state=host_state,
        ranks=n_ranks,
        running=n_running,
        age_ms=max(0, now_ns - heard_ns) / 1e6,
        worst_rank=worst,
        excess_ms=None if worst is None else known(excess_ms[worst]),
        step_ms=step_ms,
        clock_offset_ms=clock.offset_ms if compared else None,
        clock_bound_ms=clock.bound_ms if compared else None,
        clock_drift_ppm=clock.drift_ppm if compared else None,
        clock_age_s=clock.age_s if compared else None,
        round_trip_ms=None if round_trip_ns is None else round_trip_ns / 1e6,
        cpu_pct=None if usage is None else usage.cpu_pct,
        cores=agent.cores if agent is not None and agent.cores else None,
        memory_used_bytes=None if usage is None else usage.memory_used_bytes,
        memory_bytes=agent.memory_bytes if agent is not None and agent.memory_bytes else None,
        received_bytes_s=None if usage is None else usage.received_bytes_s,
        sent_bytes_s=None if usage is None else usage.sent_bytes_s,
        gpus=len(util_pct),
        gpu_util_pct=sum(busy) / len(busy) if busy else None,
        kept=0 if usage is None else usage.kept,
        local_recording=None if usage is None else usage.local_recording,
        thinned=0 if usage is None else usage.thinned,
        collector=name == own,
        link_peer=None if link is None else link[0],
        link_round_trip_ms=None if link is None else link[1].least_us / 1e3,
        link_lost_pct=None if link is None else lost_pct(link[1]),
    )


def _largest(excess_ms: Column, hellos: HelloColumns) -> list[int | None]:
    """Of each host the rank with the largest excess; None: it is known of none."""
    members = hellos.members
    if not members.size:
        return [None] * len(members)
    values = excess_ms[members]
    place = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
    found = members[np.arange(len(members)), place].tolist()
    known_of = np.any(np.isfinite(values), axis=1).tolist()
    return [rank if is_known else None for rank, is_known in zip(found, known_of, strict=True)]


def _medians(step_ms: Column, hellos: HelloColumns) -> list[float | None]:
    """Of each host the median over its ranks of their step time; None: not known."""
    most = hellos.members.shape[1]
    there = np.arange(most) < hellos.counts[:, None]
    values = np.where(there, step_ms[hellos.members], np.asarray(np.nan, step_ms.dtype))
    known_of = np.any(np.isfinite(values), axis=1).tolist()
    ordered = np.sort(values, axis=1)
    count = (~np.isnan(ordered)).sum(axis=1)
    at = np.arange(len(values))
    # As np.nanmedian: in the type of the column, which is narrower than a double.
    middle = (ordered[at, np.maximum(count - 1, 0) // 2] + ordered[at, np.minimum(count // 2, most - 1)]) / 2
    return [known(one) if is_known else None for one, is_known in zip(middle, known_of, strict=True)]


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
    each = zip(hosts, compared.tolist(), *(column.tolist() for column in columns), strict=True)
    return {
        host: Clocks(host, offset, bound, drift, age if at > 1 else None) if at else Clocks(host, None, None)
        for host, at, offset, bound, drift, age in each
    }
