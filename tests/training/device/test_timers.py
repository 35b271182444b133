"""Bucket timers, phase marks and scalars on a made-up GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddptop.protocol.messages import Phase
from ddptop.training import bucket_timing, own_cost
from ddptop.training.bucket_timing import timed_hook
from ddptop.training.device import events
from ddptop.training.device import events as cuda_timer
from ddptop.training.device.events import MAX_EVENTS, UNTIMED, CudaTimer, EventPool, GlooCudaTimer, NoEvent
from ddptop.training.device.marks import MAX_MARKS, Mark, PhaseMarks, device_phases
from ddptop.training.device.resolver import SLOTS, DeviceScalars
from ddptop.training.device.timing import DeviceTiming
from ddptop.training.guard import Guard
from ddptop.training.recorder import Recorder
from ddptop.training.step_record import MAX_LOSSES
from ddptop.training.step_times import Closed
from tests.training.device.fake import FakeDevice, FakeEvent, FakeStream

MS = 1_000_000


class NcclFuture:
    """Makes the current stream wait for the collective, as a CUDA future does."""

    def __init__(self, device: FakeDevice, done_ns: int) -> None:
        self._device = device
        self._done_ns = done_ns

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        self._device.current.busy_ns = max(self._device.current.busy_ns, self._done_ns)


class GlooFuture:
    """Calls back when the host is done."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []

    def add_done_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)


class HostFuture(GlooFuture):
    """Of a communication hook of the user's own that works on the host: to wait for it would block."""

    def done(self) -> bool:
        return False

    def wait(self) -> None:
        """Reached by the callback alone."""
        assert self.callbacks, "waited before the hook was done"


class FakeSlots:
    """Slots that are written when asked to."""

    def __init__(self) -> None:
        self.memory = [0.0] * SLOTS

    def copy(self, slot: int, tensor: Any) -> None:
        self.memory[slot] = float(tensor)

    def read(self, slot: int) -> float:
        return self.memory[slot]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Guard:
    """A guard that has caught nothing, where errors of events are counted."""
    made = Guard()
    monkeypatch.setattr(cuda_timer, "guard", made)
    return made


def test_nccl_ready_is_on_the_compute_stream_and_end_on_a_side_stream() -> None:
    device = FakeDevice()
    pool = EventPool(device)
    timer = CudaTimer(device, pool)
    compute = device.current
    device.compute(4 * MS)
    ready = timer.ready()
    call: list[Any] = ["key", ready, 0]
    timer.watch(call, NcclFuture(device, device.now_ns + 9 * MS))
    assert ready is not None
    assert ready.at_ns == device.now_ns + 4 * MS
    assert call[2].at_ns == device.now_ns + 9 * MS
    assert device.current is compute
    assert compute.busy_ns == device.now_ns + 4 * MS, "the compute stream was made to wait"


def test_collectives_share_one_side_stream() -> None:
    device = FakeDevice()
    timer = CudaTimer(device, EventPool(device))
    for done in (3, 1):
        timer.watch(["key", None, 0], NcclFuture(device, device.now_ns + done * MS))
    assert len(device.streams) == 1


@pytest.mark.parametrize("kind", ["nccl", "gloo"])
def test_nothing_is_recorded_into_a_graph(kind: str) -> None:
    device = FakeDevice()
    pool = EventPool(device)
    timer = CudaTimer(device, pool) if kind == "nccl" else GlooCudaTimer(device, pool)
    device.captures = True
    assert timer.ready() is None
    assert pool.made == 0


def test_gloo_with_cuda_tensors_ends_on_the_hosts_clock() -> None:
    device = FakeDevice()
    timer = GlooCudaTimer(device, EventPool(device))
    call: list[Any] = ["key", timer.ready(), 0]
    future = GlooFuture()
    timer.watch(call, future)
    assert call[2] == 0
    future.callbacks[0](future)
    assert isinstance(call[2], int) and call[2] > 0


