"""When a bucket all-reduce was ready and when it ended, for each kind of device behind one interface."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from ddptop.runtime.recorder import BucketCall, now


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
