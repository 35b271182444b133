"""The network interface over which a rank reaches the others.

Asks the name service: not on the training thread.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Scalar

CHOSEN_BY = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

ON_ONE_HOST = ("localhost", "127.0.0.1", "::1")
"""Addresses of the first rank where nothing is to be compared: most runs need not load psutil for it."""


def network_card() -> dict[str, Scalar]:
    """Entries of the rank's card: `interface`, where a variable chooses it, and `mtu`, of the chosen one or
    of that with the route to the first rank."""
    chosen = next((os.environ[name] for name in CHOSEN_BY if os.environ.get(name)), None)
    card: dict[str, Scalar] = {} if chosen is None else {"interface": chosen}
    first = os.environ.get("MASTER_ADDR", "localhost")
    if first in ON_ONE_HOST:
        return card
    import psutil

    interface = chosen or _interface_to(first)
    stats = psutil.net_if_stats().get(interface)
    if stats is not None and interface != "lo":
        card["mtu"] = stats.mtu
    return card


def _interface_to(target: str) -> str:
    import psutil

    from ddptop.host.addresses import source_address

    address = source_address(target)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return ""
