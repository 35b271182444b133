"""The network between hosts as the kernel sees it: TCP connections of the ranks' processes, by other host.

Read from the kernel's `sock_diag` (sock_diag(7), `ss -ti` shows the same), which needs no privilege. A host
with no such connections (NCCL over InfiniBand) has nothing to report.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ddptop.host.addresses import is_loopback
from ddptop.protocol.hosts import MAX_LINKS, HostLink
from ddptop.protocol.limits import NS

PERIOD_NS = 5 * NS
"""Time between two readings: the kernel goes through its table of all connections, which took 3 ms with
ten."""

MAX_CONNECTIONS = 16_384
"""Connections that are read at most: the first ones of a host with more."""

MAX_FILES = 16_384
"""Open files of a process that are looked at."""

LEAST_SEGMENTS = 10
"""A connection that has sent fewer since the last reading is torch's store's, or was not answered."""

NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x301
_DONE, _ERROR = 3, 2
_INFO = 2
"""INET_DIAG_INFO: the attribute that holds a tcp_info."""
_ESTABLISHED = 1 << 1

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=8x32s28xI")
"""An inet_diag_msg: both addresses and the inode, after family, state, timer and ports."""
_ATTRIBUTE = struct.Struct("=HH")
_INFO_FIELDS = (68, 148, 156, 100, 216)
"""Places in linux/tcp.h's tcp_info, which do not change: smoothed round trip, least round trip of the last
minutes, data segments sent (with those sent again), segments sent again, and of these how many the other end
had received (DSACK, RFC 2883): where a processor was busy, not where one was lost."""
_DELIVERY_RATE = 160
_TIMEOUT_MS = 244
"""tcpi_total_rto_time, of Linux 6.7 and later: from a segment's first timeout to its acknowledgement, all
together. One that is lost alone is acknowledged within a round trip after its timeout."""
_LEAST_INFO = 220


class Connection(NamedTuple):
    """An established TCP connection to another host."""

    inode: int
    address: str
    peer: str
    round_trip_us: int
    least_us: int
    sent: int
    resent: int
    """Without those that the other end had received."""
    delivery_bytes_s: int
    silent_ms: int = 0
    """Together, as in `HostLink`; since a reading, 0 where the other end had received everything."""


class LinkSampler:
    """Reads the connections of processes; counts are those since the reading before."""

    def __init__(self) -> None:
        self._due_ns = 0
        self._before: dict[int, Connection] = {}
        self._others: set[int] = set()
        """Inodes of connections that no rank has."""
        self._pids: set[int] = set()

    def sample_links(self, pids: Iterable[int], now_ns: int) -> tuple[HostLink, ...] | None:
        """The links to other hosts, the worst first, MAX_LINKS at most; None where no reading is due, or none
        can be had. Never raises."""
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + PERIOD_NS
        try:
            # All of the network namespace: the kernel knows no dump of one process.
            connections = {connection.inode: connection for connection in established()}
            # A connection that had no rank may belong to a new one, so that all are looked at where ranks
            # have changed.
            self._others &= connections.keys() if self._pids == (now := {*pids}) else set()
            self._pids = now
            if unknown := connections.keys() - self._before.keys() - self._others:
                # Reading the files of a process is what costs: only where a new connection came.
                self._others |= unknown - {inode for pid in now for inode in sockets_of(pid)}
        except OSError:
            return None
        before, self._before = (
            self._before,
            {i: connection for i, connection in connections.items() if i not in self._others},
        )
        of_peer: dict[tuple[str, str], list[Connection]] = {}
        for inode, new in self._before.items():
            old = before.get(inode)
            since = None if old is None else _count_since(old, new)
            if since is not None and (since.sent >= LEAST_SEGMENTS or since.silent_ms):
                of_peer.setdefault((new.address, new.peer), []).append(since)
        links = [_make_link(address, peer, readings) for (address, peer), readings in of_peer.items()]
        links.sort(key=lambda link: (-link.resent, -link.silent_ms, -link.least_us))
        return tuple(links[:MAX_LINKS])


def _count_since(old: Connection, new: Connection) -> Connection | None:
    """A connection with what it has counted since an older reading; None: its inode was that of another."""
    sent, resent, silent_ms = (
        _counter_rise(getattr(old, name), getattr(new, name)) for name in ("sent", "resent", "silent_ms")
    )
    # Address, peer and inode: the kernel gives an inode again.
    if old[:3] != new[:3] or sent < 0 or silent_ms < 0:
        return None
    # Where all that was sent again had arrived, the timeouts are those of a busy processor.
    silent_ms *= resent > 0
    few = sent < LEAST_SEGMENTS  # 3 of 4 lost are no 75 % of a link
    return new._replace(sent=0 if few else sent, resent=0 if few else resent, silent_ms=silent_ms)


def _counter_rise(old: int, new: int) -> int:
    """By how much a counter has risen that starts again at 0 after 2**32 - 1; negative: it has fallen."""
    # The kernel's counters are of 32 bits: one that has passed 2**32 has risen, not fallen.
    return (new - old + (1 << 31)) % (1 << 32) - (1 << 31)


def _make_link(address: str, peer: str, connections: list[Connection]) -> HostLink:
    return HostLink(
        own=address,
        peer=peer,
        connections=len(connections),
        round_trip_us=int(median(connection.round_trip_us for connection in connections)),
        least_us=min(connection.least_us for connection in connections),
        sent=sum(connection.sent for connection in connections),
        resent=max(0, sum(connection.resent for connection in connections)),
        delivery_bytes_s=max(connection.delivery_bytes_s for connection in connections),
        silent_ms=max(connection.silent_ms for connection in connections),
    )


def established() -> list[Connection]:
    """The established TCP connections of this network namespace to other hosts. Raises OSError."""
    connections: list[Connection] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            connections += dump_connections(link, family)
    # Two processes of this host may talk over its outside address.
    own_addresses = {connection.address for connection in connections}
    return [
        connection for connection in connections[:MAX_CONNECTIONS] if connection.peer not in own_addresses
    ]


def dump_connections(link: socket.socket, family: int) -> list[Connection]:
    """The established TCP connections of an address family, asked of the kernel over a netlink socket."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    length = _HEADER.size + len(request)
    link.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0) + request)
    parsed = (_parse_connection(family, body) for body in _read_replies(link))
    return [connection for connection in parsed if connection is not None]


