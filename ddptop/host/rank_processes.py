"""The processes of this host's ranks, watched from outside: exited, stopped by a signal."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Collection
from dataclasses import dataclass
from signal import SIGKILL

from ddptop.host.cgroups import OutOfMemoryKills
from ddptop.host.exits import RankExit, RankProcess, exit_code_of
from ddptop.host.processes import process_start, process_status, start_after
from ddptop.host.step_counters import open_step_counter, read_step_counter

GRACE_NS = 150_000_000
"""Time between a process's exit and reporting it: its last messages may still be on their way."""

SILENCE_NS = 3_000_000_000
"""Six heartbeats. Only silence shows that a process has exited which was never seen: it is in another pid
namespace, or had exited before its HELLO was read."""

MAX_WATCHED = 1024
"""Processes of one host, one per rank: made-up HELLOs must not cost a check of each of them every second."""

DESCRIPTORS_SHARE = 4
"""One in so many of the descriptors that this process may have is for pidfds. Past that, the exit of a
process is seen when it is checked, once a second."""

STOPPED_CHECKS = 2
"""A debugger or profiler stops a process for a moment; what two checks in a row find is reported."""


@dataclass(slots=True)
class _Watched:
    process: RankProcess
    start: int | None
    """As `process_start` gives it; None: never seen."""
    descriptor: int | None
    """A pidfd, readable when the process ends; None where the system has none."""
    counter: int | None = None
    """The memory in which the process counts its steps, kept open here; None: there is none."""
    exited_ns: int | None = None
    """When it was noticed that the process has exited; None: it runs."""
    exit_code: int | None = None
    said_bye: bool = False
    left_group: bool = False
    reported: bool = False
    checks_stopped: int = 0
    """Checks in a row that found the process stopped by a signal."""
    stopped: bool = False

    @property
    def due_ns(self) -> int | None:
        """When its exit is to be reported; None: not yet known."""
        # An exit that was reported comes a second time only for its code.
        if self.exited_ns is None or (self.reported and self.exit_code is None):
            return None
        if self.exit_code is not None and (self.said_bye or self.reported):
            return self.exited_ns
        seen = self.start is not None or self.exit_code is not None
        return self.exited_ns + (GRACE_NS if seen else SILENCE_NS)

    def to_exit(self, noticed_ns: int) -> RankExit:
        return RankExit(
            process=self.process,
            noticed_ns=noticed_ns,
            exit_code=self.exit_code,
            said_bye=self.said_bye,
            reported=self.reported,
            left_group=self.said_bye and self.left_group,
            steps=read_step_counter(self.counter),
        )


