"""Readings of a rank's process, GPU, memory and disk beside its steps. Of each only the newest one counts."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop.protocol.ranges import Count, Nanoseconds, Quantity, Size, Text


@dataclass(frozen=True, slots=True)
class Usage:
    """What the agent of the host read of a rank's process. Only the newest one counts."""

    t_ns: Nanoseconds
    rss_bytes: Size
    cpu_pct: Quantity
    """CPU time in % of one core, since the reading before."""
    throttled_pct: Quantity | None = None
    """Share of the periods of its cgroup's CPU quota, since the reading before, in which that was used up.
    None: not known, or no quota."""
    runnable: Count | None = None
    """Threads of the host that run or wait for a CPU; None: not known. Likewise below."""
    cores: Count | None = None
    """Processors that the process may use."""
    major_faults_s: Quantity | None = None
    """Pages that it had to wait for, read from disk (swap, files in memory), per second since the reading
    before."""
    blocked_pct: Quantity | None = None
    """Share of the newest readings, one a second, that found its main thread in state D: it waits for a disk,
    a network file system or a device, and no signal wakes it. None before there are enough of them."""
    swapped_bytes: Size | None = None
    """The part of its memory that is in swap."""
    swap_ins_s: Quantity | None = None
    """Pages that its host has read back from swap, per second since the reading before."""
    clock_pct: Quantity | None = None
    """Clock of the processor on which its main thread ran, of the highest that this has: mean over the newest
    readings that found the thread running. None before there are enough of them, or where that is hidden."""
    heat_pct: Quantity | None = None
    """Share of the time, since the reading before, in which this processor was throttled for its heat."""
    watcher_pct: Quantity | None = None
    """CPU time of the process of ddptop that reads this, the agent or the collector, of one core, since its
    reading before."""
    first_core: Count | None = None
    """The lowest processor that the process may use, where it may not use all of its host."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One reading of a GPU. None: this GPU or its driver does not report it."""

    util_pct: Quantity | None
    mem_bytes: Size | None
    """Used by all processes."""
    mem_total_bytes: Size | None
    temp_c: Quantity | None
    power_w: Quantity | None
    clock_mhz: Count | None
    max_clock_mhz: Count | None
    throttle: Text | None
    """Why the clocks are throttled, as text; empty: they are not."""
    pcie_tx_bytes_s: Size | None
    pcie_rx_bytes_s: Size | None
    nvlink_tx_bytes: Count | None
    """Since the driver was loaded."""
    nvlink_rx_bytes: Count | None


@dataclass(frozen=True, slots=True)
class Gpu(GpuReading):
    """What the agent of the host read of a rank's GPU. Only the newest one counts."""

    t_ns: Nanoseconds


@dataclass(frozen=True, slots=True)
class Memory:
    """A reading of torch's CUDA allocator in a rank. Only the newest one counts."""

    t_ns: Nanoseconds
    allocated_bytes: Size
    reserved_bytes: Size
    peak_bytes: Size
    """Most that was allocated at once."""
    retries: Count
    """Allocations that succeeded only after cached blocks were given back."""


@dataclass(frozen=True, slots=True)
class OwnCost:
    """What ddptop takes of a rank, as that rank has measured it. Only the newest one counts."""

    t_ns: Nanoseconds
    every_step_pct: Quantity
    """CPU time that every step pays, also where the recorder stands aside, as a share of the step, in %: of
    the publisher thread, and at the end of each step."""


@dataclass(frozen=True, slots=True)
class Disk:
    """What a rank has read of its own process. Only the newest one counts."""

    t_ns: Nanoseconds
    step_read_bytes: Size
    """Read from disk per step, since the reading before."""