def test_events_are_used_again() -> None:
    pool = EventPool(FakeDevice())
    for _ in range(100):
        pool.give_back(pool.mark_event(), pool.mark_event())
    assert pool.made == 2


def test_where_nobody_takes_finished_steps_no_more_events_are_made_than_may_be() -> None:
    device = FakeDevice()
    pool = EventPool(device)
    under_way = [pool.mark_event() for _ in range(MAX_EVENTS)]
    with pytest.raises(NoEvent):
        pool.take_event()
    assert (pool.made, pool.refused) == (MAX_EVENTS, 1)
    pool.give_back(under_way.pop())
    assert pool.take_event() is not None
    under_way.pop()  # a step that was dropped takes its events along
    assert pool.take_event() is not None


def test_without_events_a_step_is_timed_by_the_host_alone_and_nothing_counts_as_a_failure(
    monkeypatch: pytest.MonkeyPatch, fresh: Guard
) -> None:
    device = FakeDevice()
    pool = EventPool(device)
    phase_marks, timer = PhaseMarks(device, pool), CudaTimer(device, pool)
    phase_marks(Mark.FORWARD)
    call: list[Any] = ["key", timer.ready(), 0]
    monkeypatch.setattr(events, "MAX_EVENTS", pool.made)
    phase_marks(Mark.FORWARD_END)
    assert timer.ready() is None
    timer.watch(call, NcclFuture(device, device.now_ns))
    assert call[2] == UNTIMED
    assert phase_marks.take() == []
    assert fresh.count == 0


def test_a_hook_whose_future_holds_an_error_leaves_no_call_open(fresh: Guard) -> None:
    class Failed(NcclFuture):
        def wait(self) -> None:
            raise RuntimeError("the hook's own error")

    device = FakeDevice()
    timer = CudaTimer(device, EventPool(device))
    call: list[Any] = ["key", timer.ready(), 0]
    timer.watch(call, Failed(device, 0))
    assert (call[2], fresh.count) == (UNTIMED, 1)


def test_an_event_that_cannot_be_recorded_is_not_dropped() -> None:
    class Refusing(FakeEvent):
        def record(self, stream: Any = None) -> None:
            raise RuntimeError("device-side assert triggered")

    device = FakeDevice()
    pool = EventPool(device)
    event = Refusing(device)
    pool.give_back(event)
    with pytest.raises(RuntimeError):
        pool.mark_event()
    assert pool.take_event() is event


def test_marks_become_phases_on_the_devices_line() -> None:
    marks = [
        (Mark.FORWARD, 10), (Mark.FORWARD_END, 14), (Mark.BACKWARD, 15), (Mark.BACKWARD_END, 25),
        (Mark.FORWARD, 26), (Mark.FORWARD_END, 30), (Mark.BACKWARD, 31), (Mark.BACKWARD_END, 43),
        (Mark.OPTIMIZER, 44), (Mark.OPTIMIZER_END, 49),
    ]  # fmt: skip
    found = device_phases(marks, before=7)
    assert found is not None
    assert (found.begin, found.end) == (7, 49)
    assert (found.forward, found.backward, found.optimizer) == (8, 22, 5)
    assert (found.forward_at, found.backward_at, found.optimizer_at) == (10, 31, 44)
    assert found.backward_end == 43


def test_a_closure_inside_the_optimizer_keeps_its_own_names() -> None:
    marks = [
        (Mark.OPTIMIZER, 0), (Mark.FORWARD, 1), (Mark.FORWARD_END, 4), (Mark.BACKWARD, 4),
        (Mark.BACKWARD_END, 9), (Mark.OPTIMIZER_END, 12),
    ]  # fmt: skip
    found = device_phases(marks, before=None)
    assert found is not None
    assert (found.forward, found.backward, found.optimizer) == (3, 5, 4)


