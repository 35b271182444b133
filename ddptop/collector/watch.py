"""Watching the processes of this host's ranks: one that goes without a BYE is lost, seen at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from ddptop.transport.processes import process_start, start_after

GRACE_NS = 150_000_000
"""Between a process's end and the verdict: its last words may still be on their way through the socket."""

SILENCE_NS = 3_000_000_000
"""The same where the process was never seen (another pid namespace, or gone before its HELLO was read):
only silence then says that it is gone. Six heartbeats."""

MAX_WATCHED = 1024
"""Processes of one host; a flood of made-up HELLOs must not cost a look at each, every second."""


class RankProcess(NamedTuple):
    """The process behind one session."""

    session: int
    rank: int
    pid: int


@dataclass(slots=True)
class _Watched:
    process: RankProcess
    start: int | None
    """As `process_start` gives it; None: never seen."""
    descriptor: int | None
    """A pidfd, readable when the process ends; None where the system has none."""
    gone_ns: int | None = None


class ProcessWatch:
    """Knows which sessions' processes are alive, and tells of each that went without a word, once.

    `register` and `unregister` put a descriptor into the caller's poller and take it out.
    """

    def __init__(self, register: Callable[[int], None], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._watched: dict[int, _Watched] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, process: RankProcess, hello_unix_s: float, now_ns: int) -> None:
        """Watch the process that said HELLO at that time."""
        if process.session in self._watched or len(self._watched) >= MAX_WATCHED or process.pid <= 0:
            return
        descriptor = _open_pidfd(process.pid)
        start = process_start(process.pid)
        if start is not None and start_after(process.pid, hello_unix_s):
            start = None  # somebody else has its pid by now
        watched = _Watched(process, start, descriptor)
        if start is None:
            self._close(watched)
            watched.gone_ns = now_ns
        elif descriptor is not None:
            self._register(descriptor)
        self._watched[process.session] = watched

    def heard(self, session: int, now_ns: int) -> None:
        """A message came: a process that was never seen lives all the same."""
        watched = self._watched.get(session)
        if watched is not None and watched.start is None:
            watched.gone_ns = now_ns

    def forget(self, session: int) -> None:
        """The session said BYE, or another took its rank: its end is no alarm."""
        watched = self._watched.pop(session, None)
        if watched is not None:
            self._close(watched)

    def note_ended(self, descriptors: Collection[int], now_ns: int) -> None:
        """The poller found these pidfds readable."""
        for watched in self._watched.values():
            if watched.descriptor in descriptors:
                self._close(watched)
                watched.gone_ns = now_ns

    def look(self, now_ns: int) -> None:
        """Look at the processes that have no pidfd; once a second will do."""
        for watched in self._watched.values():
            if watched.gone_ns is None and watched.descriptor is None:
                pid = watched.process.pid
                watched.gone_ns = now_ns if process_start(pid) != watched.start else None

    def take_gone(self, now_ns: int) -> list[RankProcess]:
        """Processes that are gone for good; they are watched no longer."""
        gone = []
        for watched in list(self._watched.values()):
            grace = GRACE_NS if watched.start is not None else SILENCE_NS
            if watched.gone_ns is not None and now_ns - watched.gone_ns >= grace:
                gone.append(watched.process)
                self.forget(watched.process.session)
        return gone

    def living(self) -> list[RankProcess]:
        """Processes that are there."""
        return [watched.process for watched in self._watched.values() if watched.gone_ns is None]

    def close(self) -> None:
        """Forget all."""
        for session in list(self._watched):
            self.forget(session)

    def _close(self, watched: _Watched) -> None:
        if watched.descriptor is not None:
            if watched.start is not None:
                self._unregister(watched.descriptor)
            os.close(watched.descriptor)
            watched.descriptor = None


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # no such process, no such system call, or no descriptors left
        return None