class ProcessWatch:
    """Knows which sessions' processes run, and reports the exit of each once.

    `register` and `unregister` put a descriptor into the caller's poller and take it out.
    """

    def __init__(self, register: Callable[[int], None], unregister: Callable[[int], None]) -> None:
        self._register = register
        self._unregister = unregister
        self._watched: dict[int, _Watched] = {}
        self._codes: dict[int, int] = {}
        """Exit codes, by pid, of processes that are not watched."""
        self._descriptors = 0
        """Pidfds that are open."""
        self._kills = OutOfMemoryKills()

    def __len__(self) -> int:
        """Processes from which messages may still come: neither a BYE nor their exit was seen."""
        return sum(not watched.said_bye and not watched.reported for watched in self._watched.values())

    def watch_process(self, process: RankProcess, hello_unix_s: float, now_ns: int) -> None:
        """Watch the process that said HELLO at that time."""
        if process.session in self._watched or len(self._watched) >= MAX_WATCHED or process.pid <= 0:
            return
        room = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTORS_SHARE
        descriptor = open_pidfd(process.pid) if self._descriptors < room else None
        self._descriptors += descriptor is not None
        start = process_start(process.pid)
        if start is not None and start_after(process.pid, hello_unix_s):
            start = None  # somebody else has its pid by now
        watched = _Watched(process, start, descriptor)
        if start is None:
            self._close_pidfd(watched)
            watched.exited_ns, watched.exit_code = now_ns, self._codes.pop(process.pid, None)
        elif descriptor is not None:
            self._register(descriptor)
        if start is not None:
            self._kills.watch_process(process.pid, now_ns)
        self._watched[process.session] = watched
        self.find_counter(process.session)

    def find_counter(self, session: int) -> None:
        """Open the counter of its steps: a rank that reports before its steps are recorded makes it later."""
        watched = self._watched.get(session)
        if watched is not None and watched.start is not None and watched.counter is None:
            watched.counter = open_step_counter(watched.process)

    def note_message(self, session: int, now_ns: int, *, trains: bool = False) -> None:
        """Note that a message came: a process that was never seen runs all the same.

        `trains`: with steps, which come after a BYE only where another group was made.
        """
        watched = self._watched.get(session)
        if watched is not None and trains:
            watched.said_bye = False
        if watched is not None and watched.start is None and not watched.reported:
            # The silence is counted anew from each message.
            watched.exited_ns = now_ns

    def note_bye(self, session: int, *, left_group: bool = False) -> None:
        """Its exit is expected from now on; the exit code is still reported. `left_group`: it may run on."""
        watched = self._watched.get(session)
        if watched is not None:
            watched.said_bye, watched.left_group = True, left_group

    def forget_session(self, session: int) -> None:
        """Another process took its rank, or all of its exit has been reported."""
        watched = self._watched.pop(session, None)
        if watched is not None:
            self._close_pidfd(watched)
            self._kills.forget_process(watched.process.pid)
            if watched.counter is not None:
                os.close(watched.counter)

    def note_readable(self, descriptors: Collection[int], now_ns: int) -> None:
        """Note that the poller found these pidfds readable: their processes have exited."""
        for watched in self._watched.values():
            if watched.descriptor is not None and watched.descriptor in descriptors:
                self._note_exited(watched, now_ns)

    def note_exit_code(self, pid: int, code: int, now_ns: int) -> None:
        """Note that the launcher has reaped this process; `code` as `subprocess` gives it."""
        if all(watched.process.pid != pid for watched in self._watched.values()):
            self._codes[pid] = code  # its HELLO may be in a file that is not read yet
            while len(self._codes) > MAX_WATCHED:
                self._codes.pop(next(iter(self._codes)))
        for watched in self._watched.values():
            if watched.process.pid != pid or watched.exit_code is not None:
                continue
            # The launcher's report may be older than this process: pids are used again.
            if watched.exited_ns is None and process_start(pid) == watched.start:
                continue  # it runs: an earlier process with its pid was meant
            watched.exited_ns = now_ns if watched.exited_ns is None else watched.exited_ns
            watched.exit_code = code

    def check_processes(self, now_ns: int) -> list[tuple[RankProcess, bool]]:
        """Check the processes, once a second. Returns those newly stopped (True) or continued (False)."""
        changed = []
        self._kills.read_all(now_ns)
        for watched in self._watched.values():
            if watched.exited_ns is not None:
                continue
            status = process_status(watched.process.pid)
            # Without a pidfd a pid is all there is, and that is reused: the start time tells.
            if watched.descriptor is None and process_start(watched.process.pid) != watched.start:
                self._note_exited(watched, now_ns)
            # After a BYE a stop is no news: the process ends.
            elif status is not None and status.start == watched.start and not watched.said_bye:
                watched.checks_stopped = watched.checks_stopped + 1 if status.state in "Tt" else 0
                stopped = watched.checks_stopped >= STOPPED_CHECKS
                # What was reported as stopped stays so until a check finds that it runs.
                stopped = stopped or (watched.stopped and watched.checks_stopped > 0)
                if stopped != watched.stopped:
                    watched.stopped = stopped
                    changed.append((watched.process, stopped))
        return changed

    def recall_stopped(self, session: int, stopped: bool) -> None:
        """Note what an earlier collector has reported: whether the process is stopped."""
        watched = self._watched.get(session)
        if watched is not None:
            watched.stopped = stopped

    @property
    def due_ns(self) -> int | None:
        """When an exit is to be reported; None: none is known of."""
        return min((watched.due_ns for watched in self._watched.values() if watched.due_ns), default=None)

    def take_exits(self, now_ns: int) -> list[RankExit]:
        """Exits that are due to be reported. One without an exit code may come again, when that is known."""
        exits = []
        for session, watched in list(self._watched.items()):
            due_ns = watched.due_ns
            if due_ns is None or now_ns < due_ns:
                continue
            assert watched.exited_ns is not None
            # The kernel's signal for it is SIGKILL. A rank whose worker it killed raises an exception.
            may_be = watched.exit_code in (-SIGKILL, 1)
            killed = self._kills.was_killed(watched.process.pid, now_ns) if may_be else None
            exits.append(watched.to_exit(watched.exited_ns)._replace(out_of_memory=killed))
            watched.reported = True
            if watched.exit_code is not None:
                # Without its code it stays: the launcher may report that later.
                self.forget_session(session)
        return exits

    def unaccounted_exits(self, now_ns: int) -> list[RankExit]:
        """Processes of which neither a BYE nor their exit is known, as if they had exited now."""
        return [
            watched.to_exit(now_ns)
            for watched in self._watched.values()
            if not watched.said_bye and not watched.reported
        ]

    def living_processes(self) -> list[RankProcess]:
        """Processes that run, and have not said BYE."""
        return [
            watched.process
            for watched in self._watched.values()
            if watched.exited_ns is None and not watched.said_bye
        ]

    @property
    def sessions(self) -> Collection[int]:
        """The sessions of all processes that are watched, also of those that have exited."""
        return self._watched.keys()

    def any_present(self) -> bool:
        """Whether any process runs, also one that has said BYE."""
        return any(watched.exited_ns is None for watched in self._watched.values())

    def close(self) -> None:
        """Forget all."""
        for session in list(self._watched):
            self.forget_session(session)

    def _note_exited(self, watched: _Watched, now_ns: int) -> None:
        watched.exited_ns = now_ns
        watched.exit_code = exit_code_of(watched.process.pid, watched.start, watched.descriptor)
        self._close_pidfd(watched)

    def _close_pidfd(self, watched: _Watched) -> None:
        if watched.descriptor is not None:
            # Taken out of the poller before it is closed: its number may be another file's at once.
            if watched.start is not None:
                self._unregister(watched.descriptor)
            os.close(watched.descriptor)
            watched.descriptor = None
            self._descriptors -= 1


def open_pidfd(pid: int) -> int | None:
    """A descriptor of a process; None: there is none to be had."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError):  # no such process, no such system call, or no descriptors left
        return None
