"""How long Python's garbage collections have paused the training thread in a step (`gc.callbacks`).

What the collector calls here is C alone, down to the clock: where it calls a Python function, a signal that
came during the collection raises KeyboardInterrupt in that function, the collector drops the exception, and
training goes on; and torch.compile would compile the function. A collection costs 1.4 us more of CPU time
with this, and a step without one 0.15 us (measured).
"""

from __future__ import annotations

import gc
import time
from collections import deque
from functools import partial
from threading import get_ident
from typing import Any

UNKNOWN = -1

MOST = 2048
"""Times kept, two of each collection: with more in one step its pauses are unknown."""


class _Times(map):  # type: ignore[type-arg]  # the elements are not used
    """To read the attribute `start` or `stop`, as the collector calls its phases, takes the next element."""

    start = stop = property(next)


class GcPauses:
    """Of the step that is running: time of the collections that the training thread ran."""

    def __init__(self) -> None:
        self.times: deque[tuple[int, int]] = deque(maxlen=MOST)
        """Thread and time (ns) of each begin and end of a collection; they do not nest."""
        self._ns = 0
        self._known = self._ended = False

    def step_ends(self) -> None:
        """The step ends here, unless this is called again before `take`; on the training thread."""
        times, self._ended = self.times, True
        if not times:
            return
        thread = get_ident()
        if len(times) == MOST:
            times.clear()
            self._ns = UNKNOWN
        while len(times) > 1:  # an odd one is of a collection that runs on another thread
            (began_on, began), (_, ended) = times.popleft(), times.popleft()
            if began_on == thread and self._ns >= 0:
                self._ns += ended - began

    def take(self) -> int:
        """ns in the step that has ended; UNKNOWN in the first one and where no end was noted."""
        paused, self._ns = self._ns if self._known and self._ended else UNKNOWN, 0
        self._known, self._ended = self._ended, False
        return paused

    def forget(self) -> None:
        """The next step is a first one."""
        self.times.clear()
        self._ns = 0
        self._known = self._ended = False


def watch_collector(pauses: GcPauses) -> None:
    """Have the collector note its times from now on."""
    times: Any = zip(iter(get_ident, None), iter(time.monotonic_ns, None), strict=False)
    gc.callbacks.append(partial(getattr, _Times(pauses.times.append, times)))
