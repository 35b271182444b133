"""The network interface over which a rank reaches the others."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ddptop.training.guard import guard

if TYPE_CHECKING:
    from ddptop.protocol.messages import Scalar

CHOSEN_BY = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")

ON_ONE_HOST = ("localhost", "127.0.0.1", "::1")
"""Addresses of the first rank where nothing is to be compared: most runs need not load psutil for it."""


LOOKUP_THREAD = "ddptop-network"
"""The name of the thread: nothing may wait for it."""


class NetworkLookup:
    """Finds `network_card` in a thread of its own: the name service may take many seconds."""

    def __init__(self) -> None:
        self._entries: dict[str, Scalar] = {}
        if _is_on_one_host():
            self._look_up()
            return
        import psutil  # noqa: F401 - here: a child forked while the thread imports it could not import it

        with suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=self._look_up, name=LOOKUP_THREAD, daemon=True).start()

    def take_entries(self) -> dict[str, Scalar]:
        """The entries, once: in the first call after they have been found."""
        entries = self._entries
        if entries:
            self._entries = {}
        return entries

    def _look_up(self) -> None:
        try:
            self._entries = network_card()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)


def _is_on_one_host() -> bool:
    return _first_rank() in ON_ONE_HOST


def _first_rank() -> str:
    return os.environ.get("MASTER_ADDR", "localhost")


def network_card() -> dict[str, Scalar]:
    """Entries of the rank's card: `interface`, where a variable chooses it, and `mtu`, of the chosen one or
    of that with the route to the first rank. Asks the name service."""
    chosen = next((os.environ[name] for name in CHOSEN_BY if os.environ.get(name)), None)
    card: dict[str, Scalar] = {} if chosen is None else {"interface": chosen}
    if _is_on_one_host():
        return card
    import psutil

    interface = chosen or _interface_to(_first_rank())
    stats = psutil.net_if_stats().get(interface)
    # The loopback's MTU says nothing about the network.
    if stats is not None and interface != "lo":
        card["mtu"] = stats.mtu
    return card


def _interface_to(target: str) -> str:
    import psutil

    from ddptop.host.addresses import source_address

    address = source_address(target)
    for name, entries in psutil.net_if_addrs().items():
        # Behind `%` a link-local address has the interface's name.
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return ""
