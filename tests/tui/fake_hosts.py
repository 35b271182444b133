"""Made-up frames of runs over several hosts: healthy, with a straggler, hosts that are silent or lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.frames.frame import Alert, Clocks, LoggedEvent, Straggler
from ddptop.frames.hosts import HostFigures, presumed_hosts
from tests.tui.fake import NOW, live, straggler, waiting

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

SLOW = {(3, 4): 6, (64, 8): 137, (512, 8): 2051}
"""By hosts and ranks of a host: the rank whose data comes late."""


def names_of(hosts: int) -> list[str]:
    """Names as a cluster gives them."""
    return [f"gpu-{host:03}.cluster.local" for host in range(hosts)]


def spread(frame: Frame, hosts: int, **changes: Any) -> Frame:
    """The same ranks on so many hosts, with figures of every host's agent."""
    world = len(frame.ranks.state)
    each = world // hosts
    names = names_of(hosts)
    ranks = replace(
        frame.ranks,
        host=tuple(names[rank // each] for rank in range(world)),
        device=tuple(f"cuda:{rank % each}" for rank in range(world)),
        local_rank=np.arange(world) % float(each),
    )
    frame = replace(frame, ranks=ranks, run=replace(frame.run, nodes=hosts, world_size=world), **changes)
    figures = tuple(figures_of(frame, names, host, each) for host in range(hosts))
    clocks = tuple(
        Clocks(
            one.name,
            one.clock_offset_ms or 0.0,
            one.clock_bound_ms or 0.0,
            one.clock_drift_ppm,
            one.clock_age_s,
        )
        for one in figures
    )
    return replace(frame, hosts=figures, clocks=clocks)


def figures_of(frame: Frame, names: list[str], host: int, each: int) -> HostFigures:
    """Even figures of one host; the first one has the collector."""
    own = slice(host * each, host * each + each)
    excess = frame.ranks.excess_ms[own]
    worst = int(np.argmax(excess))
    first = host == 0
    return HostFigures(
        name=names[host],
        state="live",
        ranks=each,
        running=each,
        age_ms=120.0 + host % 7,
        worst_rank=host * each + worst,
        excess_ms=float(excess[worst]),
        step_ms=float(np.median(frame.ranks.step_ms[own])),
        clock_offset_ms=None if first else -3.217 + 1.3 * host,
        clock_bound_ms=None if first else 0.042 + 0.001 * (host % 5),
        clock_drift_ppm=None if first else 12.4 - host % 9,
        clock_age_s=None if first else 0.8,
        round_trip_ms=None if first else 0.081 + 0.002 * (host % 5),
        cpu_pct=71.0 + host % 4,
        cores=96,
        memory_used_bytes=412_000_000_000 + host * 1_000_000,
        memory_bytes=1_081_000_000_000,
        received_bytes_s=9.2e9 + host * 1e6,
        sent_bytes_s=9.1e9 + host * 1e6,
        gpus=each,
        gpu_util_pct=97.0 - host % 3,
        kept=0,
        local_recording=None,
        thinned=0,
        collector=first,
    )


@cache
def slow_rank(hosts: int, each: int) -> Frame:
    """One rank of one host loads its data 20 ms too slowly; its host is not the first."""
    slow = SLOW[hosts, each]
    frame = straggler(hosts * each)
    world = hosts * each
    order = np.arange(world)
    order[[1, slow]] = slow, 1  # the late figures of rank 1 go to the slow rank
    ranks = replace(
        frame.ranks,
        **{
            name: column[order]
            for name in frame.ranks.__dataclass_fields__
            if isinstance(column := getattr(frame.ranks, name), np.ndarray)
            and name not in ("pid", "local_rank")
        },
    )
    late = Straggler(
        *(slow, "persistent", 20.3, 0.1, 20.2, 43.2, 96.0, "data", {"data": 20.3}),
        place="data",
        basis="every_step",
    )
    message = f"rank {slow} became slow: data loading (step 11,902)"
    return spread(
        replace(
            frame,
            ranks=ranks,
            buckets=tuple(replace(bucket, last_arriver=slow) for bucket in frame.buckets),
            straggler=late,
            alerts=(Alert("straggler", "warning", slow, 11_902, NOW - 27, message),),
            events=(frame.events[0], LoggedEvent(NOW - 27, "straggler", "warning", slow, 11_902, message)),
        ),
        hosts,
    )


@cache
def healthy(hosts: int, each: int) -> Frame:
    """Even ranks."""
    return spread(live(hosts * each), hosts)


@cache
def silent(hosts: int, each: int) -> Frame:
    """Beside the straggler one host is unreachable, one lost, one records locally, one thinned."""
    frame = slow_rank(hosts, each)
    found = list(frame.hosts)
    unreachable, lost = hosts - 1, 0 if hosts < 4 else hosts - 2
    found[unreachable] = replace(found[unreachable], state="unreachable", age_ms=4_300.0, kept=312)
    frame = with_state(frame, unreachable, each, "unreachable", 4_300.0)
    if hosts > 3:
        found[lost] = replace(found[lost], state="lost", age_ms=17_000.0, running=0)
        frame = with_state(frame, lost, each, "lost", 17_000.0)
        path = "/root/.local/state/ddptop/train-k7qf-gpu-005.ddptop"
        found[5] = replace(found[5], local_recording=path, kept=4_096)
        found[6] = replace(found[6], thinned=1_204, clock_bound_ms=6.2)
        clocks = list(frame.clocks)
        clocks[6] = replace(clocks[6], bound_ms=6.2)
        frame = replace(frame, clocks=tuple(clocks))
    name = names_of(hosts)[unreachable]
    message = f"host {name} is unreachable: last message 4 s ago, at step 12,479"
    event = LoggedEvent(NOW - 1, "unreachable", "warning", None, 12_479, message)
    return replace(frame, hosts=tuple(found), events=(*frame.events, event))


def with_state(frame: Frame, host: int, each: int, state: Any, age_ms: float) -> Frame:
    """The ranks of a host in another state, a step behind."""
    own = range(host * each, host * each + each)
    states, age, step = list(frame.ranks.state), frame.ranks.age_ms.copy(), frame.ranks.step.copy()
    for rank in own:
        states[rank], age[rank], step[rank] = state, age_ms, 12_479.0
    return replace(frame, ranks=replace(frame.ranks, state=tuple(states), age_ms=age, step=step))


def gathering() -> Frame:
    """Of 64 ranks on 8 hosts five have not reported: two of gpu-002 and three of gpu-005. The others wait."""
    missing = (18, 23, 40, 41, 47)
    frame = spread(waiting(64), 8)
    states: list[Any] = ["waiting" if rank in missing else "stale" for rank in range(64)]
    local = frame.ranks.local_rank.copy()
    local[list(missing)] = np.nan
    names = tuple("" if rank in missing else host for rank, host in enumerate(frame.ranks.host))
    ranks = replace(
        frame.ranks,
        state=tuple(states),
        host=presumed_hosts(names, local),
        local_rank=local,
        age_ms=np.full(64, 5_000.0),
    )
    few = [
        replace(host, running=sum(states[rank] != "waiting" for rank in range(8 * at, 8 * at + 8)))
        for at, host in enumerate(frame.hosts)
    ]
    return replace(frame, ranks=ranks, hosts=tuple(few))
