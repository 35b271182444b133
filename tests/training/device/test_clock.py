"""Moments on the device, put on the host's clock."""

from __future__ import annotations

from typing import Any

import pytest

from ddptop.training.device.clock import ATTEMPTS, DRIFT, PAUSE_NS, RENEW_NS, DeviceClock
from ddptop.training.device.events import EventPool
from tests.training.device.fake import FakeDevice, FakeEvent

HOUR_NS = 3_600_000_000_000


def host_ns(clock: DeviceClock, event: Any) -> int | None:
    reference = clock.reference_for(event)
    return None if reference is None else reference.host_ns(event)


def clock_of(device: FakeDevice) -> tuple[DeviceClock, EventPool]:
    pool = EventPool(device)
    return DeviceClock(device, pool, now=device.now, sleep=device.sleep), pool


def test_without_a_reference_nothing_is_said() -> None:
    device = FakeDevice()
    clock, pool = clock_of(device)
    assert clock.bound_ns is None
    assert host_ns(clock, pool.mark_event()) is None


def test_a_moment_is_known_within_the_bound() -> None:
    device = FakeDevice(look_ns=7_000)
    clock, pool = clock_of(device)
    assert clock.renew_reference()
    device.compute(12_345_678)
    event = pool.mark_event()
    device.now_ns += 20_000_000
    assert clock.bound_ns is not None and clock.bound_ns <= 7_000 + RENEW_NS * DRIFT
    found = host_ns(clock, event)
    assert found is not None and event.at_ns is not None
    assert abs(found - event.at_ns) <= clock.bound_ns + 1_000


def test_a_moment_before_the_reference_is_known_too() -> None:
    device = FakeDevice()
    clock, pool = clock_of(device)
    event = pool.mark_event()
    device.now_ns += 5_000_000
    clock.renew_reference()
    found = host_ns(clock, event)
    assert found is not None and event.at_ns is not None
    assert abs(found - event.at_ns) <= 2_000


def test_an_hour_later_float32_has_not_eaten_the_microseconds() -> None:
    device = FakeDevice()
    clock, pool = clock_of(device)
    for _ in range(HOUR_NS // RENEW_NS):
        clock.renew_reference()
        device.now_ns += RENEW_NS
    device.compute(3_000_000)
    event = pool.mark_event()
    device.now_ns += 3_000_000
    clock.renew_reference()
    found = host_ns(clock, event)
    assert found is not None and event.at_ns is not None
    assert abs(found - event.at_ns) <= 3_000


def test_a_young_reference_is_not_renewed() -> None:
    device = FakeDevice()
    clock, pool = clock_of(device)
    clock.renew_reference()
    made = pool.made
    device.now_ns += RENEW_NS // 2
    clock.renew_reference()
    assert pool.made == made


def test_a_device_that_is_held_up_gives_no_reference_and_does_not_hold_up_the_host() -> None:
    device = FakeDevice()
    clock, _ = clock_of(device)
    original = device.side_stream

    def stuck() -> object:
        stream = original()
        stream.busy_ns = HOUR_NS
        return stream

    device.side_stream = stuck  # type: ignore[method-assign]
    before = device.now_ns
    assert not clock.renew_reference()
    assert device.now_ns - before < 60_000_000
    assert len(device.streams) == ATTEMPTS, "another stream may lie in another hardware queue"
    before = device.now_ns
    assert not clock.renew_reference()
    assert device.now_ns == before, "it looked again at once"
    device.now_ns += PAUSE_NS
    device.side_stream = original  # type: ignore[method-assign]
    assert clock.renew_reference()


@pytest.mark.parametrize("lag_ns", [0, 5_000_000, 900_000_000])
def test_events_that_run_behind_the_host_keep_their_own_moments(lag_ns: int) -> None:
    device = FakeDevice()
    clock, pool = clock_of(device)
    clock.renew_reference()
    device.compute(lag_ns)
    first = pool.mark_event()
    device.compute(2_000_000)
    second = pool.mark_event()
    device.now_ns += lag_ns + 10_000_000
    a, b = host_ns(clock, first), host_ns(clock, second)
    assert a is not None and b is not None
    assert abs((b - a) - 2_000_000) <= 1_000


def test_a_reference_that_is_worse_than_the_old_one_is_not_taken() -> None:
    """Where the thread gets no CPU between two queries, or another process has the GPU."""
    device = FakeDevice()
    clock, _ = clock_of(device)
    assert clock.renew_reference()
    device.now_ns += RENEW_NS
    device.look_ns = 1_500_000
    before = clock.bound_ns
    assert before is not None
    assert clock.renew_reference()
    assert clock.bound_ns is not None
    assert clock.bound_ns < before + PAUSE_NS * DRIFT
    device.look_ns = 1_000
    device.now_ns += PAUSE_NS
    assert clock.renew_reference()
    assert clock.bound_ns < before


def test_on_a_gpu_that_others_use_the_last_attempt_waits_for_its_time_slice() -> None:
    device = FakeDevice()
    clock, _ = clock_of(device)
    original = device.side_stream

    def shared() -> object:
        stream = original()
        stream.busy_ns = device.now_ns + 30_000_000
        return stream

    device.side_stream = shared  # type: ignore[method-assign]
    assert clock.renew_reference()
    assert clock.bound_ns is not None
    assert clock.bound_ns < 200_000 + RENEW_NS * DRIFT


@pytest.mark.parametrize("apart", [0.0, 0.7e-6, -8e-6, 3e-4])
def test_the_second_reference_measures_how_far_the_clocks_drift_apart(apart: float) -> None:
    """The bound covers the drift until the next reference, and no more than that by much."""

    class Drifting(FakeEvent):
        def elapsed_time(self, end_event: Any) -> float:
            return super().elapsed_time(end_event) * (1 + apart)

    device = FakeDevice()
    device.new_event = lambda: Drifting(device)  # type: ignore[method-assign]
    clock, pool = clock_of(device)
    assert clock.renew_reference()
    device.now_ns += RENEW_NS
    assert clock.renew_reference()
    device.now_ns += RENEW_NS - 10_000_000
    event = pool.mark_event()
    found, bound_ns = host_ns(clock, event), clock.bound_ns
    assert found is not None and event.at_ns is not None and bound_ns is not None
    assert abs(found - event.at_ns) <= bound_ns
    assert bound_ns <= RENEW_NS * abs(apart) + 10_000
