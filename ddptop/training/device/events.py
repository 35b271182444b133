"""CUDA events, pooled. All use of `torch.cuda` for timing is here, so that a fake can replace it.

Nothing in this package ever synchronises: an event is recorded, later queried whether it
has happened, and only then read.

`CudaTimer` times bucket all-reduces by events, `ready` on the compute stream and `end` after the collective:
a clock of the host would show when a collective was enqueued, not when it ran. The publisher turns the
events into nanoseconds when they have happened (`StepResolver`).
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ddptop.training.guard import guard
from ddptop.training.recorder import now
from ddptop.training.step_record import BucketCall
from ddptop.training.torch_compat.cuda import Streams

MAX_EVENTS = 8192
"""Events of one process, under way or idle: 60 buckets over 64 steps. Where the publisher is starved or has
exited, finished steps are not read any more; without a bound each of them would keep its events."""


BLOCKED_NS = 50_000
"""A call of CUDA that takes more CPU time has waited, for the driver spins: a host that is far ahead of its
device fills its queue, and then whatever it launches next waits until a kernel has ended, ours or not."""


class NoEvent(RuntimeError):
    """MAX_EVENTS are in use: nothing more is recorded until some are given back."""


HIGH = -1
"""Priority of our streams, above the default of 0: their few markers must not queue behind kernels."""

_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of the CUDA driver's interface."""


class CudaEvent(Protocol):
    """The part of `torch.cuda.Event` that is used here."""

    def record(self, stream: Any = None) -> None:
        """Record the moment when the stream (default: the current one) has done all its work so far."""

    def query(self) -> bool:
        """Whether that moment has come."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`; both must have happened."""

    recorded_ns: int
    """When the host had recorded it (`EventPool.mark_event`), on CLOCK_MONOTONIC."""


class Device(Protocol):
    """What the timers need of a CUDA device."""

    def new_event(self) -> CudaEvent:
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
        self._streams = Streams(index)
        self.capturing, self.stream = self._streams.capturing, self._streams.current_stream

    def new_event(self) -> CudaEvent:
        event: CudaEvent = self._cuda.Event(enable_timing=True)
        return event

    def make_current(self) -> None:
        self._cuda.set_device(self._index)
        ignore_captures()

    def side_stream(self) -> Any:
        return self._cuda.Stream(device=self._index, priority=HIGH)

    def on(self, stream: Any) -> Any:
        return self._streams.on(stream)


class EventPool:
    """Events to be used again. Taken on the training threads, given back on the publisher's."""

    def __init__(self, device: Device, *, now: Callable[[], int] = now) -> None:
        self._device = device
        self._now = now
        self._idle: deque[CudaEvent] = deque()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        """Also those in dropped steps, which are freed with their last reference."""
        self._first: CudaEvent | None = None
        self.cost_clock: Callable[[], int] = int
        """As the recorder's, in the step that is running."""
        self.blocked_ns = 0
        """CPU time in which our calls of CUDA have waited for the device: the next one of the training would
        have waited instead, so that it is none of our cost."""
        self.refused = 0
        """Events that could not be taken."""

    @property
    def made(self) -> int:
        """Events there are, idle or under way."""
        return len(self._all)

    @property
    def exhausted(self) -> bool:
        """Whether none can be taken now."""
        return not self._idle and len(self._all) >= MAX_EVENTS

    def take_event(self) -> CudaEvent:
        """An event that is not in use. Raises NoEvent where too many are under way."""
        try:
            return self._idle.popleft()
        except IndexError:
            pass
        if len(self._all) >= MAX_EVENTS:
            self.refused += 1
            raise NoEvent
        event = self._device.new_event()
        self._all.add(event)
        # Kept to ask whether the device has failed.
        self._first = self._first or event
        return event

    def mark_event(self, stream: Any = None, clock: Callable[[], int] | None = None) -> CudaEvent:
        """An event recorded now, on `stream` or the current one. Raises NoEvent, or what CUDA raises.

        `clock`: to count what it waits; None: that of the step.
        """
        event = self.take_event()
        clock = clock or self.cost_clock
        began = clock()
        try:
            # Always on a stream of this device: a thread may have another one as its current device (a script
            # that never calls `set_device`, beside autograd's threads), and an event stays with its first.
            event.record(self._device.stream() if stream is None else stream)
        except BaseException:
            # Not dropped: after an error of the device's its destructor may end the process (see
            # `keep_forever`).
            self._idle.append(event)
            raise
        event.recorded_ns = self._now()
        self.note_call(clock, began)
        return event

    def note_call(self, clock: Callable[[], int], began: int) -> None:
        """Note that a call of CUDA has returned that began then, by this clock: by `cost_clock` as it was
        then."""
        spent = clock() - began
        if spent > BLOCKED_NS:
            self.blocked_ns += spent

    def give_back(self, *events: CudaEvent) -> None:
        """Take back events that have happened and have been read."""
        self._idle.extend(events)

    @property
    def failed(self) -> bool:
        """Whether the device has reported an error: CUDA repeats it in every call from then on."""
        try:
            if self._first is not None:
                self._first.query()
        except RuntimeError:
            return True
        return False

    def note_error(self, error: Exception) -> None:
        """Count an error as a failure of ours, unless it is the device's: training gets that one too."""
        if not self.failed:
            guard.caught(error)


