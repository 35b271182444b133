"""Where a made-up device stands while a step does not move, and what is left of it at an end."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.training.device.events import EventPool
from ddptop.training.device.marks import Mark, PhaseMarks
from ddptop.training.device.timing import (
    COLLECTIVE,
    COMPUTE,
    EITHER,
    IDLE,
    NAME,
    DevicePosition,
    DeviceTiming,
    GraphWatch,
    device_position,
)
from ddptop.training.recorder import Recorder
from tests.training.device.fake import FakeDevice, FakeEvent, FakeStream
from tests.training.device.test_timers import MS, FakeSlots
from tests.training.test_recorder import records_of

NEVER = 10**15


class Step:
    """A step whose phases last a millisecond each, on a device that may get stuck anywhere in it."""

    def __init__(self) -> None:
        self.device = FakeDevice(look_ns=0)
        self.pool = EventPool(self.device)
        self.marks = PhaseMarks(self.device, self.pool)
        self.side = self.device.side_stream()
        self.calls: list[list[Any]] = []

    def phase(self, begin: Mark, ns: int = MS) -> None:
        self.marks(begin)
        self.device.compute(ns)
        self.marks(begin + 1)

    def bucket(self, *, compute_ns: int = MS, reduce_ns: int = MS) -> None:
        self.device.compute(compute_ns)
        ready = self.pool.mark_event()
        self.side.busy_ns = max(self.side.busy_ns, ready.at_ns or 0) + reduce_ns  # type: ignore[attr-defined]
        self.calls.append(["key", ready, self.pool.mark_event(self.side)])

    def end_backward(self) -> None:
        self.device.current.busy_ns = max(self.device.current.busy_ns, self.side.busy_ns)
        self.marks(Mark.BACKWARD_END)

    def found(self) -> DevicePosition:
        self.device.now_ns += 100 * MS
        return device_position(self.marks.pending_marks(), self.calls)


def test_a_device_that_has_done_all_is_idle() -> None:
    step = Step()
    assert step.found() == DevicePosition(IDLE)
    step.phase(Mark.FORWARD)
    step.marks(Mark.BACKWARD)
    step.bucket()
    step.end_backward()
    step.phase(Mark.OPTIMIZER)
    assert step.found() == DevicePosition(IDLE)


@pytest.mark.parametrize("stuck", [Mark.FORWARD, Mark.OPTIMIZER])
def test_a_kernel_that_does_not_end_is_told_with_its_phase(stuck: Mark) -> None:
    step = Step()
    for begin in (Mark.FORWARD, Mark.BACKWARD, Mark.OPTIMIZER):
        step.phase(begin, NEVER if begin == stuck else MS)
    assert step.found() == DevicePosition(COMPUTE, stuck.name.lower())


def test_a_kernel_before_a_bucket_is_told_from_its_all_reduce() -> None:
    stuck = Step()
    stuck.marks(Mark.BACKWARD)
    stuck.bucket()
    stuck.bucket(compute_ns=NEVER)
    stuck.end_backward()
    assert stuck.found() == DevicePosition(COMPUTE, "backward", 1)
    waits = Step()
    waits.marks(Mark.BACKWARD)
    waits.bucket()
    waits.bucket(reduce_ns=NEVER)
    waits.bucket()
    waits.end_backward()
    waits.phase(Mark.OPTIMIZER)
    assert waits.found() == DevicePosition(COLLECTIVE, "backward", 1)


def test_a_host_that_has_not_come_out_of_backward_yet_is_looked_at_by_its_buckets() -> None:
    step = Step()
    step.phase(Mark.FORWARD)
    step.marks(Mark.BACKWARD)
    step.bucket(reduce_ns=NEVER)
    assert step.found() == DevicePosition(COLLECTIVE, "backward", 0)


def test_without_bucket_detail_kernel_and_all_reduce_are_not_told_apart() -> None:
    step = Step()
    step.phase(Mark.BACKWARD, NEVER)
    assert step.found() == DevicePosition(EITHER, "backward")


def test_a_device_that_has_not_reached_its_last_gradient_computes() -> None:
    step = Step()
    step.marks(Mark.BACKWARD)
    step.device.compute(NEVER)
    step.marks(Mark.LAST_GRADIENT)
    step.marks(Mark.BACKWARD_END)
    assert step.found() == DevicePosition(COMPUTE, "backward")
    waits = Step()
    waits.marks(Mark.BACKWARD)
    waits.marks(Mark.LAST_GRADIENT)
    waits.device.compute(NEVER)
    waits.marks(Mark.BACKWARD_END)
    assert waits.found() == DevicePosition(EITHER, "backward")


def test_a_wait_of_the_script_bounds_no_phase() -> None:
    step = Step()
    step.phase(Mark.FORWARD)
    step.marks(Mark.WAIT)
    step.device.compute(NEVER)
    step.marks(Mark.WAIT_END)
    step.marks(Mark.BACKWARD)
    assert step.found() == DevicePosition(COMPUTE, "")


def test_between_two_phases_no_phase_is_named() -> None:
    step = Step()
    step.phase(Mark.FORWARD)
    step.device.compute(NEVER)  # the loss's own kernels
    step.marks(Mark.BACKWARD)
    assert step.found() == DevicePosition(COMPUTE, "")


def test_the_position_is_of_the_oldest_step_that_the_device_has_not_done() -> None:
    timing = DeviceTiming(FakeDevice(look_ns=0), FakeSlots())
    recorder = Recorder()
    recorder.marks = timing.marks
    for _ in range(3):
        recorder.forward_begins(True)
        timing.device.compute(NEVER)  # type: ignore[attr-defined]
        recorder.forward_ends()
        recorder.backward_begins(None)
        recorder.backward_ends()
        recorder.optimizer_begins(1)
        recorder.optimizer_ends(1)
    timing.resolver.take_done([])
    assert timing.position_event(recorder, 3).step == 2, "the step that the host is in, nothing is held"
    timing.resolver.take_done(records_of(recorder))
    told = timing.position_event(recorder, 3)
    assert (told.kind, told.rank, told.step) == ("device", 3, 0)
    assert told.fields == {"state": COMPUTE, "phase": "forward", "bucket": -1}
    assert decode(encode(told)) == told


@pytest.mark.parametrize(
    ("wanted", "busy", "state"),
    [(True, True, EITHER), (False, True, EITHER), (True, False, IDLE), (False, False, IDLE)],
)
def test_what_comes_after_the_last_mark_is_looked_at_too(wanted: bool, busy: bool, state: str) -> None:
    """The host waits for a kernel of its own, as in `loss.item()`, or the step is not marked."""
    timing = DeviceTiming(FakeDevice(look_ns=0), FakeSlots())
    timing.marks(Mark.BACKWARD_END)
    timing.marks.take()
    timing.marks.wanted = wanted
    timing.marks(Mark.FORWARD)
    timing.device.compute(NEVER if busy else 0)  # type: ignore[attr-defined]
    assert timing.position_event(Recorder(), 0).fields["state"] == state


def test_a_stream_that_is_captured_is_not_asked() -> None:
    """CUDA would end the capture with an error."""

    class Captured(FakeStream):
        def query(self) -> bool:
            raise AssertionError

    device = FakeDevice()
    device.current = Captured(device)
    timing = DeviceTiming(device, FakeSlots())
    timing.marks(Mark.BACKWARD_END)
    timing.marks.take()
    device.captures = True
    assert timing.position_event(Recorder(), 0).fields["state"] == IDLE


def test_what_cuda_reports_instead_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: FakeEvent) -> bool:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might ..."
        )

    timing = DeviceTiming(FakeDevice(), FakeSlots())
    timing.marks(Mark.FORWARD)
    monkeypatch.setattr(FakeEvent, "query", refuse)
    told = timing.position_event(Recorder(), 0)
    assert told.fields == {
        "state": "error",
        "error": "CUDA error: an illegal memory access was encountered",
    }


def test_steps_inside_a_graph_are_declared_until_steps_go_on() -> None:
    device = FakeDevice()
    recorder = Recorder()
    marks = PhaseMarks(device, EventPool(device))
    watch = GraphWatch(recorder, marks)
    assert watch.changed_phase(2) is None
    device.captures = True
    marks(Mark.FORWARD)
    began = watch.changed_phase(2)
    assert began is not None
    assert (began.kind, began.rank, began.fields) == ("phase_begins", 2, {"name": NAME})
    marks(Mark.FORWARD_END)
    assert watch.changed_phase(2) is None, "one capture is one phase"
    recorder.step += 1
    assert watch.changed_phase(2) is None, "the captured step is closed by the next one"
    recorder.step += 1
    ended = watch.changed_phase(2)
    assert ended is not None and ended.kind == "phase_ends"
    assert watch.changed_phase(2) is None


def test_what_could_not_be_timed_is_told_once() -> None:
    device = FakeDevice()
    timing = DeviceTiming(device, FakeSlots())
    assert timing.take_untimed() == {}
    device.captures = True
    timing.marks(Mark.FORWARD)
    assert timing.take_untimed() == {"gpu.captured_in_graphs": 1}
    assert timing.take_untimed() == {}


def test_no_event_is_destroyed_in_a_forked_child_or_at_the_end() -> None:
    destroyed = []

    class Mortal(FakeEvent):
        def __del__(self) -> None:
            destroyed.append(self)

    device = FakeDevice(look_ns=0)
    device.new_event = lambda: Mortal(device)  # type: ignore[method-assign]
    timing = DeviceTiming(device, FakeSlots())
    recorder = Recorder()
    recorder.marks = timing.marks
    recorder.forward_begins(True)
    recorder.note_bucket("key", timing.pool.mark_event())
    recorder.forward_ends()
    recorder.backward_begins((timing.scalars.take_scalar(0.5),))
    recorder.backward_ends()
    recorder.optimizer_begins(1)
    recorder.optimizer_ends(1)
    recorder.finish_step()
    assert len(recorder.records) == 1
    timing.pool.give_back(timing.pool.mark_event())
    timing.abandon_device(recorder)
    assert not recorder.records
    assert recorder.marks is None
    del timing, recorder
    gc.collect()
    assert destroyed == []
