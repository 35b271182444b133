"""Decides which host of a job runs the collector, and brings its address to the others.

Both go through the job's own store, which every host can reach. The launcher of each host does it, or one of
the host's ranks where there is no launcher: in a thread, over a connection of its own, so that nothing of the
training waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddptop.host.addresses import is_own_address, source_address
from ddptop.host.collector_address import CollectorAddress, read_address, write_address
from ddptop.host.folders import RunDirectoryError

LATE_S = 5.0
"""After this long, the host of rank 0 takes the collector where no host owns the store's address: in a
container network, the address may be a gateway's."""

ALONE_S = 10.0
"""After this long without the job's store, the host begins as one that reports to a collector elsewhere."""

SOON_S = 0.1
LATER_S = 2.0
"""Pauses between two looks into the folder or the store: until there is an address, and after that. A
collector that was restarted may have another port."""

MOST_PAUSE_S = 5.0
"""Time between two attempts to reach the store."""

JOIN_S = 0.5
"""How long the end of a launcher waits for the thread."""

KEPT, PRESENT = "ddptop/kept", "ddptop/present"
"""Keys in the store: set where a host has had the collector before others joined (elastic torchrun), and the
number of ranks that are there."""


class Store(Protocol):
    """A connection to the job's store. Any error of it means that the store cannot be reached."""

    def claim(self, key: str) -> bool:
        """Whether this is the first claim of the key, whose value is the number of claims."""

    def get(self, key: str) -> bytes | None:
        """The value of a key; None where there is none."""

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key."""

    def close(self) -> None:
        """End the connection."""


@dataclass(frozen=True)
class Job:
    """A job as its hosts see it once they have met."""

    id: str
    """Name of the job: the same on all its hosts, and of no other job with this store."""
    address: str
    """Host name or address of the store."""
    port: int
    first: bool
    """Whether rank 0 is on this host."""
    announced: int = 0
    """How many ranks announce in the store that they are there; 0: none does. Before that they announce, by
    `KEPT`, whether their host has the collector already."""


def serve_argument(job: Job, port: int) -> str:
    """HOST:PORT for the `--serve` of a collector on this host, by a name that other hosts know."""
    # By the address from which packets to the store leave: the other hosts can reach the store, too.
    host = job.address if is_own_address(job.address) else source_address(job.address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class AddressExchange:
    """One host's part of the exchange, in a thread that the first call of `note_job` starts."""

    def __init__(
        self,
        folder: Path,
        connect: Callable[[Job], Store],
        begin: Callable[[Job, bool], None],
        received: Callable[[CollectorAddress], None] = lambda address: None,
        *,
        collects: bool | None = None,
    ) -> None:
        """`folder`: the run's folder on this host.

        `begin` is called once, from the thread: with the job, and whether this host runs the collector.
        `collects`: whether this host runs the collector, where that is known from before: then `begin` is not
        called. `received` is called with each address that comes from another host.
        """
        self._folder = folder
        self._connect = connect
        self._begin = begin
        self._received = received
        self._collects = collects
        self._job: Job | None = None
        self._store: Store | None = None
        self._newest: CollectorAddress | None = None
        """The newest address that was written to the store or read from it."""
        self._began_s = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run_exchange, name="ddptop-address", daemon=True)

    def note_job(self, job: Job) -> None:
        """Note that the hosts have met, for the first time or again: the store can be reached. Returns at
        once."""
        before, self._job = self._job, job
        if before is None:
            # Counted from the first meeting: after a restart the roles are decided already.
            self._began_s = time.monotonic()
            with suppress(RuntimeError):  # no thread can be started: this host is not recorded
                self._thread.start()

    def end_thread(self) -> None:
        """End the thread, if it can be within half a second."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def _run_exchange(self) -> None:
        job, pause_s = self._job, 0.0
        while not self._ending.wait(pause_s):
            # After a restart the hosts may have met at another store.
            if job is not self._job:
                job = self._job
                self._forget_store()
            assert job is not None
            try:
                if self._store is None:
                    self._store = self._connect(job)
                pause_s = self._exchange_once(job, self._store)
            # The store ends with the process that serves it: it is tried again until the launcher ends.
            except (RunDirectoryError, OSError, RuntimeError, ValueError):  # torch's are RuntimeError
                self._forget_store()
                pause_s = min(MOST_PAUSE_S, max(0.2, 2 * pause_s))
                if self._collects is None and self._waited_s() > ALONE_S:
                    self._take_role(job, False)
        self._forget_store()

    def _forget_store(self) -> None:
        store, self._store = self._store, None
        self._newest = None  # another store does not have it
        if store is not None:
            store.close()

    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s

    def _exchange_once(self, job: Job, store: Store) -> float:
        """Do what can be done now; returns the pause until the next time, in seconds."""
        if self._collects is None:
            self._decide_by_store(job, store)
        if self._collects is None:
            return SOON_S
        key = f"ddptop/{job.id}/collector"
        if self._collects:
            address = read_address(self._folder)
            # Written again only where it has changed, as after a restart of the collector on another port.
            if address is not None and address != self._newest:
                store.set(key, address.to_text().encode())
                self._newest = address
        else:
            text = store.get(key)
            address = None if text is None else CollectorAddress.from_text(text)
            if address is not None and address != self._newest:
                write_address(self._folder, address)
                self._newest = address
                self._received(address)
        # Often only in the first minute: without an address agents keep what they have.
        return SOON_S if self._newest is None and self._waited_s() < 60 else LATER_S

    def _decide_by_store(self, job: Job, store: Store) -> None:
        if job.announced and int(store.get(PRESENT) or 0) < job.announced and self._waited_s() < LATE_S:
            return
        if job.announced and store.get(KEPT) is not None:
            self._take_role(job, False)
            return
        key = f"ddptop/{job.id}/claim"
        if is_own_address(job.address) or (job.first and self._waited_s() > LATE_S):
            # The claim decides where several hosts could take it.
            self._take_role(job, store.claim(key))
        elif not job.first or store.get(key) is not None:
            self._take_role(job, False)

    def _take_role(self, job: Job, collects: bool) -> None:
        self._collects = collects
        self._begin(job, collects)