def test_a_phase_that_raised_does_not_spoil_the_others() -> None:
    marks = [
        (Mark.FORWARD, 0), (Mark.FORWARD, 5), (Mark.FORWARD_END, 9),
        (Mark.BACKWARD, 9), (Mark.BACKWARD_END, 12),
    ]  # fmt: skip
    found = device_phases(marks, before=None)
    assert found is not None
    assert (found.forward, found.backward, found.end) == (4, 3, 12)


def test_backward_is_divided_by_its_last_gradient_and_the_rest_by_what_comes_next() -> None:
    moments = [
        (Mark.FORWARD, 10), (Mark.FORWARD_END, 20), (Mark.BACKWARD, 23), (Mark.BACKWARD_END, 30),
        (Mark.FORWARD, 31), (Mark.FORWARD_END, 40), (Mark.BACKWARD, 42), (Mark.LAST_GRADIENT, 50),
        (Mark.BACKWARD_END, 57), (Mark.OPTIMIZER, 61), (Mark.OPTIMIZER_END, 70),
    ]  # fmt: skip
    found = device_phases(moments, before=4)
    assert found is not None
    assert found.exposed == 7
    assert (found.before_forward, found.before_backward, found.before_optimizer) == (6 + 1, 3 + 2, 4)
    unstamped = device_phases([moment for moment in moments if moment[0] != Mark.LAST_GRADIENT], before=4)
    assert unstamped is not None
    assert unstamped.exposed == -1
    assert unstamped._replace(exposed=7) == found


def test_the_last_of_two_stamps_counts_and_one_of_a_backward_that_raised_does_not() -> None:
    found = device_phases(
        [(Mark.BACKWARD, 1), (Mark.LAST_GRADIENT, 2), (Mark.BACKWARD, 3), (Mark.BACKWARD_END, 10)], before=0
    )
    assert found is not None
    assert found.exposed == -1
    found = device_phases(
        [(Mark.BACKWARD, 1), (Mark.LAST_GRADIENT, 2), (Mark.LAST_GRADIENT, 4), (Mark.BACKWARD_END, 10)],
        before=0,
    )
    assert found is not None
    assert found.exposed == 6


def test_waits_of_the_script_are_noted_by_phase_and_lie_in_no_place() -> None:
    found = device_phases(
        [
            (Mark.WAIT, 2), (Mark.WAIT_END, 5),
            (Mark.FORWARD, 10), (Mark.WAIT, 11), (Mark.WAIT_END, 13), (Mark.FORWARD_END, 20),
            (Mark.BACKWARD, 20), (Mark.LAST_GRADIENT, 25), (Mark.WAIT, 26), (Mark.WAIT_END, 29),
            (Mark.BACKWARD_END, 30), (Mark.WAIT, 31), (Mark.WAIT_END, 37), (Mark.OPTIMIZER, 40),
            (Mark.OPTIMIZER_END, 50),
        ],
        before=0,
    )  # fmt: skip
    assert found is not None
    assert found.waits == ([Phase.OTHER, 3], [Phase.FORWARD, 2], [Phase.OTHER, 6])
    assert (found.forward, found.exposed) == (10, 5)
    assert (found.before_forward, found.before_optimizer) == (7, 4)


def test_no_marks_no_phases() -> None:
    assert device_phases([], before=3) is None


def test_marks_are_bounded_and_skipped_in_a_graph() -> None:
    device = FakeDevice()
    marks = PhaseMarks(device, EventPool(device))
    for _ in range(2 * MAX_MARKS):
        marks(Mark.FORWARD)
    assert len(marks.take()) == MAX_MARKS
    device.captures = True
    marks(Mark.FORWARD)
    assert marks.take() == []
    assert marks.captured == 1


