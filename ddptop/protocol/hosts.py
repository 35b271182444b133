"""Messages of a host's agent: the host itself, its usage, and reports about the processes of its ranks.

An agent has a session of its own, as a rank has, with rank -1. `Host` introduces it: first on every
connection, unnumbered. `HostUsage` is unnumbered too (only the newest one counts); `About` is numbered and
acked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HOST_END = "host_end"
"""Kind of the EVENT with which an agent reports its end: the collector has acked everything before it."""


@dataclass(frozen=True, slots=True)
class Host:
    """An agent introduces its host."""

    version: int
    run_id: str
    session: int
    """Random 63-bit number of this agent process: a restarted agent has another one."""
    name: str
    """Name of the host, the same as in the HELLO of its ranks."""
    pid: int
    monotonic_ns: int
    unix_ns: int
    """CLOCK_REALTIME at the moment of `monotonic_ns`."""
    cores: int
    """Processors that the run may use."""
    memory_bytes: int
    boot_id: str
    """Of the kernel, and of the pid namespace: those of two containers on one machine differ."""
    addresses: tuple[str, ...] = ()
    """Of its network interfaces: the connections of other hosts lead to these."""


MAX_LINKS = 4
"""Links to other hosts in a reading: those that lost most, then those that were silent for longest, then
those with the longest round trip."""


class HostLink(NamedTuple):
    """The TCP connections of a host's ranks to one other host, as far as they are used."""

    own: str
    """Address of this end."""
    peer: str
    """Address of the other host."""
    connections: int
    round_trip_us: int
    """Median over the connections of the kernel's smoothed round trip. It contains the time in which the
    other end holds an acknowledgement back, up to 40 ms."""
    least_us: int
    """Least round trip of the last five minutes, as the kernel keeps it: without that."""
    sent: int
    """Segments with data, since the reading before, of connections that sent enough to carry gradients."""
    resent: int
    """Of these, how many were lost and sent again: without those that the other end had received already."""
    delivery_bytes_s: int
    """Largest delivery rate of a connection, as the kernel last measured it."""
    silent_ms: int = 0
    """How long a connection sent the same segments again and again, at timeouts, without an answer, since the
    reading before: the largest of all. 0 where nothing was lost, and where the kernel does not count it
    (before Linux 6.7)."""


@dataclass(frozen=True, slots=True)
class HostUsage:
    """A reading of a host. Only the newest one counts. None: not known."""

    t_ns: int
    cpu_pct: float | None
    """Of all its processors, since the reading before."""
    memory_used_bytes: int | None
    received_bytes_s: float | None
    """Through all network interfaces but the loopback; likewise below."""
    sent_bytes_s: float | None
    round_trip_ns: int | None
    """Of the newest clock exchange with the collector."""
    kept: int
    """Messages of its ranks that the collector has not acked."""
    local_recording: str | None
    """Path of the recording that the agent writes itself while it cannot reach the collector."""
    thinned: int
    """Step rows whose bucket detail the agent has left out: the collector asked for it, or its own recording
    was near the limit."""
    links: tuple[HostLink, ...] | None = None
    """Of the ranks to other hosts, MAX_LINKS at most; None: not read this time."""


@dataclass(frozen=True, slots=True)
class About:
    """The agent's report about a process of one of its ranks: USAGE, GPU, EVENT or EVIDENCE."""

    rank: int
    session: int
    """Of the rank's process."""
    body: bytes
    """The encoded message."""
