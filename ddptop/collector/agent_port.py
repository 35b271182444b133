"""Where the agents of the other hosts reach the collector: on which address of this host, and on which port.

Port and keys are those of the run (`transport.curve.load_keys`): a collector that was restarted has the same
ones. Once it is bound, the file `collector.json` has its address for the agents (`host.collector_address`).
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, NamedTuple

import zmq

from ddptop.host.addresses import is_loopback, own_addresses, source_address, stays_here
from ddptop.host.collector_address import CollectorAddress, write_address
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.curve import load_keys, save_keys

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ddptop.protocol.hosts import Host
    from ddptop.protocol.messages import Hello
    from ddptop.transport.curve import RunKeys

ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses that no host has (RFC 5737, RFC 3849): packets to them would take the default route."""


class Listen(NamedTuple):
    """What `--serve` names: a host name or address of this host, and a port; 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse_text(cls, text: str) -> Listen:
        """The address in `HOST:PORT` or `[ADDRESS]:PORT`. Raises ValueError."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not ADDRESS:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))


def choose_address(host: str) -> tuple[str, str | None]:
    """The address of this host to bind for a name, and what to say where the name does not give it.

    What means this machine on every machine (`localhost`, 127.0.0.1) is bound as it is. A host's own name may
    resolve to a loopback address too (Debian's /etc/hosts has 127.0.1.1), which no other host reaches: then
    it is the address of the default route, or the first of an interface.
    Raises OSError where this host has none that other hosts can reach.
    """
    resolved = resolve_name(host)
    if stays_here(host) and resolved:
        return resolved[0], None
    addresses_up = own_addresses()
    # A collector may be started again while a cable is out, which comes back.
    all_addresses = own_addresses(also_down=True)
    named = next(
        (address for address in resolved if address in all_addresses and not is_loopback(address)), None
    )
    if named is not None:
        return named, None
    routed = (source_address(target) for target in ELSEWHERE)
    chosen = next(
        (
            address
            for address in (*routed, *addresses_up, *all_addresses)
            if address and not is_loopback(address)
        ),
        None,
    )
    if chosen is None:
        raise OSError(f"{host}: this host has no address that other hosts can reach")
    why = f"is {resolved[0]}" if resolved else "is not known"
    return chosen, f"{host} {why} here, which other hosts cannot reach: they report to {chosen}"


def bind_port(
    context: zmq.Context[zmq.Socket[bytes]],
    folder: Path,
    listen: Listen,
    *,
    epoch: int,
    admit: Callable[[Hello | Host, Host | None], None],
) -> tuple[BundleReceiver, RunKeys, str, str | None]:
    """Bind the port where agents connect; returns the receiver, the run's keys, the address, and a remark on
    it.

    Raises OSError, RunDirectoryError, zmq.ZMQError.
    """
    address, remark = choose_address(listen.host)
    keys = load_keys(folder)
    written = f"[{address}]" if ":" in address else address
    receiver = None
    # The port of the collector before this one first: agents that know it reach this one without a new
    # address.
    for port in dict.fromkeys((listen.port or keys.port or "*", listen.port or "*")):
        try:
            receiver = BundleReceiver(
                context, f"tcp://{written}:{port}", keys.collector, epoch=epoch, admit=admit
            )
        except zmq.ZMQError:  # another process has taken the port since the collector before this one died
            # A port that the user named, or any port at all, cannot be had: there is no other to try.
            if port in (listen.port, "*"):
                raise
        else:
            break
    assert receiver is not None
    if receiver.port != keys.port:
        keys = keys._replace(port=receiver.port)
        # Kept for a next collector, which is to have the same port.
        save_keys(folder, keys)
    return receiver, keys, written, remark


def announce_address(folder: Path, *, run_id: str, name: str, address: str, keys: RunKeys) -> None:
    """Write the file from which the agents know all this. Raises RunDirectoryError, OSError."""
    endpoint = f"tcp://{address}:{keys.port}"
    public = (keys.collector.public, keys.agents.public, keys.agents.secret)
    write_address(folder, CollectorAddress(run_id, name, socket.gethostname(), endpoint, *public))


def resolve_name(host: str) -> list[str]:
    """The addresses of a host's name; empty: it has none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [*dict.fromkeys(str(entry[4][0]) for entry in infos)]
