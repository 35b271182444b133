"""How long the training thread could have run but had no CPU in a step: its run delay, counted by the kernel.

It is the second number in /proc/self/task/TID/schedstat, in ns. Waiting for a cgroup's quota is part of it.
To read and to convert it takes 15 to 20 us in a training loop, where the code of it is cold (measured). So it
is read once in a step, at its end. Only in steps that follow one with considerable run delay and exposed
communication it is read at the begin and end of that too: there a rank waits for others anyway. One rank
alone waits for nobody, and reads no more than once: all of its short exposed communication is taken off.
"""

from __future__ import annotations

import os
from threading import get_ident, get_native_id

UNKNOWN = -1
"""There is no such file, or the kernel does not count (CONFIG_SCHED_INFO): then all numbers are 0."""

LONGEST = 64
"""Bytes that hold the three numbers."""

LEAST_NS, LEAST_SHARE = 50_000, 1 / 128
"""A run delay below one of these, in ns and of the step, is given as 0: the operating system lets another
thread run for longer."""

DIVIDED_STEPS = 16
"""In so many steps after one with more of both, the run delay in exposed communication is read."""


class CpuWait:
    """How long the training thread waited for a CPU (its run delay) since the last step, outside exposed
    communication.

    What cannot be read is unknown; nothing is raised. Moments are those of CLOCK_MONOTONIC in ns.
    """

    def __init__(self) -> None:
        self.waits_for_others = False
        """Whether any model is reduced with other ranks."""
        self._read_none()

    def _read_none(self, thread: int = 0) -> None:
        self._thread = thread
        self._descriptor = -1
        self._file: tuple[int, int] | None = None
        """Device and inode: a script may close what it did not open, and get the number for its own file."""
        self._divided_steps = 0
        """In so many steps exposed communication is still to be read."""
        self._begin = self._end = UNKNOWN
        """Run delay at the borders of the step."""
        self._began_ns = self._ended_ns = 0
        """When that was."""
        self._stamp = UNKNOWN
        """Run delay at the last gradient."""
        self._stamped_ns = UNKNOWN
        self._exposed = self._exposed_ns = 0
        """In exposed communication of the step: run delay, UNKNOWN where it is not read; and its length,
        UNKNOWN where a last gradient was not seen."""

    def last_gradient(self, at_ns: int) -> None:
        """Exposed communication begins; on any thread."""
        self._stamped_ns = at_ns
        if self._divided_steps:
            self._stamp = self._read_delay()

    def backward_ends(self, at_ns: int) -> None:
        """Exposed communication ends."""
        is_seen = min(self._exposed_ns, self._stamped_ns) >= 0
        self._exposed_ns = self._exposed_ns + at_ns - self._stamped_ns if is_seen else UNKNOWN
        exposed = UNKNOWN
        if self._divided_steps and min(self._exposed, self._stamp) >= 0:
            end = self._read_delay()
            exposed = self._exposed + end - self._stamp if end >= 0 else UNKNOWN
        self._exposed, self._stamp, self._stamped_ns = exposed, UNKNOWN, UNKNOWN

    def step_ends(self, at_ns: int) -> None:
        """The step ends here, unless this is called again before `take_wait`; on the training thread."""
        # A script may train in another thread than the one before.
        if get_ident() != self._thread:
            self._open_file()
        self._end, self._ended_ns = self._read_delay(), at_ns
        if self._end < 0 <= self._descriptor:
            self._open_file()  # that thread has ended and this one has got its number, or the file is another
            self._end, self._ended_ns = self._read_delay(), at_ns

    def take_wait(self) -> int:
        """ns in the step that has ended; UNKNOWN also in a step in which another thread takes over."""
        waited = self._end - self._begin if min(self._begin, self._end) >= 0 else UNKNOWN
        least = max(LEAST_NS, LEAST_SHARE * (self._ended_ns - self._began_ns))
        if 0 <= waited < least:
            waited = 0
        elif self._exposed_ns < 0:
            waited = UNKNOWN
        elif waited > 0:
            # Where it is not known what was waited in exposed communication, all of that may be.
            waited = max(0, waited - (self._exposed if self._exposed >= 0 else self._exposed_ns))
            if self._exposed_ns >= least and self.waits_for_others:
                self._divided_steps = DIVIDED_STEPS + 1
        if self._divided_steps:
            self._divided_steps -= 1
        self._begin, self._end, self._began_ns = self._end, UNKNOWN, self._ended_ns
        self._exposed = self._exposed_ns = 0
        return waited

    def forget(self) -> None:
        """Read no thread until a step ends: in a forked child it would be its parent's."""
        try:
            # Only if it is still our file: the script may have closed it, and have its number for another.
            if self._file is not None and _identity(self._descriptor) == self._file:
                os.close(self._descriptor)
        except OSError:
            pass
        self._read_none()

    def _read_delay(self) -> int:
        """Run delay so far in ns."""
        if self._descriptor < 0:
            return UNKNOWN
        try:
            return int(os.pread(self._descriptor, LONGEST, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return UNKNOWN

    def _open_file(self) -> None:
        self.forget()
        self._thread = get_ident()
        try:
            path = f"/proc/self/task/{get_native_id()}/schedstat"
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._file = _identity(self._descriptor)
            counted = set(os.pread(self._descriptor, LONGEST, 0).split()) != {b"0"}
        except OSError:
            counted = False
        if not counted:
            self.forget()
            self._read_none(get_ident())  # not to be tried again in every step


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