def test_a_scalar_is_read_when_the_device_has_it_and_not_before() -> None:
    device = FakeDevice(look_ns=0)
    scalars = DeviceScalars(EventPool(device), FakeSlots())
    device.compute(5 * MS)
    pending = scalars.take_scalar(0.25)
    assert pending is not None
    assert scalars.read_value(pending) is None
    device.now_ns += 5 * MS
    assert scalars.read_value(pending) == 0.25


def test_without_a_free_slot_a_scalar_is_left_unread() -> None:
    device = FakeDevice(look_ns=0)
    scalars = DeviceScalars(EventPool(device), FakeSlots())
    device.compute(5 * MS)
    taken = [scalars.take_scalar(float(i)) for i in range(SLOTS + 1)]
    assert taken[-1] is None
    device.now_ns += 5 * MS
    assert taken[1] is not None and scalars.read_value(taken[1]) == 1.0
    assert scalars.take_scalar(7.0) is not None


def test_a_value_that_nobody_asks_for_gives_its_slot_back_when_they_run_short() -> None:
    device = FakeDevice(look_ns=0)
    scalars = DeviceScalars(EventPool(device), FakeSlots())
    taken = [scalars.take_scalar(float(i)) for i in range(SLOTS + 3)]
    assert None not in taken
    assert taken[0] is not None and scalars.read_value(taken[0]) is None
    assert taken[3] is not None and scalars.read_value(taken[3]) == 3.0
    assert taken[-1] is not None and scalars.read_value(taken[-1]) == SLOTS + 2.0


def test_a_hook_that_works_on_the_host_is_not_waited_for() -> None:
    device = FakeDevice()
    timer = CudaTimer(device, EventPool(device))
    call: list[Any] = ["key", timer.ready(), 0]
    future = HostFuture()
    timer.watch(call, future)
    assert call[2] == 0
    future.callbacks[0](future)
    assert call[2].recorded == 1


