"""Which network interface gloo should use, where torch would take the loopback.

torch has gloo listen on the address that this host's name stands for. On many machines that is 127.0.0.1 or
127.0.1.1 (Debian's /etc/hosts): ranks on other hosts then find nobody there.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Sequence

import psutil

DISCARD_PORT = 9
"""Any would do: nothing is sent."""


def source_address(target: str) -> str:
    """The address of this host from which packets to `target` leave; "" where there is no way."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(target, DISCARD_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # for a datagram socket: chooses the route, sends nothing
            return str(probe.getsockname()[0])
    return ""


def for_gloo(addresses: Sequence[str]) -> str | None:
    """The interface for GLOO_SOCKET_IFNAME; None where torch's own choice will do.

    Args:
        addresses: of the ranks' hosts, as each sees itself on the way to rank 0.
    """
    if len(set(addresses)) < 2 or "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    if not is_loopback(_address_of_own_name()):
        return None
    for target in addresses:
        source = source_address(target) if target and not is_loopback(target) else ""
        if source and not is_loopback(source):
            return _interface_with(source)
    return None


def is_loopback(address: str) -> bool:
    """Whether an address stays on its host; also where it is none."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def _address_of_own_name() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _interface_with(address: str) -> str | None:
    for name, known in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in known):
            return str(name)
    return None
