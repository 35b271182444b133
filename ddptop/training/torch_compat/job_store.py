"""The store of a distributed job: where it is, and a connection to it that is ours alone.

torch's store objects have one connection each, on which a request waits for the one before it. So nothing of
ddptop uses the job's own object. All names are public but `_get_default_store`. Names as in
torch 2.6, 2.13 and 2.15; it was run on the latter two.
"""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

TIMEOUT_S = 3.0
"""Longest time of a request, and of the attempt to connect."""


def address_of(store: Any) -> tuple[str, int] | None:
    """Host and port of a TCPStore, also below prefixes; None for another kind of store."""
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return (store.host, store.port) if isinstance(store, TCPStore) else None


def address_of_default_store() -> tuple[str, int] | None:
    """Host and port of the default process group's store; None where there is no group, or its store is of
    another kind."""
    with suppress(ImportError, AttributeError, ValueError, RuntimeError):
        from torch.distributed.distributed_c10d import _get_default_store

        return address_of(_get_default_store())
    return None


class JobStore:
    """A connection to a TCPStore. Raises OSError or RuntimeError where the store cannot be reached."""

    def __init__(self, host: str, port: int) -> None:
        """Connect, within `TIMEOUT_S`."""
        from torch.distributed import TCPStore

        # torch's client writes to stderr when it cannot connect, or loses its connection. This one, on which
        # nothing is sent, ends when the store does.
        self._probe = socket.create_connection((host, port), TIMEOUT_S)
        try:
            self._store = TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S)
            )
        except BaseException:
            self._probe.close()
            raise

    def claim(self, key: str) -> bool:
        """Whether this is the first claim of the key, whose value is the number of claims."""
        return int(self._reachable().add(key, 1)) == 1

    def get(self, key: str) -> bytes | None:
        """The value of a key; None where there is none."""
        store = self._reachable()
        return bytes(store.get(key)) if store.check([key]) else None

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        self._reachable().set(key, value)

    def agree_on(self, key: str, value: str) -> str:
        """The value of a key that all who call this agree on: that of the first."""
        return bytes(self._reachable().compare_set(key, "", value)).decode()

    def close(self) -> None:
        """End the connection."""
        self._probe.close()
        del self._store

    def _reachable(self) -> Any:
        if select.select([self._probe], [], [], 0)[0]:
            raise ConnectionResetError("the job's store is gone")
        return self._store
