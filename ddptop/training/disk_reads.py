"""How much this process reads from disk in a step, as the kernel counts it: `read_bytes` of proc(5)."""

from __future__ import annotations

import time
from pathlib import Path

from ddptop.host.processes import read_counter
from ddptop.protocol.machine import Disk

IO = Path("/proc/self/io")  # psutil's io_counters() reads it too: most ranks need not load psutil for it


class DiskReads:
    """Divides what was read by the steps that it was read in."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None
        """The step of the reading before, and the bytes until then."""

    def take_reading(self, step: int) -> Disk | None:
        """Per step since the reading before; None: not known, or the rank is still in the same step."""
        before = self._before
        if before is not None and step <= before[0]:
            return None
        # All threads of this process, and children that it has waited for.
        n_bytes = read_counter(IO, "read_bytes:")
        self._before = None if n_bytes is None else (step, n_bytes)
        if before is None or n_bytes is None:
            return None
        return Disk(
            t_ns=time.monotonic_ns(),
            step_read_bytes=max(0, n_bytes - before[1]) // (step - before[0]),
        )
