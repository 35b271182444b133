"""When a bucket all-reduce was ready and when it ended, for each kind of device behind one interface.

How far this rank's own bucket stamps may be wrong, measured from the stamps themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from ddptop.protocol.messages import Event
from ddptop.training.recorder import BucketCall, StepRecord, now


class BucketTimer(Protocol):
    """Stamps a bucket all-reduce. Called between the reducer and the collective: it must never block."""

    def ready(self) -> Any:
        """The moment the bucket is handed over, in ns of the host's CLOCK_MONOTONIC or as an event of the
        device; None where it must not be timed."""

    def watch(self, call: BucketCall, future: Any) -> None:
        """Fill in `call[2]`, the end, in ns when the collective behind `future` has completed, or at once
        as an event that will happen then."""


class HostTimer:
    """Host clock at the hand-over and in the future's completion callback: gloo, CPU tensors.

    The callback runs on a gloo thread that must first get the GIL, so the end is an upper bound: some 40 us
    late on an idle interpreter. The publisher clamps it to the end of backward, which waits for every bucket.
    """

    def ready(self) -> int:
        return now()

    def watch(self, call: BucketCall, future: Any) -> None:
        future.add_done_callback(partial(self._ended, call))

    def _ended(self, call: BucketCall, _future: Any) -> None:
        call[2] = now()


RECENT = 256
"""Stamps that are looked at: some ten steps of 25 buckets."""

FIRST = 32
"""Stamps after which the bounds are told for the first time; DDP's rebuild lies behind them."""

QUANTILE = 0.5
"""Figures are medians over steps, and what shifts every stamp by at most its own delay shifts a median by no
more than about the median delay. The tail (ms, when a busy machine takes the core away) is not in them."""

HOOK_READY_US = 100.0
"""Where a communication hook is timed there is no second stamp before the collective to hold the first one
against: what the hook does comes between. This is what analysis assumes of a rank that has told nothing."""

LEAST_US = 5.0
"""Changes below this are noise."""


class TimerBounds:
    """Follows the stamps of detailed steps and tells when their bounds have changed. On one thread."""

    def __init__(self, handed: deque[int], device_bound_ns: Callable[[], int | None] = lambda: None) -> None:
        """`handed`: how long after their ready stamps the last buckets were handed on, in ns.
        `device_bound_ns`: how far a device's moments may be wrong on the host's clock; None: no device."""
        self._handed = handed
        self._device_bound_ns = device_bound_ns
        self._late: deque[int] = deque(maxlen=RECENT)
        self._seen = 0
        self._told: tuple[float, float] | None = None

    def take(self, records: Iterable[StepRecord]) -> None:
        """Look at the completion stamps of finished steps."""
        for record in records:
            latest = record.backward_end
            for _key, ready, end in record.calls:
                if type(end) is int and end and latest >= ready:  # a device's stamps are no host times
                    self._seen += 1
                    self._late.append(max(0, end - latest))

    def news(self, rank: int, step: int) -> Event | None:
        """The bounds as an event, when they are first known and whenever one has doubled or halved."""
        if self._seen < FIRST:
            return None
        handed = list(self._handed)
        found = (quantile_us(handed) if handed else HOOK_READY_US, quantile_us(list(self._late)))
        device_ns = self._device_bound_ns()
        if device_ns is not None:  # an event happens with what it marks: all that is unsure is the clock
            found = (device_ns / 1e3, max(device_ns / 1e3, found[1]))
        told = self._told
        if told is not None and not any(_moved(old, new) for old, new in zip(told, found, strict=True)):
            return None
        self._told = found
        return Event("timer", now(), rank, step, {"ready_us": found[0], "end_us": found[1]})

    def forget_told(self) -> None:
        """Have `news` tell the bounds again: the collector is another one."""
        self._told = None


def quantile_us(values_ns: Sequence[int]) -> float:
    """The QUANTILE in microseconds; 0 of nothing."""
    ordered = sorted(values_ns)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * QUANTILE))] / 1e3, 1) if ordered else 0.0


def _moved(old: float, new: float) -> bool:
    low, high = sorted((old, new))
    return high - low > LEAST_US and high >= 2 * low