def keep_forever(*things: object) -> None:
    """Let these, and the events in them, never be destroyed.

    The destructor of a CUDA event asks CUDA for the current device. In a forked child, and after an error of
    the device's, the answer is an error, which a destructor of C++ can only turn into the end of the process.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def ignore_captures() -> None:
    """Keep a graph that another thread captures from forbidding this one to ask about events.

    In the mode `global`, torch's default, a `cudaEventQuery` of any thread ends the capture with an error,
    unless that thread has said that captures of others do not concern it (cuThreadExchangeStreamCaptureMode).
    """
    with contextlib.suppress(OSError, AttributeError):  # no CUDA driver: ROCm, or a fake
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(
            ctypes.byref(ctypes.c_int(_THREAD_LOCAL))
        )


UNTIMED = -1
"""The end of a call that will never be known."""


class CudaTimer:
    """Times buckets under NCCL, whose future is complete, on the host, as soon as the collective is enqueued.

    `future.wait()` then makes only the current stream wait, which is an own side stream of high priority:
    neither the compute stream nor the host is blocked. (`work.wait()` would end the group's ownership of the
    tensors.)
    """

    def __init__(self, device: Device, pool: EventPool) -> None:
        self._device = device
        self._pool = pool
        self._side: Any = None

    def ready(self) -> CudaEvent | None:
        """An event on the compute stream; None while a graph is captured, where nothing may be recorded."""
        return _mark_ready(self._device, self._pool)

    def watch(self, call: BucketCall, future: Any) -> None:
        """Record the end on the side stream."""
        if future.done():
            self._note_end(call, future)
        else:  # a hook of the user's that works on the host: waiting here would delay the next bucket
            future.add_done_callback(partial(self._note_end, call))

    def _note_end(self, call: BucketCall, future: Any) -> None:
        try:
            self._mark_end(call, future)
        except Exception as error:  # noqa: BLE001 - the training boundary
            self._pool.note_error(error)

    def _mark_end(self, call: BucketCall, future: Any) -> None:
        end: Any = UNTIMED
        try:
            if self._side is None:
                self._side = self._device.side_stream()
            with self._device.on(self._side):
                clock = self._pool.cost_clock
                began = clock()
                future.wait()
                self._pool.note_call(clock, began)
                end = self._pool.mark_event(self._side)
        except NoEvent:
            pass
        finally:  # whatever CUDA or the hook raises: its step is not sent before the call has an end
            call[2] = end


class GlooCudaTimer:
    """Times buckets of CUDA tensors under gloo. The host moves the bytes, so the end is taken on the host.

    `ready` is still the device's: gloo waits for the gradient before it copies it.
    """

    def __init__(self, device: Device, pool: EventPool) -> None:
        self._device = device
        self._pool = pool

    def ready(self) -> CudaEvent | None:
        """As `CudaTimer.ready`."""
        return _mark_ready(self._device, self._pool)

    def watch(self, call: BucketCall, future: Any) -> None:
        """Note the end in the future's callback, on a gloo thread."""
        future.add_done_callback(partial(self._note_end, call))

    def _note_end(self, call: BucketCall, _future: Any) -> None:
        call[2] = now()


def _mark_ready(device: Device, pool: EventPool) -> CudaEvent | None:
    """An event on the compute stream, or None: whatever CUDA raises, the collective must be launched."""
    try:
        return None if device.capturing() else pool.mark_event()
    except NoEvent:
        return None
    except Exception as error:  # noqa: BLE001 - the training boundary
        pool.note_error(error)
        return None
