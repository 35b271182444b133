"""`DeviceTiming`: everything that times one CUDA device in one rank, made at its first DDP model.

At a stall it gives the position of the device: in a kernel, in an all-reduce, or idle. The host of an NCCL
rank runs ahead: its stack and its flight recorder show what was launched, not what runs. The flight recorder
has a collective as `scheduled` until it has completed (its start is recorded under TORCH_NCCL_ENABLE_TIMING
only), whether the device waits in it or has not reached it. The events of the bucket timer distinguish the
two: `ready` happens when the compute stream has reached the all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ddptop.protocol.machine import Memory
from ddptop.protocol.messages import Event, Scalar
from ddptop.training.bucket_timing import BucketTimer
from ddptop.training.device.clock import DeviceClock
from ddptop.training.device.events import (
    CudaDevice,
    CudaEvent,
    CudaTimer,
    Device,
    EventPool,
    GlooCudaTimer,
    keep_forever,
)
from ddptop.training.device.marks import Mark, PhaseMarks
from ddptop.training.device.resolver import DeviceScalars, PinnedSlots, Slots, StepResolver
from ddptop.training.medians import upper_median
from ddptop.training.recorder import Recorder, now
from ddptop.training.step_record import BucketCall

IDLE, COMPUTE, COLLECTIVE, EITHER = "idle", "compute", "collective", "either"
"""States of a device at a stall: it has done all that it was given; a kernel does not end; an all-reduce does
not end; one of the two, in a step whose buckets are not timed."""

_NAMES = {Mark.FORWARD: "forward", Mark.BACKWARD: "backward", Mark.OPTIMIZER: "optimizer"}
_MOMENTS = (Mark.LAST_GRADIENT, Mark.WAIT, Mark.WAIT_END, Mark.BUFFERS)
"""Marks that bound no phase."""


class DevicePosition(NamedTuple):
    """The position of the device in a step."""

    state: str
    """IDLE, COMPUTE, COLLECTIVE or EITHER."""
    phase: str = ""
    """`forward`, `backward`, `optimizer`; empty: between them, or not known."""
    bucket: int = -1
    """The all-reduce of the step that it is in, or has not reached; -1: none."""


def device_position(marks: Sequence[tuple[int, CudaEvent]], calls: Sequence[BucketCall]) -> DevicePosition:
    """Where the device is in one step, which the host has finished or not: at the first thing that has not
    happened.

    Raises RuntimeError, in CUDA's words, after an error of the device's.
    """
    reached = _last_gradient_reached(marks)
    marks = [(mark, event) for mark, event in marks if mark not in _MOMENTS]
    number = next((i for i, (_, event) in enumerate(marks) if not event.query()), len(marks))
    pending = marks[number][0] if number < len(marks) else None
    phase = _phase_between(marks[number - 1][0] if number else None, pending)
    if pending is not None and pending != Mark.BACKWARD_END:
        return DevicePosition(COMPUTE, phase)
    # At the end of backward the all-reduces tell whether a kernel or a collective does not end.
    for bucket, (_key, ready, end) in enumerate(calls):
        if not _has_stamp_happened(ready):
            return DevicePosition(COMPUTE, "backward", bucket)
        if not _has_stamp_happened(end):
            return DevicePosition(COLLECTIVE, "backward", bucket)
    if pending is None:
        return DevicePosition(IDLE)
    return DevicePosition(COMPUTE if calls or reached is False else EITHER, phase)


def _last_gradient_reached(marks: Sequence[tuple[int, CudaEvent]]) -> bool | None:
    """Whether the device has computed the last gradient of the last backward; None: that is not marked."""
    for mark, event in reversed(marks):
        if mark == Mark.LAST_GRADIENT:
            return event.query()
        if mark == Mark.BACKWARD:
            break
    return None


def _phase_between(before: int | None, pending: int | None) -> str:
    """The phase that lies between two marks of a step; empty: none. `pending`: the first mark that has not
    happened."""
    if pending is not None and pending % 2:
        return _NAMES[Mark(pending - 1)]
    return _NAMES[Mark(before)] if before is not None and before % 2 == 0 else ""


def _has_stamp_happened(stamp: Any) -> bool:
    """A host's stamp is 0 until it is filled in."""
    if isinstance(stamp, int):
        return stamp != 0
    return bool(stamp.query())


NAME = "CUDA graph"


class GraphWatch:
    """Declares a phase from the capture of a step into a CUDA graph on, so that replays are no stall.

    A replay calls no Python, so that its steps are not recorded. On one thread. The phase ends with the
    second step after the capture: the first is the captured one, closed by the next.
    """

    def __init__(self, recorder: Recorder, marks: PhaseMarks) -> None:
        self._recorder = recorder
        self._marks = marks
        self._captured = 0
        self._step: int | None = None
        """In which the last capture was seen, while the phase lasts."""

    def changed_phase(self, rank: int) -> Event | None:
        """The beginning or the end of the phase, when it is due."""
        captured, step = self._marks.captured, self._recorder.step
        if captured != self._captured:
            self._captured = captured
            began, self._step = self._step is None, step
            return Event("phase_begins", now(), rank, step, {"name": NAME}) if began else None
        if self._step is not None and step > self._step + 1:
            self._step = None
            return Event("phase_ends", now(), rank, step, {"name": NAME})
        return None


ERROR_CHARACTERS = 200
"""Characters of CUDA's message that are kept; the lines after the first advise on debugging."""


