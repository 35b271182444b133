"""Which network addresses are this host's own."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from functools import lru_cache

DISCARD_PORT = 9
"""Any port: nothing is sent."""


@lru_cache(1024)  # asked about every connection of this host, again and again
def is_loopback(address: str) -> bool:
    """Whether an address stays on its host; also True for what is not an address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def stays_here(name: str) -> bool:
    """Whether a name or address means the machine that uses it, on every machine: `localhost`, 127.0.0.1."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.startswith("localhost.")


def is_own_address(name: str) -> bool:
    """Whether a host name or address is one of this host's. May ask the name service."""
    # First what needs no name service, which may take seconds to say that it knows nothing.
    if stays_here(name) or name in (socket.gethostname(), socket.getfqdn()):
        return True
    import psutil  # takes 6 ms, which the start of a rank does not spend on it

    host_addresses = {
        entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries
    }
    with contextlib.suppress(OSError, UnicodeError):
        resolved = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
        return any(address in host_addresses or is_loopback(address) for address in resolved)
    return False


def source_address(target: str) -> str:
    """The address of this host from which packets to `target` are sent; "" where there is no route."""
    with contextlib.suppress(OSError, UnicodeError):
        family, kind, protocol, _, address = socket.getaddrinfo(target, DISCARD_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # for a datagram socket: chooses the route, sends nothing
            return str(probe.getsockname()[0])
    return ""


def own_addresses(*, also_down: bool = False) -> list[str]:
    """Addresses of this host's interfaces, IPv4 first; none that is valid on one link only (fe80::).

    `also_down`: of interfaces whose cable is out, too.
    """
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup or also_down}
    entries = [
        entry
        for name, interface_entries in psutil.net_if_addrs().items()
        if name in up
        for entry in interface_entries
    ]
    ip_entries = [entry for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
    ip_entries.sort(key=lambda entry: entry.family != socket.AF_INET)
    plain = [entry.address.partition("%")[0] for entry in ip_entries]
    return [address for address in plain if not ipaddress.ip_address(address).is_link_local]
