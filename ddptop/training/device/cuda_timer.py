"""Bucket all-reduces timed by CUDA events: `ready` on the compute stream, `end` after the collective.

A host clock at the hand-over says when a collective was enqueued, not when it ran. So a call's two stamps
are events here, which the publisher turns into nanoseconds when they have happened (`StepResolver`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ddptop.training.device.events import Device, Event, EventPool, NoEvent
from ddptop.training.guard import guard
from ddptop.training.recorder import BucketCall, now

UNTIMED = -1
"""Stands for the end of a call of which nothing will be known."""


class CudaTimer:
    """For NCCL: its future is complete, on the host, as soon as the collective is enqueued.

    `future.wait()` then makes only the current stream wait, which is an own side stream of high priority:
    neither the compute stream nor the host is held up. (`work.wait()` would take the tensors out of the
    group's care.)
    """

    def __init__(self, device: Device, pool: EventPool) -> None:
        self._device = device
        self._pool = pool
        self._side: Any = None

    def ready(self) -> Event | None:
        """An event on the compute stream; None while a graph is captured, where nothing may be recorded."""
        return _marked(self._device, self._pool)

    def watch(self, call: BucketCall, future: Any) -> None:
        """Record the end on the side stream."""
        if future.done():
            self._mark_end(call, future)
        else:  # a hook of the user's that works on the host: to wait here would hold up the next bucket
            future.add_done_callback(partial(self._ended, call))

    def _ended(self, call: BucketCall, future: Any) -> None:
        try:
            self._mark_end(call, future)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _mark_end(self, call: BucketCall, future: Any) -> None:
        end: Any = UNTIMED
        try:
            if self._side is None:
                self._side = self._device.side_stream()
            with self._device.on(self._side):
                future.wait()
                end = self._pool.mark(self._side)
        except NoEvent:
            pass
        finally:  # whatever CUDA or the hook says: a call without an end would hold up its step
            call[2] = end


class GlooCudaTimer:
    """For gloo with CUDA tensors: the host moves the bytes, so the end is the host's moment.

    `ready` is still the device's: gloo waits for the gradient before it copies it.
    """

    def __init__(self, device: Device, pool: EventPool) -> None:
        self._device = device
        self._pool = pool

    def ready(self) -> Event | None:
        """As `CudaTimer.ready`."""
        return _marked(self._device, self._pool)

    def watch(self, call: BucketCall, future: Any) -> None:
        """Note the end in the future's callback, on a gloo thread."""
        future.add_done_callback(partial(self._ended, call))

    def _ended(self, call: BucketCall, _future: Any) -> None:
        call[2] = now()


def _marked(device: Device, pool: EventPool) -> Event | None:
    """An event on the compute stream, or None: whatever CUDA says, the collective must be launched."""
    try:
        return None if device.capturing() else pool.mark()
    except NoEvent:
        return None
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)
        return None
