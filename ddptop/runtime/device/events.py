"""CUDA events, pooled. What touches `torch.cuda` for timing goes through here, so that a fake can stand in.

Nothing in this package ever synchronises: an event is recorded, later asked whether it has happened
(`query`), and only then read.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from typing import Any, Protocol

MAX_POOLED = 4096
"""Idle events kept for the next steps: 60 buckets over 32 steps. An event costs a microsecond to make and
is never destroyed while the device may still write to it."""


_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of the CUDA driver's interface."""


class Event(Protocol):
    """The part of `torch.cuda.Event` that is used here."""

    def record(self, stream: Any = None) -> None:
        """Note the moment at which the stream (default: the current one) has done all it was given so far."""

    def query(self) -> bool:
        """Whether that moment has come."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`; both must have happened."""


class Device(Protocol):
    """What the timers need of a CUDA device."""

    def new_event(self) -> Event:
        """An event with timing."""

    def make_current(self) -> None:
        """Make it the calling thread's device, and let the thread ask about events at any time."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph: nothing may be recorded then."""

    def stream(self) -> Any:
        """Its current stream, also where the calling thread's current device is another one."""

    def side_stream(self) -> Any:
        """An own stream of high priority, made anew."""

    def on(self, stream: Any) -> Any:
        """A context in which `stream` is the current one."""


class CudaDevice:
    """A real device. Made on the training thread, whose current device it is."""

    def __init__(self, index: int) -> None:
        import torch

        self._cuda = torch.cuda
        self._index = index

    def new_event(self) -> Event:
        event: Event = self._cuda.Event(enable_timing=True)
        return event

    def make_current(self) -> None:
        self._cuda.set_device(self._index)
        _ignore_captures()

    def capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def stream(self) -> Any:
        return self._cuda.current_stream(self._index)

    def side_stream(self) -> Any:
        least, greatest = self._cuda.Stream.priority_range()
        return self._cuda.Stream(device=self._index, priority=min(least, greatest))

    def on(self, stream: Any) -> Any:
        return self._cuda.stream(stream)


class EventPool:
    """Events to be used again. Taken on the training thread, given back on the publisher's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._idle: deque[Event] = deque(maxlen=MAX_POOLED)
        self.made = 0
        """Events made so far."""

    def take(self) -> Event:
        """An event that nobody else has."""
        try:
            return self._idle.popleft()
        except IndexError:
            self.made += 1
            return self._device.new_event()

    def mark(self, stream: Any = None) -> Event:
        """An event recorded now, on `stream` or the device's current one."""
        event = self.take()
        # Always on a stream of this device: a thread may have another one as its current device (a script
        # that never calls `set_device`, beside autograd's threads), and an event stays with its first device.
        event.record(self._device.stream() if stream is None else stream)
        return event

    def give(self, *events: Event) -> None:
        """Take back events that have happened and have been read."""
        self._idle.extend(events)


def _ignore_captures() -> None:
    """Keep a graph that another thread captures from forbidding this one to ask about events.

    In the mode `global`, torch's default, a `cudaEventQuery` of any thread ends the capture with an error,
    unless that thread has said that captures of others do not concern it (cuThreadExchangeStreamCaptureMode).
    """
    with contextlib.suppress(OSError, AttributeError):  # no CUDA driver: ROCm, or a fake
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(
            ctypes.byref(ctypes.c_int(_THREAD_LOCAL))
        )