def _read_replies(link: socket.socket) -> Iterator[bytes]:
    """The bodies of a dump's messages."""
    while True:
        data, offset = link.recv(1 << 18), 0
        while offset + _HEADER.size <= len(data):
            length, kind, *_ = _HEADER.unpack_from(data, offset)
            # An error ends a dump as well: a kernel without the module answers with one.
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return
            yield data[offset + _HEADER.size : offset + length]
            # Netlink aligns each message to four bytes.
            offset += (length + 3) & ~3


def _parse_connection(family: int, body: bytes) -> Connection | None:
    """None: it stays on this host, or the kernel says too little of it."""
    size = 4 if family == socket.AF_INET else 16
    ends, inode = _MESSAGE.unpack_from(body)
    own_end, peer_end = socket.inet_ntop(family, ends[:size]), socket.inet_ntop(family, ends[16 : 16 + size])
    if is_loopback(peer_end):
        return None
    info = _find_attribute(body, _MESSAGE.size, _INFO)
    # Of an old kernel, whose tcp_info ends before what is read here.
    if info is None or len(info) < _LEAST_INFO:
        return None
    round_trip_us, least_us, sent, resent, needless = (
        struct.unpack_from("=I", info, offset)[0] for offset in _INFO_FIELDS
    )
    (rate,) = struct.unpack_from("=Q", info, _DELIVERY_RATE)
    counted = len(info) >= _TIMEOUT_MS + 4
    silent_ms = struct.unpack_from("=I", info, _TIMEOUT_MS)[0] if counted else 0
    # IPv4 over a socket for both is as it is over one of its own.
    address, peer = own_end.removeprefix("::ffff:"), peer_end.removeprefix("::ffff:")
    return Connection(inode, address, peer, round_trip_us, least_us, sent, resent - needless, rate, silent_ms)


def _find_attribute(body: bytes, offset: int, kind: int) -> bytes | None:
    while offset + _ATTRIBUTE.size <= len(body):
        length, found_kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return None
        if found_kind == kind:
            return body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    return None


def sockets_of(pid: int) -> Iterator[int]:
    """Inodes of the sockets that a process has; none where it has exited or may not be read."""
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        for _, file in zip(range(MAX_FILES), files, strict=False):
            with suppress(OSError, ValueError):
                kind, _, inode = str(Path(file.path).readlink()).partition(":")
                if kind == "socket":
                    yield int(inode.strip("[]"))
