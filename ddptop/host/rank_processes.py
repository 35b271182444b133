"""Watching the processes of this host's ranks: when one ends, how it ended, and whether one is held.

Memory and CPU of the ranks' processes, read from outside at no cost to them.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from ddptop.host.processes import (
    Ending,
    ending_of,
    ending_of_code,
    process_start,
    process_status,
    start_after,
)
from ddptop.protocol.limits import MAX_STEP
from ddptop.protocol.machine import Usage

GRACE_NS = 150_000_000
"""Between a process's end and the verdict: its last words may still be on their way through the socket."""

SILENCE_NS = 3_000_000_000
"""The same where the process was never seen (another pid namespace, or gone before its HELLO was read):
only silence then says that it is gone. Six heartbeats."""

MAX_WATCHED = 1024
"""Processes of one host, one per rank: made-up HELLOs must not cost a look at each of them every second."""

DESCRIPTORS_SHARE = 4
"""Of the descriptors that this process may have, one in so many is for pidfds at most: past that a process
is seen to end when it is looked at, once a second."""

HELD_LOOKS = 2
"""A debugger or profiler holds a process for a moment; what two looks in a row find is worth saying."""


class RankProcess(NamedTuple):
    """The process behind one session."""

    session: int
    rank: int
    pid: int


class Gone(NamedTuple):
    """A process that is there no longer."""

    process: RankProcess
    said_bye: bool
    told: bool
    """Its end was told before; only how it ended is new."""
    ended_ns: int
    """When that was seen."""
    ending: Ending | None
    left: bool = False
    """What it said was that it has left its process group, after which it may be killed."""
    steps: int | None = None
    """Steps that it had finished, by its own counter; None: that was not to be read."""


@dataclass(slots=True)
class _Watched:
    process: RankProcess
    start: int | None
    """As `process_start` gives it; None: never seen."""
    descriptor: int | None
    """A pidfd, readable when the process ends; None where the system has none."""
    counter: int | None = None
    """The memory in which the process counts its steps, which this keeps; None: not to be had."""
    gone_ns: int | None = None
    ending: Ending | None = None
    said_bye: bool = False
    left: bool = False
    told: bool = False
    looks_held: int = 0
    held: bool = False

    @property
    def due_ns(self) -> int | None:
        """When its end is to be told; None: not yet known."""
        if self.gone_ns is None or (self.told and self.ending is None):
            return None
        if self.ending is not None and (self.said_bye or self.told):
            return self.gone_ns
        seen = self.start is not None or self.ending is not None
        return self.gone_ns + (GRACE_NS if seen else SILENCE_NS)


