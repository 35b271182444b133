"""Finished steps wait here until the device has done them; then their events are replaced by timestamps.

A step is recorded when the host has launched it, which may be long before the device has run it. On the
device's own line a step runs from the end of the optimizer step before it to the end of its own; where the
host hides a fetch of data behind computing, the step's data time is only what the device had to wait.

Losses and other scalars on a GPU are read without waiting for it (`DeviceScalars`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ddptop.protocol.messages import Flag
from ddptop.training.device.clock import DeviceClock
from ddptop.training.device.events import UNTIMED, CudaEvent, EventPool, keep_forever
from ddptop.training.device.marks import Mark, device_phases
from ddptop.training.step_record import BucketCall, LaterLosses, StepRecord, without_buffers

SLOTS = 256
"""Values under way at a time. With all slots in use a value is not read rather than waited for."""


class Slots(Protocol):
    """Pinned host memory of one float each."""

    def copy(self, slot: int, tensor: Any) -> None:
        """Enqueue the copy of a scalar tensor into a slot, on the current stream."""

    def read(self, slot: int) -> float:
        """What is in a slot."""


class PinnedSlots:
    """Real pinned memory: a non-blocking copy into it returns at once."""

    def __init__(self) -> None:
        import torch

        self._memory = torch.empty(SLOTS, dtype=torch.float32, device="cpu", pin_memory=True)
        self._views = [self._memory[slot] for slot in range(SLOTS)]

    def copy(self, slot: int, tensor: Any) -> None:
        self._views[slot].copy_(tensor.detach().reshape(()), non_blocking=True)

    def read(self, slot: int) -> float:
        return float(self._views[slot])


class Pending(NamedTuple):
    """A value that the device has yet to write."""

    number: int
    slot: int
    event: CudaEvent


class DeviceScalars:
    """Takes scalars on the training thread, gives their values to the publisher when the device has them.

    A value that is never read (a newer one replaced it) keeps its slot until slots run short.
    """

    def __init__(self, pool: EventPool, slots: Slots) -> None:
        self._pool = pool
        self._slots = slots
        self._free: deque[int] = deque(range(SLOTS))
        self._out: dict[int, Pending] = {}
        """Values under way or not yet asked for, by number, oldest first."""
        self._next = 0

    def take_scalar(self, tensor: Any) -> Pending | None:
        """Enqueue the copy of a scalar tensor; None where no slot or no event is free."""
        if self._pool.exhausted or (not self._free and not self._reclaim_slot()):
            return None
        slot = self._free.popleft()
        clock = self._pool.cost_clock
        began = clock()
        try:
            self._slots.copy(slot, tensor)
            self._pool.note_call(clock, began)
            pending = Pending(self._next, slot, self._pool.mark_event())
        except RuntimeError as error:
            self._free.append(slot)
            self._pool.note_error(error)
            return None
        self._next += 1
        self._out[pending.number] = pending
        return pending

    def read_value(self, pending: Pending) -> float | None:
        """The value, and its slot is free again; None while it is not written yet, or where it is lost."""
        try:
            if pending.number not in self._out or not pending.event.query():
                return None
        except RuntimeError:  # an error of the device's: the training thread gets it too
            return None
        value = self._slots.read(pending.slot)
        if self._out.pop(pending.number, None) is None:
            return None  # taken back meanwhile by the training thread
        self._pool.give_back(pending.event)
        self._free.append(pending.slot)
        return value

    def _reclaim_slot(self) -> bool:
        """Take back the oldest slot, if the device is done with it. Its event is not used again."""
        # A copy, made in one go: the publisher may take a value out of it at any moment.
        oldest = next(iter(list(self._out.values())), None)
        if oldest is None or not oldest.event.query():
            return False
        if self._out.pop(oldest.number, None) is not None:
            self._free.append(oldest.slot)
        return bool(self._free)


GIVE_UP_NS = 20_000_000_000
"""A step that the device has not finished so long after the host did is sent without its device times: a
stalled device must not keep its last finished steps from being shown."""

POLL_S = 0.005
"""Time between two polls at the end of training, when nothing else is to be done."""

MAX_HELD = 1024
"""Steps that wait at a time: a host that runs further ahead than this is not what DDP does."""


RECENT_ENDS = 256

AT_ONCE_NS = 50_000
"""An end that the device reached within this after the host had recorded it, it may have waited for."""


WAITED_STEPS = 8

WAITS_NS, WAITS_SHARE = 100_000, 0.01
"""A device that is behind its host by no more than this, or this share of the step, waits for it: by much
less than makes a rank slow (3 % of a step, and 0.3 ms)."""


class _HeldStep(NamedTuple):
    record: StepRecord
    since_ns: int


class StepResolver:
    """Turns steps with events into steps with nanoseconds, in order. All on the publisher's thread."""

    def __init__(
        self,
        clock: DeviceClock,
        pool: EventPool,
        scalars: DeviceScalars,
        *,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._pool = pool
        self._scalars = scalars
        self._now = now
        self._held: deque[_HeldStep] = deque()
        self._ended: int | None = None
        """When the step before ended on the device."""
        self._floor = 0
        """When the last step that was sent began: no later one may begin before it."""
        self.late_ns: deque[int] = deque(maxlen=RECENT_ENDS)
        """How late the last ends of all-reduces may be at most: 0 where the device came after the host."""
        self._waited: deque[bool] = deque(maxlen=WAITED_STEPS)
        self.lost = 0
        """Steps that were given up, without device times."""
        self.broken = False
        """The device has reported an error: in CUDA it answers no query any more."""

    @property
    def device_waits(self) -> bool:
        """Whether the device waits for the host: it has reached all marks of the last steps as soon as they
        were recorded, so that the host's times are the device's."""
        return len(self._waited) == WAITED_STEPS and all(self._waited)

    @property
    def waiting(self) -> int:
        """Steps that the device has yet to finish."""
        return len(self._held)

    @property
    def oldest(self) -> StepRecord | None:
        """The first of them."""
        return self._held[0].record if self._held else None

    def take_done(self, records: Iterable[StepRecord]) -> list[StepRecord]:
        """Add finished steps; returns those that the device has done by now, oldest first.

        After an error of the device's it is not queried any more: steps are sent with the times of the host.
        """
        now_ns = self._now()
        self._held.extend(_HeldStep(record, now_ns) for record in records)
        done: list[StepRecord] = []
        try:
            if not self.broken:
                self._drain_done(done, now_ns)
        except RuntimeError as error:
            self._pool.note_error(error)
            self.broken = True
        if self.broken:
            keep_forever(*self._held)
            done += [self._in_order(self._given_up(held_step.record)) for held_step in self._held]
            self._held.clear()
        return done

    def _drain_done(self, done: list[StepRecord], now_ns: int) -> None:
        # Without a reference no event can be placed in time.
        has_reference = not self._held or self._clock.renew_reference()
        while self._held:
            record, since_ns = self._held[0]
            if has_reference and _has_happened(record):
                done.append(self._in_order(self._resolve_step(record)))
            elif now_ns - since_ns > GIVE_UP_NS or len(self._held) > MAX_HELD:
                done.append(self._in_order(self._given_up(record)))
            else:
                break
            self._held.popleft()

    def flush_all(self, patience_s: float = 0.0) -> list[StepRecord]:
        """All remaining steps, as far as the device finishes them in that time: training has ended."""
        done = self.take_done(())
        end = time.monotonic() + patience_s
        while self._held and time.monotonic() < end:
            time.sleep(POLL_S)
            done += self.take_done(())
        done += [self._in_order(self._given_up(held_step.record)) for held_step in self._held]
        self._held.clear()
        return done

    def _in_order(self, record: StepRecord) -> StepRecord:
        """A step must not begin before the last one sent: it is moved as a whole.

        The host, whose times a step given up has, runs ahead of the device; and between two references of the
        clock the device's moments may jump by as much as these are wrong.
        """
        late = self._floor - record.begin
        self._floor = max(self._floor, record.begin)
        return record if late <= 0 else _move_later(record, late)

    def _resolve_step(self, record: StepRecord) -> StepRecord:
        moment = self._moment_reader(record)
        if record.marks and record.marks[0][0] == Mark.BACKWARD_END:  # the host's times are the device's
            return self._as_the_host_saw(record, moment)
        calls = [self._resolve_call(call, moment) for call in record.calls]
        if any(call[2] == UNTIMED for call in calls):  # a step with some of its buckets only would mislead
            calls, record = [], record._replace(flags=record.flags & ~Flag.DETAIL)
        marks = [(mark, moment(event)) for mark, event in record.marks]
        if self._ended is not None and marks:
            self._ended = min(self._ended, marks[0][1])
        times = device_phases(marks, self._ended)
        loss = self._read_loss(record)
        self._see_lag(record, [at_ns for _, at_ns in marks])
        self._pool.give_back(*_step_events(record))
        if times is None:
            self._ended = None
            waits = without_buffers(record.waits)
            return record._replace(calls=calls, loss=loss, marks=(), exposed=-1, waits=waits)
        self._ended = times.end
        exposed = record.exposed
        if exposed > 0:  # the host has stamped it, and runs ahead of the device
            exposed = times.exposed
        first = min(at_ns for at_ns in (times.forward_at, times.optimizer_at, times.end) if at_ns >= 0)
        # What the device did not have to wait for was hidden behind computing.
        data = min(record.data, max(0, first - times.begin))
        return record._replace(
            begin=times.begin,
            end=times.end,
            data=data,
            forward=times.forward,
            backward=times.backward,
            optimizer=times.optimizer,
            forward_at=times.forward_at,
            backward_at=times.backward_at,
            optimizer_at=times.optimizer_at,
            backward_end=times.backward_end,
            calls=calls,
            loss=loss,
            marks=(),
            exposed=exposed,
            before_forward=min(record.before_forward, max(0, times.before_forward - data)),
            before_backward=times.before_backward,
            before_optimizer=times.before_optimizer,
            waits=times.waits,
        )

    def _as_the_host_saw(self, record: StepRecord, moment: Callable[[CudaEvent], int]) -> StepRecord:
        """The record of a step in which only the ends of backwards are marked. The host's times hold, but
        where the device was late not all of them are known."""
        events = [event for _, event in record.marks]
        moments = [moment(event) for event in events]
        self._see_lag(record, moments)
        self._pool.give_back(*events)
        self._ended = max(record.end, *moments)
        exposed = record.exposed if self._waited[-1] else -1
        waits = without_buffers(record.waits)
        return record._replace(loss=self._read_loss(record), marks=(), exposed=exposed, waits=waits)

    def _see_lag(self, record: StepRecord, moments: list[int]) -> None:
        """Note whether the device reached the marks of a step as soon as they were recorded."""
        lags = [at_ns - event.recorded_ns for at_ns, (_, event) in zip(moments, record.marks, strict=True)]
        if lags:
            self._waited.append(max(lags) <= max(WAITS_NS, (record.end - record.begin) * WAITS_SHARE))

    def _resolve_call(self, call: BucketCall, moment: Callable[[CudaEvent], int]) -> BucketCall:
        key, ready, end = call
        moments = [stamp if isinstance(stamp, int) else moment(stamp) for stamp in (ready, end)]
        if not isinstance(ready, int) and not isinstance(end, int):
            # An end that happened as soon as it was recorded may be late: by what the host took to record it.
            at_once = moments[1] - end.recorded_ns < AT_ONCE_NS
            self.late_ns.append(end.recorded_ns - ready.recorded_ns if at_once else 0)
        return [key, *moments]

    def _moment_reader(self, record: StepRecord) -> Callable[[CudaEvent], int]:
        """What gives the moments of the events of a step, all of which have happened."""
        first = next(iter(_step_events(record)), None)
        if first is None:
            return _no_moment
        reference = self._clock.reference_for(first)
        assert reference is not None  # resolved only with one
        # From the first event: however old the reference is, milliseconds in float32 keep their microseconds.
        at_ns = reference.host_ns(first)
        return lambda event: at_ns + round(first.elapsed_time(event) * 1e6)

    def _read_loss(self, record: StepRecord) -> float | None:
        if not isinstance(record.loss, tuple):
            loss: float | None = record.loss
            return loss
        values = [self._scalars.read_value(pending) for pending in record.loss]
        losses = [value for value in values if value is not None]
        factor = record.loss.factor if isinstance(record.loss, LaterLosses) else 1
        # All of its values or none: a mean over some of the calls would be another figure.
        return factor * sum(losses) / len(losses) if losses and len(losses) == len(values) else None

    def _given_up(self, record: StepRecord) -> StepRecord:
        """The record with the times of the host alone: its buckets and its end on the device are not
        known."""
        self.lost += 1
        self._ended = None
        loss = None if isinstance(record.loss, tuple) else record.loss
        return record._replace(calls=[], marks=(), loss=loss, flags=record.flags & ~Flag.DETAIL, exposed=-1)


def _step_events(record: StepRecord) -> list[CudaEvent]:
    events = [event for _, event in record.marks]
    return events + [stamp for call in record.calls for stamp in call[1:] if not isinstance(stamp, int)]


def _no_moment(_event: CudaEvent) -> int:
    raise AssertionError  # of a step without events


def _move_later(record: StepRecord, ns: int) -> StepRecord:
    """The step as if it had happened so much later; unknown moments stay unknown."""
    names = ("begin", "end", "forward_at", "backward_at", "optimizer_at", "backward_end")
    moments = {
        name: moment_ns + ns if (moment_ns := getattr(record, name)) >= 0 else moment_ns for name in names
    }
    calls = [[key, ready + ns, end + ns if end > 0 else end] for key, ready, end in record.calls]
    return record._replace(calls=calls, **moments)


def _has_happened(record: StepRecord) -> bool:
    """Whether the device has done everything in a step. Newest events first: mostly one query is enough."""
    stamps = [event for _, event in reversed(record.marks)]
    stamps += [stamp for call in reversed(record.calls) for stamp in (call[2], call[1])]
    if any(isinstance(stamp, int) and not stamp for stamp in stamps):
        return False  # gloo has not called back yet
    if isinstance(record.loss, tuple):
        stamps += [pending.event for pending in record.loss if isinstance(pending, Pending)]
    return all(isinstance(stamp, int) or stamp.query() for stamp in stamps)
