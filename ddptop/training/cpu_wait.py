"""How long the training thread could have run but had no CPU in a step: its run delay, counted by the kernel.

It is the second number in /proc/self/task/TID/schedstat, in ns. Waiting for a cgroup's quota is part of it.
To read and to convert it takes 18 us in a training loop, where the code of it is cold (measured). So it is
read only in steps in which the thread was off its CPU outside exposed communication, and in those that
follow, and there only where it has been off its CPU since the last reading: elapsed time less CPU time, which
takes 1 us, is at least the run delay.
"""

from __future__ import annotations

import os
import time
from threading import get_ident, get_native_id

UNKNOWN = -1
"""There is no such file, or the kernel does not count (CONFIG_SCHED_INFO): then all numbers are 0."""

LONGEST = 64
"""Bytes that hold the three numbers."""

LEAST_NS = 50_000
"""Of a step in which the thread was off its CPU for less the run delay is given as 0: the operating system
lets another thread run for at least ten times as long."""

READ_STEPS = 16
"""In so many steps after one in which the thread was off its CPU for longer the run delay is read."""


class CpuWait:
    """Of the step that is running: run delay since the step before, without that in exposed communication.

    What cannot be read is unknown; nothing is raised.
    """

    def __init__(self) -> None:
        self._read_none()

    def _read_none(self, thread: int = 0) -> None:
        self._thread = thread
        self._cpu_clock = 0
        """Of the thread's CPU time, also for other threads."""
        self._descriptor = -1
        self._file: tuple[int, int] | None = None
        """Device and inode: a script may close what it did not open, and get the number for its own file."""
        self._off_begin = self._off_end = self._off_stamp = UNKNOWN
        """Time off the CPU at the borders of the step, and at its last gradient."""
        self._off_exposed = 0
        self._read_steps = 0
        """In so many steps the run delay is still to be read; in others the following are unknown."""
        self._begin = self._end = self._stamp = self._newest = UNKNOWN
        self._last = self._off_last = UNKNOWN
        """Of the last reading at a border: run delay, and time off the CPU."""
        self._exposed = 0

    def last_gradient(self) -> None:
        """Exposed communication begins; on any thread."""
        self._off_stamp = self._off_cpu()
        if self._read_steps:
            self._stamp = self._read_at(self._off_stamp)

    def backward_ends(self) -> None:
        """Exposed communication ends, and with it the step, unless this or `step_ends` is called again."""
        self.step_ends()
        self._off_exposed += self._off_end - self._off_stamp
        self._exposed += self._end - self._stamp

    def step_ends(self) -> None:
        """The step ends here, unless this is called again before `take_wait`; on the training thread."""
        # A script may train in another thread than the one before.
        if get_ident() != self._thread:
            self._open_file()
        self._off_end = self._off_cpu()
        if self._read_steps:
            self._end = self._read_at(self._off_end)
        if self._descriptor >= 0 and (self._off_end < 0 or (self._read_steps and self._end < 0)):
            self._open_file()  # that thread has ended and this one has got its number, or the file is another
            self._off_end, self._end, self._newest = self._off_cpu(), self._read_delay(), UNKNOWN

    def take_wait(self) -> int:
        """ns in the step that has ended; UNKNOWN also in a step in which another thread takes over."""
        begin, end, exposed = self._begin, self._end, self._exposed
        waited = self._off_end - self._off_begin - self._off_exposed
        if self._off_begin < 0 or self._off_end < 0:
            waited = UNKNOWN
        elif waited < LEAST_NS:
            waited = 0
        elif min(begin, end, exposed) >= 0:
            waited, self._read_steps = max(UNKNOWN, end - begin - exposed), READ_STEPS + 1
        else:  # some of the run delay since the last reading may be of exposed communication
            newest = end if self._read_steps else self._read_delay()
            both_known = newest >= 0 and self._newest >= 0
            waited = min(waited, newest - self._newest) if both_known else UNKNOWN
            self._newest, self._read_steps = newest, READ_STEPS + 1
        if self._read_steps:
            self._read_steps -= 1
            self._newest = max(end, self._newest)
        self._off_begin, self._off_end, self._off_exposed = self._off_end, UNKNOWN, 0
        self._begin, self._end, self._exposed = end, UNKNOWN, 0
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

    def _off_cpu(self) -> int:
        """Time so far in which the thread had no CPU or needed none, in ns, from an arbitrary begin."""
        if self._descriptor < 0:
            return UNKNOWN
        if get_ident() == self._thread:
            return _elapsed_ns() - _own_clock_ns()  # 0.3 us less than by the number of its clock
        try:
            return _elapsed_ns() - _clock_ns(self._cpu_clock)
        except OSError:  # the thread has ended
            return UNKNOWN

    def _read_at(self, off_cpu: int) -> int:
        """Run delay so far, of a thread that was off its CPU for so long: read where that has grown."""
        if self._last < 0 or off_cpu - self._off_last >= LEAST_NS:
            self._last, self._off_last = self._read_delay(), off_cpu
        return self._last

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
            self._cpu_clock = time.pthread_getcpuclockid(self._thread)
            counted = set(os.pread(self._descriptor, LONGEST, 0).split()) != {b"0"}
        except OSError:
            counted = False
        if counted:
            self._newest = self._read_delay()
        else:
            self.forget()
            self._read_none(get_ident())  # not to be tried again in every step


_elapsed_ns = time.monotonic_ns
_clock_ns = time.clock_gettime_ns
_own_clock_ns = time.thread_time_ns


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