class DeviceTiming:
    """Pool, clock, marks, scalars and resolver of a device, sharing one pool of events."""

    def __init__(self, device: Device, slots: Slots, *, index: int = 0) -> None:
        self.index = index
        self.device = device
        self.pool = EventPool(device)
        self.clock = DeviceClock(device, self.pool)
        self.marks = PhaseMarks(device, self.pool)
        self.scalars = DeviceScalars(self.pool, slots)
        self.resolver = StepResolver(self.clock, self.pool, self.scalars)
        self._graphs: GraphWatch | None = None
        self._sent: dict[str, Scalar] = {}

    def enter_thread(self) -> None:
        """Make the device the current one of this thread (the publisher's)."""
        self.device.make_current()

    @classmethod
    def of_device(cls, index: int) -> DeviceTiming:
        """The timing of a real device. Raises RuntimeError where CUDA refuses (no pinned memory left,
        say)."""
        return cls(CudaDevice(index), PinnedSlots(), index=index)

    def timer_for(self, backend: str) -> BucketTimer:
        """The bucket timer for a process group's backend on this device."""
        if "nccl" in backend:
            return CudaTimer(self.device, self.pool)
        return GlooCudaTimer(self.device, self.pool)

    def take_scalar(self, tensor: Any) -> Any:
        """Have a scalar tensor's value read later; None in a graph, where too many are waiting, or for a
        tensor on another device, whose copy an event of this one does not follow."""
        if tensor.get_device() != self.index or self.device.capturing():
            return None
        return self.scalars.take_scalar(tensor)

    def has_failed(self) -> bool:
        """Whether the device has reported an error. From any thread, whose current device it becomes."""
        try:
            self.device.make_current()
        except RuntimeError:
            return True
        return self.pool.failed

    def abandon_device(self, recorder: Recorder) -> None:
        """Never use CUDA again: the process is a forked child, or exits. No event is destroyed
        (`keep_forever`)."""
        keep_forever(self, recorder.records, recorder.calls, recorder.marks)
        recorder.marks = None
        recorder.drop_records()

    # -- on the publisher's thread ----------------------------------------------

    def bounds_ns(self) -> tuple[int, int] | None:
        """How far a bucket's ready and its end may be wrong; None while no moment is known.

        Both by the clock. An end may also be late by what the host took to record it, after the collective
        had been launched, where the device waited for that; the median, as of the host's timers.
        """
        bound_ns = self.clock.bound_ns
        if bound_ns is None:
            return None
        return bound_ns, bound_ns + upper_median(self.resolver.late_ns)

    def take_untimed(self) -> dict[str, Scalar]:
        """Counts for the run's card of what was not timed: those that have changed since the last call."""
        counts: dict[str, Scalar] = {
            "gpu.steps_given_up": self.resolver.lost,
            "gpu.events_refused": self.pool.refused,
            "gpu.captured_in_graphs": self.marks.captured,
        }
        news: dict[str, Scalar] = {
            name: count for name, count in counts.items() if count and count != self._sent.get(name)
        }
        self._sent.update(news)
        return news

    def graph_news(self, recorder: Recorder, rank: int) -> Event | None:
        """The beginning or the end of steps that run inside a CUDA graph, unrecorded."""
        if self._graphs is None:
            self._graphs = GraphWatch(recorder, self.marks)
        return self._graphs.changed_phase(rank)

    def position_event(self, recorder: Recorder, rank: int) -> Event:
        """The position of the device, as Event("device"): in the oldest step that it has not finished."""
        # The oldest one: the device has not come to any later.
        oldest = self.resolver.oldest
        if oldest is not None:
            step, marks, calls = oldest.step, oldest.marks, oldest.calls
        else:
            step, marks, calls = recorder.step, self.marks.pending_marks(), list(recorder.calls)
        try:
            position = device_position(marks, calls)
            if position.state == IDLE and not self.marks.device_is_idle():
                position = DevicePosition(EITHER)  # what it was given after the last mark
            fields: dict[str, Scalar] = {
                "state": position.state,
                "phase": position.phase,
                "bucket": position.bucket,
            }
        except RuntimeError as error:  # an error of a kernel of the user's, which any later call raises
            fields = {"state": "error", "error": str(error).partition("\n")[0][:ERROR_CHARACTERS]}
        return Event("device", now(), rank, step, fields)


def device_card(index: int) -> dict[str, Scalar]:
    """Entries of the run's card for a GPU; `gpu.bus_id` joins it with what the host's agent reads.

    Where torch does not give the PCI bus id (2.6), it is the UUID as NVML writes it.
    """
    import torch

    properties = torch.cuda.get_device_properties(index)
    card: dict[str, Scalar] = {
        "gpu.name": properties.name,
        "gpu.memory_bytes": properties.total_memory,
        "gpu.visible": torch.cuda.device_count(),
        "gpu.capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }
    if all(hasattr(properties, name) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")):
        card["gpu.bus_id"] = bus_id(properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    elif hasattr(properties, "uuid"):  # older torch
        card["gpu.bus_id"] = f"GPU-{properties.uuid}"
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
    if nccl is not None:
        card["nccl"] = ".".join(map(str, nccl))
    return card


def bus_id(domain: int, bus: int, device: int) -> str:
    """A PCI bus id as NVML writes it: `00000000:3B:00.0`."""
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def memory_of(index: int) -> Memory:
    """Counters of torch's allocator for a device: in the process, no synchronisation."""
    import torch

    stats = torch.cuda.memory_stats(index)
    return Memory(
        t_ns=now(),
        allocated_bytes=int(stats.get("allocated_bytes.all.current", 0)),
        reserved_bytes=int(stats.get("reserved_bytes.all.current", 0)),
        peak_bytes=int(stats.get("allocated_bytes.all.peak", 0)),
        retries=int(stats.get("num_alloc_retries", 0)),
    )
