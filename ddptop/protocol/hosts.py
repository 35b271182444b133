"""Messages of a host's agent: the host itself, its usage, and reports about the processes of its ranks.

An agent has a session of its own, as a rank has, with rank -1. `Host` introduces it: first on every
connection, unnumbered. `HostUsage` is unnumbered too (only the newest one counts); `About` is numbered and
acked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddptop.protocol.ranges import (
    Count,
    Identifier,
    MostItems,
    Nanoseconds,
    ProcessId,
    Quantity,
    RankNumber,
    Size,
    Text,
    Texts,
    Version,
)

HOST_END = "host_end"
"""Kind of the EVENT with which an agent reports its end: the collector has acked everything before it."""


@dataclass(frozen=True, slots=True)
class Host:
    """An agent introduces its host."""

    version: Version
    run_id: Text
    session: Identifier
    """Random 63-bit number of this agent process: a restarted agent has another one."""
    name: Text
    """Name of the host, the same as in the HELLO of its ranks."""
    pid: ProcessId
    monotonic_ns: Nanoseconds
    unix_ns: Nanoseconds
    """CLOCK_REALTIME at the moment of `monotonic_ns`."""
    cores: Count
    """Processors that the run may use."""
    memory_bytes: Size
    boot_id: Text
    """Boot of the kernel, and the pid namespace: those of two containers on one machine differ."""
    addresses: Texts = ()
    """Addresses of its network interfaces: the connections of other hosts lead to these."""


MAX_LINKS = 4
"""Links to other hosts in a reading: those that lost most, then those that were silent for longest, then
those with the longest round trip."""


class HostLink(NamedTuple):
    """The TCP connections of a host's ranks to one other host, as far as they are used."""

    own: Text
    """Address of this end."""
    peer: Text
    """Address of the other host."""
    connections: Count
    round_trip_us: Size
    """Median over the connections of the kernel's smoothed round trip. It contains the time in which the
    other end holds an acknowledgement back, up to 40 ms."""
    least_us: Size
    """Least round trip of the last five minutes, as the kernel keeps it: without that."""
    sent: Size
    """Segments with data, since the reading before, of connections that sent enough to carry gradients."""
    resent: Size
    """How many of these were lost and sent again, without those that the other end had received already."""
    delivery_bytes_s: Size
    """Largest delivery rate of a connection, as the kernel last measured it."""
    silent_ms: Size = 0
    """How long a connection sent the same segments again and again, at timeouts, without an answer, since the
    reading before: the largest of all. 0 where nothing was lost, and where the kernel does not count it
    (before Linux 6.7)."""


@dataclass(frozen=True, slots=True)
class HostUsage:
    """A reading of a host. Only the newest one counts. None: not known."""

    t_ns: Nanoseconds
    cpu_pct: Quantity | None
    """Use of all its processors, since the reading before."""
    memory_used_bytes: Size | None
    received_bytes_s: Quantity | None
    """Through all network interfaces but the loopback; likewise below."""
    sent_bytes_s: Quantity | None
    round_trip_ns: Nanoseconds | None
    """Round trip of the newest clock exchange with the collector."""
    kept: Count
    """Messages of its ranks that the collector has not acked."""
    local_recording: Text | None
    """Path of the recording that the agent writes itself while it cannot reach the collector."""
    thinned: Count
    """Step rows whose bucket detail the agent has left out: the collector asked for it, or its own recording
    was near the limit."""
    links: Annotated[tuple[HostLink, ...], MostItems(MAX_LINKS)] | None = None
    """Links of its ranks to other hosts, MAX_LINKS at most; None: not read this time."""


@dataclass(frozen=True, slots=True)
class About:
    """The agent's report about a process of one of its ranks: USAGE, GPU, EVENT or EVIDENCE."""

    rank: RankNumber
    session: Identifier
    """Session of the rank's process."""
    body: bytes
    """The encoded message."""
