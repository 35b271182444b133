"""How long Python's garbage collections have paused the training thread in a step (`gc.callbacks`).

What the collector calls here is C alone, down to the clock: where it calls a Python function, a signal that
came during the collection raises KeyboardInterrupt in that function, the collector drops the exception, and
training goes on; and torch.compile would compile the function. Which step it was in is found out later,
from its time.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any

UNKNOWN = -1

FIRST_NS, MORE_NS = 12_000, 1_400
"""CPU time that the first collection of a step takes more with this, and each further one, which no clock of
ours can see: 12 to 14 us in steps of 10 ms with one, where caches are cold, 1.4 us in a loop of nothing else
(`tests/benchmarks/bench_evidence.py`)."""

MOST = 4096
"""Times kept, two of each collection, until the publisher takes them, every 2 s at the latest: with more
the pauses are unknown."""


class _Times(map):  # type: ignore[type-arg]  # the elements are not used
    """To read the attribute `start` or `stop`, as the collector calls its phases, takes the next element."""

    start = stop = property(next)


class GcPauses:
    """Time of the collections that the training thread ran, by step: taken by the publisher, later."""

    def __init__(self) -> None:
        self.times: deque[tuple[int, int]] = deque(maxlen=MOST)
        """Thread and time (ns) of each begin and end of a collection; they do not nest."""
        self._known = False
        self._cost_ns = 0

    def step_closes(self) -> int:
        """The number of the training thread, on which this is called; UNKNOWN where times were lost."""
        # A full deque drops its oldest entry: begins and ends would no longer be pairs.
        if len(self.times) < MOST:
            return get_ident()
        self.times.clear()  # here, where no collection runs: what follows begins with a begin
        return UNKNOWN

    def take_paused(self, end: int, thread: int) -> int:
        """ns paused since the last call until `end`; UNKNOWN in a first step. `thread`: by `step_closes`."""
        times, was_known, paused, cost_ns = self.times, self._known, 0, FIRST_NS
        self._known = True
        with suppress(IndexError):  # cleared just now
            while 1 < len(times) < MOST - 1 and times[1][1] <= end:  # an odd one is of one that is running
                expected = times[1]
                (began_on, began), ended = times.popleft(), times.popleft()
                if ended is not expected:  # cleared between the two: this one is the begin of another pair
                    times.appendleft(ended)
                elif began_on == thread:
                    paused += ended[1] - began
                    self._cost_ns, cost_ns = self._cost_ns + cost_ns, MORE_NS
        return paused if was_known and thread != UNKNOWN else UNKNOWN

    def take_cost(self) -> int:
        """CPU time, in ns, that the training thread has spent on the times taken since the last call."""
        cost_ns, self._cost_ns = self._cost_ns, 0
        return cost_ns

    def forget_last(self) -> None:
        """Forget the step before: the next one is a first one."""
        self._known = False


def watch_collector(pauses: GcPauses) -> None:
    """Have the collector note its times from now on."""
    # Endless: neither function ever returns None.
    times: Any = zip(iter(get_ident, None), iter(time.monotonic_ns, None), strict=False)
    # The collector calls it with its phase and a dictionary, which `getattr` takes for the default.
    gc.callbacks.append(partial(getattr, _Times(pauses.times.append, times)))


def unwatch_collector() -> None:
    """Remove what `watch_collector` has added."""
    gc.callbacks[:] = [
        callback
        for callback in gc.callbacks
        if not (isinstance(callback, partial) and isinstance(next(iter(callback.args), None), _Times))
    ]