class ProcessWatch:
    """Knows which sessions' processes are alive, and tells of each that has ended, once.

    `register` and `unregister` put a descriptor into the caller's poller and take it out.
    """

    def __init__(self, register: Callable[[int], None], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._watched: dict[int, _Watched] = {}
        self._descriptors = 0
        """Pidfds that are open."""

    def __len__(self) -> int:
        """Processes whose words may still come: neither a BYE nor their end was seen."""
        return sum(not watched.said_bye and not watched.told for watched in self._watched.values())

    def add(self, process: RankProcess, hello_unix_s: float, now_ns: int) -> None:
        """Watch the process that said HELLO at that time."""
        if process.session in self._watched or len(self._watched) >= MAX_WATCHED or process.pid <= 0:
            return
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_SHARE
        descriptor = _open_pidfd(process.pid) if self._descriptors < room else None
        self._descriptors += descriptor is not None
        start = process_start(process.pid)
        if start is not None and start_after(process.pid, hello_unix_s):
            start = None  # somebody else has its pid by now
        watched = _Watched(process, start, descriptor)
        if start is not None:
            watched.counter = _open_counter(process)
        if start is None:
            self._close(watched)
            watched.gone_ns = now_ns
        elif descriptor is not None:
            self._register(descriptor)
        self._watched[process.session] = watched

    def heard(self, session: int, now_ns: int, *, trains: bool = False) -> None:
        """A message came: a process that was never seen lives all the same.

        `trains`: with steps, which come after a BYE only where another group was made.
        """
        watched = self._watched.get(session)
        if watched is not None and trains:
            watched.said_bye = False
        if watched is not None and watched.start is None and not watched.told:
            watched.gone_ns = now_ns

    def said_bye(self, session: int, *, left: bool = False) -> None:
        """Its end is no alarm any more; how it ends is still worth knowing. `left`: it may live on."""
        watched = self._watched.get(session)
        if watched is not None:
            watched.said_bye, watched.left = True, left

    def forget(self, session: int) -> None:
        """Another process took its rank, or its end has been told: nothing of it matters any more."""
        watched = self._watched.pop(session, None)
        if watched is not None:
            self._close(watched)
            if watched.counter is not None:
                os.close(watched.counter)

    def note_ended(self, descriptors: Collection[int], now_ns: int) -> None:
        """The poller found these pidfds readable: see at once how their processes ended."""
        for watched in self._watched.values():
            if watched.descriptor is not None and watched.descriptor in descriptors:
                self._end(watched, now_ns)

    def note_exit(self, pid: int, code: int, now_ns: int) -> None:
        """The launcher has reaped this process; `code` as `subprocess` gives it."""
        for watched in self._watched.values():
            if watched.process.pid != pid or watched.ending is not None:
                continue
            if watched.gone_ns is None and process_start(pid) == watched.start:
                continue  # it lives: an earlier process with its pid was meant
            watched.gone_ns = now_ns if watched.gone_ns is None else watched.gone_ns
            watched.ending = ending_of_code(code)

    def look(self, now_ns: int) -> list[tuple[RankProcess, bool]]:
        """Look at the processes; once a second will do. Gives those newly held (True) or let go (False)."""
        changed = []
        for watched in self._watched.values():
            if watched.gone_ns is not None:
                continue
            status = process_status(watched.process.pid)
            if watched.descriptor is None and process_start(watched.process.pid) != watched.start:
                self._end(watched, now_ns)
            elif status is not None and status.start == watched.start and not watched.said_bye:
                watched.looks_held = watched.looks_held + 1 if status.state in "Tt" else 0
                held = watched.looks_held >= HELD_LOOKS or (watched.held and watched.looks_held > 0)
                if held != watched.held:
                    watched.held = held
                    changed.append((watched.process, held))
        return changed

    def recall_held(self, session: int, held: bool) -> None:
        """A collector before this one has told so."""
        watched = self._watched.get(session)
        if watched is not None:
            watched.held = held

    def take_gone(self, now_ns: int) -> list[Gone]:
        """Processes that are gone for good. One whose ending is not known may come again, when it is."""
        gone = []
        for session, watched in list(self._watched.items()):
            due_ns = watched.due_ns
            if due_ns is None or now_ns < due_ns:
                continue
            assert watched.gone_ns is not None
            gone.append(
                Gone(
                    watched.process,
                    watched.said_bye,
                    watched.told,
                    watched.gone_ns,
                    watched.ending,
                    watched.said_bye and watched.left,
                    _steps_in(watched.counter),
                )
            )
            watched.told = True
            if watched.ending is not None:
                self.forget(session)
        return gone

    def unaccounted(self, now_ns: int) -> list[Gone]:
        """Processes of which neither a BYE nor their end is known, as they would be if they were gone."""
        return [
            Gone(watched.process, False, False, now_ns, None, False, _steps_in(watched.counter))
            for watched in self._watched.values()
            if not watched.said_bye and not watched.told
        ]

    def living(self) -> list[RankProcess]:
        """Processes that are there, and have not said BYE."""
        return [
            watched.process
            for watched in self._watched.values()
            if watched.gone_ns is None and not watched.said_bye
        ]

    def any_present(self) -> bool:
        """Whether any process is there, also one that has said BYE."""
        return any(watched.gone_ns is None for watched in self._watched.values())

    def close(self) -> None:
        """Forget all."""
        for session in list(self._watched):
            self.forget(session)

    def _end(self, watched: _Watched, now_ns: int) -> None:
        watched.gone_ns = now_ns
        watched.ending = ending_of(watched.process.pid, watched.start, watched.descriptor)
        self._close(watched)

    def _close(self, watched: _Watched) -> None:
        if watched.descriptor is not None:
            if watched.start is not None:
                self._unregister(watched.descriptor)
            os.close(watched.descriptor)
            watched.descriptor = None
            self._descriptors -= 1


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # no such process, no such system call, or no descriptors left
        return None


def _open_counter(process: RankProcess) -> int | None:
    """The memory in which the process counts its steps, found among its descriptors."""
    name = f"/memfd:ddptop-steps-{process.session} "
    try:
        links = list(Path(f"/proc/{process.pid}/fd").iterdir())
    except OSError:  # gone, another user's, or a system without /proc
        return None
    for link in links:
        with suppress(OSError):  # closed since it was listed
            if str(link.readlink()).startswith(name):
                return os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return None


def _steps_in(counter: int | None) -> int | None:
    data = b"" if counter is None else os.pread(counter, 8, 0)
    steps = int.from_bytes(data, sys.byteorder)
    return steps if len(data) == 8 and steps <= MAX_STEP else None


class UsageSampler:
    """Reads the processes it is given. CPU is that since the reading before, so the first gives none."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def sample(self, living: Iterable[RankProcess], now_ns: int) -> list[tuple[RankProcess, Usage]]:
        """One reading of each process that can be read."""
        before, self._processes = self._processes, {}
        readings = []
        for rank in living:
            known = before.get(rank.session)
            try:
                process = known or psutil.Process(rank.pid)
                with process.oneshot():
                    cpu_pct, rss_bytes = process.cpu_percent(None), process.memory_info().rss
            except psutil.Error:
                continue
            self._processes[rank.session] = process
            if known is not None:
                readings.append((rank, Usage(now_ns, int(rss_bytes), float(cpu_pct))))
        return readings
