"""Timestamps of the device on the host's CLOCK_MONOTONIC.

CUDA gives only the time between two events. One event whose time on the host is known makes all others
known: a reference. It is recorded on an own, empty stream and queried by the host until it has happened,
so its time lies between two readings of the host's clock; half their distance is the error bound.
`elapsed_time` is a float32 of milliseconds: about 1 us of resolution at 10 s and 0.25 ms at an hour, and the
clocks drift apart, so a new reference is taken every few seconds. Where several processes share a GPU, one
may be as inexact as a time slice of 2 ms: then the older one stays until it is the worse.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ddptop.training.device.events import CudaEvent, Device, EventPool, NoEvent

RENEW_NS = 4_000_000_000
"""Age at which a reference is replaced: float32 milliseconds resolve 0.5 us there."""

WATCH_NS = 2_000_000
"""Limit of one attempt. The publisher has the time; it holds the GIL for a microsecond a query."""

GOOD_NS = 20_000
"""A bound as good as this needs no second attempt: a launch and a query take 5 to 15 us."""

ATTEMPTS = 3
"""Each on another stream where the one before was blocked: streams share a few hardware queues (8, or one
under CUDA_DEVICE_MAX_CONNECTIONS=1), and behind a full one even an empty stream waits."""

PATIENT_NS, PAUSES_S = 50_000_000, 100e-6
"""The last attempt goes on for so long, with pauses: where several processes share a GPU, each waits for the
time slices of the others, of some ms."""

PAUSE_NS = 1_000_000_000
"""After attempts without a better reference: the device is busy, and more queries would take the GIL."""

DRIFT = 50e-6
"""By how much more a reference may be wrong with every unit of its age, until two of them have measured how
far the clocks drift apart: crystals are as good as this. 0.7e-6 on an H200."""


class Reference(NamedTuple):
    """An event and the time at which it happened."""

    event: CudaEvent
    at_ns: int
    """CLOCK_MONOTONIC."""
    bound_ns: int
    """The moment is wrong by at most this."""

    def host_ns(self, event: CudaEvent) -> int:
        """The time of an event that has happened."""
        return self.at_ns + round(self.event.elapsed_time(event) * 1e6)

    def bound_at(self, at_ns: int, drift: float) -> int:
        """How far a time read against it may be wrong."""
        return self.bound_ns + int(abs(at_ns - self.at_ns) * drift)

    def drift_to(self, later: Reference) -> float:
        """By how much the clocks may have drifted apart between the two, as a share of the time."""
        wrong_ns = abs(self.host_ns(later.event) - later.at_ns)
        unsure_ns = self.bound_ns + later.bound_ns
        took_ns = later.at_ns - self.at_ns
        crystals = wrong_ns - unsure_ns <= DRIFT * took_ns
        return min(DRIFT, (wrong_ns + unsure_ns) / took_ns) if crystals else (wrong_ns + unsure_ns) / took_ns


class DeviceClock:
    """Turns events into host nanoseconds. All on one thread (the publisher's)."""

    def __init__(
        self,
        device: Device,
        pool: EventPool,
        *,
        now: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device = device
        self._pool = pool
        self._now = now
        self._sleep = sleep
        self._stream: Any = None
        self.references: deque[Reference] = deque(maxlen=2)
        self._not_before_ns = 0
        self._drift = DRIFT

    @property
    def bound_ns(self) -> int | None:
        """Error bound of what happens until the next reference is due; None while there is none."""
        if not self.references:
            return None
        # At the last moment for which this reference is used.
        at_ns = max(self._now(), self.references[-1].at_ns + RENEW_NS)
        return min(reference.bound_at(at_ns, self._drift) for reference in self.references)

    def renew_reference(self) -> bool:
        """Take a new reference where the last is old; returns whether there is one at all.

        The one before is kept: events that were recorded near it are read against it.
        """
        newest = self.references[-1] if self.references else None
        now_ns = self._now()
        if now_ns < self._not_before_ns or (newest is not None and now_ns - newest.at_ns < RENEW_NS):
            return newest is not None
        best: Reference | None = None
        for number in range(ATTEMPTS):
            reference = self._attempt_reference(patient=number == ATTEMPTS - 1 and best is None)
            if reference is None:
                continue
            if best is None or reference.bound_ns < best.bound_ns:
                best = reference
            if best.bound_ns <= GOOD_NS:
                break
        # Not worse than the one before is by now, or renewing would make the clock worse.
        if best is not None and (
            newest is None or best.bound_ns <= max(GOOD_NS, newest.bound_at(best.at_ns, self._drift))
        ):
            if newest is not None:
                self._drift = newest.drift_to(best)
            self.references.append(best)
        else:
            self._not_before_ns = self._now() + PAUSE_NS
        return bool(self.references)

    def reference_for(self, event: CudaEvent) -> Reference | None:
        """The one that gives the time of an event that has happened with the least error; None: no reference.

        All events of a step are to be read against one: between two references their order might change.
        """
        if not self.references:
            return None
        at_ns = self.references[-1].host_ns(event)
        return min(self.references, key=lambda reference: reference.bound_at(at_ns, self._drift))

    def _attempt_reference(self, *, patient: bool) -> Reference | None:
        if self._stream is None:
            self._stream = self._device.side_stream()
        before = self._now()
        try:
            # `int` counts nothing: the CPU time of the publisher's thread is measured as a whole.
            event = self._pool.mark_event(self._stream, int)
        except NoEvent:
            return None
        end, patience = before + WATCH_NS, before + (PATIENT_NS if patient else 0)
        while True:
            queried = self._now()
            if event.query():
                after = self._now()
                return Reference(event, (before + after) // 2, (after - before) // 2)
            # Another stream next time: this one may share a hardware queue with a kernel that does not end.
            if queried > max(end, patience):
                self._stream = None
                return None  # the event has not happened yet: the garbage collector frees it
            before = queried  # it had not happened: its time is not earlier than this query
            if queried > end:
                self._sleep(PAUSES_S)