def test_a_device_that_refuses_neither_stops_a_collective_nor_a_phase(
    monkeypatch: pytest.MonkeyPatch, fresh: Guard
) -> None:
    device = FakeDevice()
    pool = EventPool(device)
    monkeypatch.setattr(device, "new_event", lambda: 1 // 0)
    assert CudaTimer(device, pool).ready() is None
    assert GlooCudaTimer(device, pool).ready() is None
    PhaseMarks(device, pool)(Mark.FORWARD)
    assert fresh.count == 3


def test_events_are_recorded_on_the_devices_own_stream_whatever_device_the_thread_has() -> None:
    class Elsewhere(FakeDevice):
        def __init__(self) -> None:
            super().__init__()
            self.own = FakeStream()

        def stream(self) -> FakeStream:
            return self.own

    device = Elsewhere()
    device.own.busy_ns = device.now_ns + 7 * MS
    event = EventPool(device).mark_event()
    assert isinstance(event, FakeEvent)
    assert event.at_ns == device.own.busy_ns


def test_the_publishers_thread_is_not_concerned_by_captures_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modes = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
            modes.append(mode._obj.value)

    monkeypatch.setattr(events.ctypes, "CDLL", Driver)
    events.ignore_captures()
    assert modes == [1]
    monkeypatch.undo()
    events.ignore_captures()  # also where there is no driver


def test_losses_of_a_step_that_never_ends_do_not_grow() -> None:
    recorder = Recorder()
    for _ in range(2 * MAX_LOSSES):
        recorder.backward_begins(("pending",))
        recorder.backward_ends()
    loss, _ = recorder.losses.take_loss()
    assert len(loss) == MAX_LOSSES


def test_a_scalar_of_another_device_is_left_unread() -> None:
    timing = DeviceTiming(FakeDevice(), FakeSlots(), index=-1)  # a CPU tensor says -1
    assert timing.take_scalar(torch.tensor(1.5)) is not None
    timing.index = 0
    assert timing.take_scalar(torch.tensor(1.5)) is None


def test_waiting_for_a_full_queue_of_the_device_is_none_of_our_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is counted as cost; a wait outside of that takes nothing from it."""

    class Full(FakeEvent):
        def record(self, stream: Any = None) -> None:
            device.now_ns += 5 * MS  # until a kernel has ended; the driver spins
            super().record(stream)

    device = FakeDevice()
    pool = EventPool(device, now=device.now)
    recorder = Recorder()
    recorder.marks = marks = PhaseMarks(device, pool)
    monkeypatch.setattr(own_cost, "cpu_now", device.now)
    recorder.on.choose_methods(timed=True)
    pool.cost_clock = device.now  # as in a step whose cost is measured
    for counted in (True, False):
        pool.give_back(Full(device))
        if counted:
            recorder.on.forward_begins(True)
        else:
            marks(Mark.LAST_GRADIENT)
    assert pool.blocked_ns == 5 * MS
    recorder.add_cost(20_000)
    recorder.on.forward_ends()
    recorder.shadow_step_ends(0)
    (_, _, closed) = recorder.records[-1]
    assert closed is not None
    assert Closed(*closed).cost == 20_000
    assert pool.cost_clock is recorder.cost_clock


def test_the_time_of_another_clock_is_no_wait() -> None:
    """The training thread begins a step whose cost is measured while the publisher records an event."""
    device = FakeDevice()
    pool = EventPool(device, now=device.now)

    class Meanwhile(FakeEvent):
        def record(self, stream: Any = None) -> None:
            pool.cost_clock = device.now
            super().record(stream)

    pool.give_back(Meanwhile(device))
    pool.mark_event()
    assert pool.blocked_ns == 0


def test_a_hook_records_no_event_in_a_step_without_detail() -> None:
    device = FakeDevice()
    pool = EventPool(device)
    recorder = Recorder()
    recorder.detail = False
    future = NcclFuture(device, device.now_ns)
    hook = timed_hook(lambda _state, _bucket: future, 0, recorder, CudaTimer(device, pool))
    assert hook(None, None) is future
    assert pool.made == 0


def test_a_scalar_that_the_device_refuses_costs_no_slot(fresh: Guard) -> None:
    class Refused(FakeSlots):
        def copy(self, slot: int, tensor: Any) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    scalars = DeviceScalars(EventPool(FakeDevice()), Refused())
    for _ in range(SLOTS + 1):
        assert scalars.take_scalar(0.5) is None
    assert fresh.count == SLOTS + 1


@pytest.mark.parametrize("own", [True, False])
def test_what_a_hook_itself_waits_for_is_taken_from_no_cost(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """One in a collective of its own is marked; one in a call of ours is taken from what is counted."""

    class Full(FakeEvent):
        def record(self, stream: Any = None) -> None:
            device.now_ns += 5 * MS
            super().record(stream)

    device = FakeDevice()
    pool = EventPool(device, now=device.now)
    recorder = Recorder()
    recorder.marks = marks = PhaseMarks(device, pool)
    recorder.cost_clock = pool.cost_clock = device.now
    pool.give_back(FakeEvent(device) if own else Full(device), Full(device) if own else FakeEvent(device))

    def hook(_state: object, _bucket: object) -> NcclFuture:
        marks(Mark.WAIT)
        device.now_ns += 1_000
        return NcclFuture(device, device.now_ns)

    def key(_keys: object, _bucket: object) -> str:
        device.now_ns += 7_000
        return "key"

    monkeypatch.setattr(bucket_timing.BucketKeys, "key_of", key)
    timed_hook(hook, 0, recorder, CudaTimer(device, pool))(None, None)
    recorder.shadow_step_ends(0)
    (_, _, closed) = recorder.records[-1]
    assert closed is not None
    assert Closed(*closed).cost == 7_000


def test_a_device_that_refuses_even_to_be_the_current_one_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    timing = DeviceTiming(device, FakeSlots())
    assert not timing.has_failed()

    def refuse() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(device, "make_current", refuse)
    assert timing.has_failed()
