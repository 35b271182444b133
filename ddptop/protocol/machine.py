"""Readings of a rank's process, GPU and memory beside its steps. Of each only the newest one counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """What the agent of the host read of a rank's process. Only the newest one counts."""

    t_ns: int
    rss_bytes: int
    cpu_pct: float
    """Of one core, since the reading before."""
    throttled_pct: float | None = None
    """Share of the periods of its cgroup's CPU quota, since the reading before, in which that was used up.
    None: not known, or no quota."""
    runnable: int | None = None
    """Threads of the host that run or wait for a CPU; None: not known. Likewise below."""
    cores: int | None = None
    """Processors that the process may use."""
    major_faults_s: float | None = None
    """Pages that it had to wait for, read from disk (swap, files in memory), per second since the reading
    before."""
    blocked_pct: float | None = None
    """Share of the newest readings, one a second, that found its main thread in state D: it waits for a disk,
    a network file system or a device, and no signal wakes it. None before there are enough of them."""
    swapped_bytes: int | None = None
    """Of its memory what is in swap."""
    swap_ins_s: float | None = None
    """Pages that its host has read back from swap, per second since the reading before."""
    clock_pct: float | None = None
    """Clock of the processor on which its main thread ran, of the highest that this has: mean over the newest
    readings that found the thread running. None before there are enough of them, or where that is hidden."""
    heat_pct: float | None = None
    """Share of the time, since the reading before, in which this processor was throttled for its heat."""
    watcher_pct: float | None = None
    """CPU time of the process of ddptop that reads this, the agent or the collector, of one core, since its
    reading before."""
    first_core: int | None = None
    """The lowest processor that the process may use, where it may not use all of its host. The last field:
    a message of more than 15 values is not read in columns (`protocol/packed.py`)."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU. None: this GPU or its driver does not report it."""

    util_pct: float | None
    mem_bytes: int | None
    """Used by all processes."""
    mem_total_bytes: int | None
    temp_c: float | None
    power_w: float | None
    clock_mhz: int | None
    max_clock_mhz: int | None
    throttle: str | None
    """Why the clocks are throttled, as text; empty: they are not."""
    pcie_tx_bytes_s: int | None
    pcie_rx_bytes_s: int | None
    nvlink_tx_bytes: int | None
    """Since the driver was loaded."""
    nvlink_rx_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu(GpuReading):
    """What the agent of the host read of a rank's GPU. Only the newest one counts."""

    t_ns: int


@dataclass(frozen=True, slots=True)
class Memory:
    """A reading of torch's CUDA allocator in a rank. Only the newest one counts."""

    t_ns: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    """Most that was allocated at once."""
    retries: int
    """Allocations that succeeded only after cached blocks were given back."""
