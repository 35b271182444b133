"""A host itself: its processors, memory and network, and its clock compared with the collector's."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil

from ddptop.host.addresses import is_loopback, own_addresses
from ddptop.host.connections import LinkSampler
from ddptop.host.processes import boot_and_namespace
from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import NS, VERSION
from ddptop.protocol.messages import Clock
from ddptop.transport.clock_filter import ClockFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ddptop.host.exits import RankProcess
    from ddptop.transport.bundle_sender import ClockSample

PERIOD_NS = NS

COMPARE_NS = 2 * NS
"""Pause between two exchanges for the clocks alone. Each wakes up agent and collector."""

CLOCKS_AT_START = 8
"""A CLOCK is sent after each of the first exchanges, and then once a second."""


MOST_ADDRESSES = 16
"""A host with many containers has an interface for each."""


def describe_host(name: str, run_id: str, session: int, clocks: Callable[[], tuple[int, int]]) -> Host:
    """The HOST message of this process. `clocks` reads CLOCK_MONOTONIC and CLOCK_REALTIME, in ns."""
    monotonic_ns, unix_ns = clocks()
    return Host(
        version=VERSION,
        run_id=run_id,
        session=session,
        name=name,
        pid=os.getpid(),
        monotonic_ns=monotonic_ns,
        unix_ns=unix_ns,
        cores=_count_cores(),
        memory_bytes=_read_memory()[1],
        boot_id=boot_and_namespace(),
        addresses=tuple(
            # A loopback address means another machine on each host.
            [address for address in own_addresses(also_down=True) if not is_loopback(address)][
                :MOST_ADDRESSES
            ]
        ),
    )


class HostSampler:
    """Reads the host's counters; rates are those since the reading before, so the first gives none."""

    def __init__(self, processes: Callable[[], Iterable[RankProcess]]) -> None:
        """`processes`: those of the ranks that run now."""
        self._processes = processes
        self._links = LinkSampler()
        self._before_ns: int | None = None
        self._counters: tuple[int, int] | None = None

    def read_usage(self, now_ns: int) -> HostUsage:
        """Read now. Never raises. What only an agent knows is unknown, or 0: its link, and what it keeps."""
        # Both are replaced before anything can fail, so that the next reading has a base in any case.
        before_ns, self._before_ns = self._before_ns, now_ns
        before, self._counters = self._counters, _network_counters()
        usage = HostUsage(
            t_ns=now_ns,
            cpu_pct=_read_cpu_pct(),
            memory_used_bytes=_read_memory()[0],
            received_bytes_s=None,
            sent_bytes_s=None,
            round_trip_ns=None,
            kept=0,
            local_recording=None,
            thinned=0,
            links=self._links.sample_links([process.pid for process in self._processes()], now_ns),
        )
        # The first reading has no base, and psutil's CPU counter says 0 at its first call.
        if before_ns is None or now_ns <= before_ns:
            return replace(usage, cpu_pct=None)
        if before is None or self._counters is None:
            return usage
        seconds = (now_ns - before_ns) / NS
        received, sent = (
            # Counters begin anew where an interface was removed and added: no negative rate.
            max(0, new - old) / seconds
            for new, old in zip(self._counters, before, strict=True)
        )
        return replace(usage, received_bytes_s=received, sent_bytes_s=sent)


class HostClock:
    """Compares the clock of a host with that of the collector."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._filter = ClockFilter()
        self._exchanges = 0
        self._due_ns = self._compare_ns = 0
        self.round_trip_ns: int | None = None
        """Round trip of the newest clock exchange."""

    def is_due(self, now_ns: int) -> bool:
        """Whether the clocks are to be compared by themselves now; then not again for COMPARE_NS."""
        if now_ns < self._compare_ns:
            return False
        # Without a pause at first: the clocks of a host are known after these exchanges.
        self._compare_ns = now_ns + (0 if self.is_new else COMPARE_NS)
        return True

    @property
    def is_new(self) -> bool:
        """Whether there were so few exchanges that each of them counts."""
        return self._exchanges <= CLOCKS_AT_START

    def note_exchanges(self, samples: Sequence[ClockSample], now_ns: int) -> Clock | None:
        """Take these exchanges; returns the CLOCK that is to be sent, None where none is due."""
        for sample in samples:
            self._filter.add_exchange(*sample)
            self._exchanges += 1
            sent_ns, received_ns, replied_ns, back_ns = sample
            # Without the time for which the collector held the reply back.
            self.round_trip_ns = max(0, back_ns - sent_ns - (replied_ns - received_ns))
        if not self.is_new and now_ns < self._due_ns:
            return None
        estimate = self._filter.estimate_offset(now_ns)
        if estimate is None:
            return None
        self._due_ns = now_ns + PERIOD_NS
        return Clock(
            t_ns=estimate.t_ns,
            host=self._host,
            offset_ns=estimate.offset_ns,
            bound_ns=estimate.bound_ns,
            drift_ppb=estimate.drift_ppb,
            round_trip_ns=estimate.round_trip_ns,
        )


def _count_cores() -> int:
    """Processors that this process, and so the run, may use."""
    if hasattr(os, "sched_getaffinity"):
        # A run in a container or under Slurm may use fewer processors than the machine has.
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _read_cpu_pct() -> float | None:
    try:
        return float(psutil.cpu_percent(None))
    except (psutil.Error, OSError):
        return None


def _read_memory() -> tuple[int | None, int]:
    """Bytes that are used, and that there are; (None, 0) where that cannot be read."""
    try:
        memory = psutil.virtual_memory()
    except (psutil.Error, OSError):
        return None, 0
    # `available`, not `free`: the page cache is given back when a program needs it.
    return int(memory.total - memory.available), int(memory.total)


def _network_counters() -> tuple[int, int] | None:
    """Bytes received and sent since boot, through all interfaces but the loopback."""
    try:
        counters = psutil.net_io_counters(pernic=True)
    except (psutil.Error, OSError):
        return None
    counters_by_interface = [counter for name, counter in counters.items() if name != "lo"]
    return sum(counter.bytes_recv for counter in counters_by_interface), sum(
        counter.bytes_sent for counter in counters_by_interface
    )
