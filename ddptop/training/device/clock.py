"""Timestamps of the device on the host's CLOCK_MONOTONIC.

CUDA gives only the time between two events. One event whose time on the host is known makes all others
known: a reference. It is recorded on an own, empty stream and queried by the host until it has happened,
so its time lies between two readings of the host's clock; half their distance is the error bound.
`elapsed_time` is a float32 of milliseconds: about 1 us of resolution at 10 s and 0.25 ms at an hour, so a
new reference is taken every few seconds.
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

PAUSE_NS = 1_000_000_000
"""After attempts that all failed: the device is busy, and more queries would take the GIL from training."""


class Reference(NamedTuple):
    """An event and the time at which it happened."""

    event: CudaEvent
    at_ns: int
    """CLOCK_MONOTONIC."""
    bound_ns: int
    """The moment is wrong by at most this."""


class DeviceClock:
    """Turns events into host nanoseconds. All on one thread (the publisher's)."""

    def __init__(
        self, device: Device, pool: EventPool, *, now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._device = device
        self._pool = pool
        self._now = now
        self._stream: Any = None
        self._references: deque[Reference] = deque(maxlen=2)
        self._not_before_ns = 0

    @property
    def bound_ns(self) -> int | None:
        """Error bound of `host_ns`; None while there is no reference."""
        return self._references[-1].bound_ns if self._references else None

    def renew(self) -> bool:
        """Take a new reference where the last is old; returns whether there is one at all.

        The one before is kept: events that were recorded near it are read against it.
        """
        newest = self._references[-1] if self._references else None
        if newest is not None and self._now() - newest.at_ns < RENEW_NS:
            return True
        if self._now() < self._not_before_ns:
            return newest is not None
        best: Reference | None = None
        for _ in range(ATTEMPTS):
            reference = self._attempt()
            if reference is None:
                continue
            if best is None or reference.bound_ns < best.bound_ns:
                best = reference
            if best.bound_ns <= GOOD_NS:
                break
        if best is not None:
            self._references.append(best)
        else:
            self._not_before_ns = self._now() + PAUSE_NS
        return bool(self._references)

    def host_ns(self, event: CudaEvent) -> int | None:
        """The time of an event that has happened; None while there is no reference."""
        if not self._references:
            return None
        newest = self._references[-1]
        at = _moment(newest, event)
        if len(self._references) > 1 and at < newest.at_ns - RENEW_NS // 2:
            return _moment(self._references[0], event)
        return at

    def _attempt(self) -> Reference | None:
        if self._stream is None:
            self._stream = self._device.side_stream()
        before = self._now()
        try:
            event = self._pool.mark(self._stream)
        except NoEvent:
            return None
        end = before + WATCH_NS
        while True:
            queried = self._now()
            if event.query():
                after = self._now()
                return Reference(event, (before + after) // 2, (after - before) // 2)
            if queried > end:
                self._stream = None
                return None  # the event has not happened yet: the garbage collector frees it
            before = queried  # it had not happened: its time is not earlier than this query


def _moment(reference: Reference, event: CudaEvent) -> int:
    return reference.at_ns + round(reference.event.elapsed_time(event) * 1e6)
