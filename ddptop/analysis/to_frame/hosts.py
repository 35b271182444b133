"""The hosts of a frame: what its agent reports of each, its clock, and figures over its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.health.hosts import find_own_host, heard_of_hosts, host_states, ranks_of_hosts
from ddptop.analysis.steps.medians import known
from ddptop.frames.frame import Clocks
from ddptop.frames.hosts import HostFigures

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Ranks, Straggler
    from ddptop.protocol.vocabulary import HostState


def host_figures(
    state: RunState, ranks: Ranks, straggler: Straggler | None, now_ns: int
) -> tuple[HostFigures, ...]:
    """One for each host, in order of the lowest rank; then those without ranks whose agents report."""
    of_hosts, states = ranks_of_hosts(state), host_states(state, now_ns)
    heard, own = heard_of_hosts(state), find_own_host(state)
    if own is None and len(of_hosts) == 1 and not state.hosts.known:
        own = next(iter(of_hosts))
    spare = [name for name in state.hosts.known if name not in of_hosts and states[name] == "live"]
    flagged = None if straggler is None else straggler.rank
    return tuple(
        _figures(state, name, of_hosts.get(name, []), ranks, flagged, states[name], heard[name], own, now_ns)
        for name in (*of_hosts, *spare)
    )


def _figures(
    state: RunState,
    name: str,
    mine: list[int],
    ranks: Ranks,
    flagged: int | None,
    host_state: HostState,
    heard_ns: int,
    own: str | None,
    now_ns: int,
) -> HostFigures:
    found = state.hosts.known.get(name)
    agent, usage = (None, None) if found is None else (found.agent, found.usage)
    clock = clock_of(state, name, now_ns)
    compared = name != own and clock.offset_ms is not None
    worst = flagged if flagged in mine else _largest(ranks.excess_ms, mine)
    there = [state.ranks[rank] for rank in mine]
    gpus = {one.hello.device: one.gpu for one in there if one.hello and one.hello.device.startswith("cuda")}
    busy = [gpu.util_pct for gpu in gpus.values() if gpu is not None and gpu.util_pct is not None]
    steps = ranks.step_ms[mine]
    round_trip_ns = None if usage is None else usage.round_trip_ns
    return HostFigures(
        name=name,
        state=host_state,
        ranks=len(mine),
        running=sum(one.running for one in there),
        age_ms=max(0, now_ns - heard_ns) / 1e6,
        worst_rank=worst,
        excess_ms=None if worst is None else known(ranks.excess_ms[worst]),
        step_ms=known(np.nanmedian(steps)) if np.isfinite(steps).any() else None,
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
        gpus=len(gpus),
        gpu_util_pct=sum(busy) / len(busy) if busy else None,
        kept=0 if usage is None else usage.kept,
        local_recording=None if usage is None else usage.local_recording,
        thinned=0 if usage is None else usage.thinned,
        collector=name == own,
    )


def _largest(excess_ms: Column, mine: list[int]) -> int | None:
    """The rank with the largest excess; None: it is known of none."""
    values = excess_ms[mine]
    return mine[int(np.nanargmax(values))] if np.isfinite(values).any() else None


def clock_of(state: RunState, host: str, now_ns: int) -> Clocks:
    """A host's clock compared with the collector's: its offset and bound now."""
    clock = state.clocks.of(host)
    if clock is None:
        return Clocks(host, None, None)
    age_s = state.clocks.age_s(host, now_ns)
    # The clock's own drift of the collector's time that has passed: the difference is below 1 ns a second.
    passed_ns = (age_s or 0.0) * 1e9 if clock.round_trip_ns else 0.0
    t_ns = np.array([clock.t_ns + round(passed_ns)], np.int64)
    bound_ms = float(state.clocks.of_hosts((host,)).bounds_at(t_ns)[0])
    offset_ms = (clock.offset_ns + clock.drift_ppb * passed_ns / 1e9) / 1e6
    return Clocks(host, offset_ms, bound_ms, clock.drift_ppb / 1e3, age_s)
