"""Made-up frames of runs over several hosts: healthy, with a straggler, hosts that are silent or lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.frames.frame import Alert, Clocks, GpuFacts, LoggedEvent, Straggler
from ddptop.frames.hosts import HostFigures, host_index, presumed_hosts
from ddptop.frames.numbers import known
from ddptop.frames.stall import gravest_ranks
from ddptop.render.hosts import NOT_RUNNING
from tests.tui.fake import NOW, live, straggler, waiting, with_ledger

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
    run = replace(frame.run, world_size=world)
    return with_figures(replace(frame, ranks=ranks, run=run, **changes))


def placed(frame: Frame, each: int = 8) -> Frame:
    """The same ranks, so many to a host, with the figures of hosts and GPUs as a run has them."""
    world, ranks = len(frame.ranks.state), frame.ranks
    on_gpus = np.array([device.startswith("cuda") for device in ranks.device], bool)
    ranks = replace(
        ranks,
        host=tuple(f"node{rank // each}" if ranks.host[rank] else "" for rank in range(world)),
        device=tuple(f"cuda:{r % each}" if on_gpus[r] else ranks.device[r] for r in range(world)),
        local_rank=np.where(np.isfinite(ranks.local_rank), np.arange(world) % float(each), np.nan),
    )
    frame = replace(frame, ranks=ranks, gpus=tuple(gpu_of(frame, int(r)) for r in np.flatnonzero(on_gpus)))
    if frame.stall is not None:
        positions = (replace(one, host=ranks.host[one.rank]) for one in frame.stall.positions)
        frame = replace(frame, stall=replace(frame.stall, positions=tuple(positions)))
    deaths = (
        replace(death, position=death.position and replace(death.position, host=ranks.host[death.rank]))
        for death in frame.deaths
    )
    frame = replace(frame, deaths=tuple(deaths))
    return with_figures(with_ledger(frame) if frame.ledger is None and frame.group.step else frame)


def gpu_of(frame: Frame, rank: int) -> GpuFacts:
    """A GPU waits for a slow rank at work, in a kernel of NCCL, and for a slow data loader idle."""
    stall, late = frame.stall, frame.straggler
    idle = stall is not None and rank in stall.ranks
    slow = late is not None and rank in (late.rank, *late.ranks)
    util_pct = 0.0 if idle else 54.0 if slow else 98.0 - rank % 3
    return GpuFacts(
        util_pct=util_pct, mem_bytes=int(61e9 + 1e8 * (rank % 4)), mem_total_bytes=int(81e9),
        temp_c=48.0 + util_pct // 6, power_w=118.0 + 5 * util_pct, clock_mhz=1_755, max_clock_mhz=1_980,
        throttle="", pcie_tx_bytes_s=None, pcie_rx_bytes_s=None, nvlink_tx_bytes=None, nvlink_rx_bytes=None,
        rank=rank, allocated_bytes=int(52e9), reserved_bytes=int(58e9), peak_bytes=int(57e9), retries=0,
    )  # fmt: skip


def with_figures(frame: Frame) -> Frame:
    """With the figures of every host of its ranks; of several also those that only agents know."""
    index = host_index(frame.ranks.host)
    hosts = [place for place, name in enumerate(index.names) if name]
    figures = tuple(
        figures_of(frame, index.names[host], place, index.ranks(host)) for place, host in enumerate(hosts)
    )
    if len(hosts) < 2:
        alone = dict.fromkeys(("cpu_pct", "cores", "memory_used_bytes", "memory_bytes"))
        figures = tuple(replace(one, **alone, received_bytes_s=None, sent_bytes_s=None) for one in figures)
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
    return replace(frame, hosts=figures, clocks=clocks, run=replace(frame.run, nodes=len(hosts)))


def figures_of(frame: Frame, name: str, host: int, ranks: list[int]) -> HostFigures:
    """Even figures of one host; the first one has the collector."""
    table, late, first = frame.ranks, frame.straggler, host == 0
    worst = max(ranks, key=lambda rank: np.nan_to_num(table.excess_ms[rank], nan=-np.inf))
    worst = late.rank if late is not None and late.rank in ranks else worst
    gravest = gravest_ranks(table.state, frame.stall, frame.deaths) & set(ranks)
    worst = max(gravest, key=lambda rank: float(table.excess_ms[rank]), default=worst)
    excess_ms, step_ms = float(table.excess_ms[worst]), float(np.median(table.step_ms[ranks]))
    running = sum(table.state[rank] not in NOT_RUNNING for rank in ranks)
    utils = [facts.util_pct for facts in frame.gpus if facts.rank in ranks and facts.util_pct is not None]
    devices = sum(table.device[rank].startswith("cuda") for rank in ranks)
    return HostFigures(
        name=name,
        state="live" if running else "finished",
        ranks=len(ranks),
        running=running,
        age_ms=120.0 + host % 7 if running else 11_000.0,
        worst_rank=worst if gravest or known(excess_ms) else None,
        excess_ms=excess_ms if known(excess_ms) else None,
        step_ms=step_ms if known(step_ms) else None,
        clock_offset_ms=None if first else -3.217 + 1.3 * (host % 64),
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
        gpus=devices,
        gpu_util_pct=float(np.mean(utils)) if utils else 97.0 - host % 3 if devices else None,
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
