"""The bounds of the rank's own stamps, measured from them."""

from __future__ import annotations

import statistics
from collections import deque

import pytest

from ddptop.training.bucket_timing import FIRST_TIMESTAMPS, HOOK_READY_BOUND_US, TimerBoundsReporter
from ddptop.training.medians import median_or_zero, upper_median
from ddptop.training.recorder import Recorder
from ddptop.training.step_record import StepRecord

US = 1_000


def step(ends_after_backward_us: list[int]) -> StepRecord:
    backward_end = 1_000_000_000
    calls = [["key", backward_end - 5_000 * US, backward_end + late * US] for late in ends_after_backward_us]
    return StepRecord(
        0, 0, backward_end, 0, 0, 0, 0, -1, -1, -1, backward_end, 1, 1, 0, None, calls
    )  # fmt: skip


def told(bounds: TimerBoundsReporter) -> tuple[float, float] | None:
    event = bounds.changed_bounds(2, 7)
    if event is None:
        return None
    assert (event.kind, event.rank, event.step) == ("timer", 2, 7)
    return float(event.fields["ready_us"]), float(event.fields["end_us"])  # type: ignore[arg-type]


def test_bounds_are_told_once_they_are_known() -> None:
    bounds = TimerBoundsReporter(deque([20 * US] * 100))
    bounds.add_steps([step([-100] * (FIRST_TIMESTAMPS - 1))])
    assert told(bounds) is None
    bounds.add_steps([step([-100])])
    assert told(bounds) == (20.0, 0.0)
    assert told(bounds) is None
    bounds.forget_sent()
    assert told(bounds) == (20.0, 0.0)


def test_late_callbacks_widen_the_bound_of_ends() -> None:
    bounds = TimerBoundsReporter(deque([20 * US]))
    bounds.add_steps([step([-100] * 20 + [40] * 29 + [900])])
    assert told(bounds) == (20.0, 40.0)


def test_they_are_told_again_when_one_has_doubled_or_halved() -> None:
    handed = deque([20 * US] * 10, maxlen=10)
    bounds = TimerBoundsReporter(handed)
    bounds.add_steps([step([-1] * FIRST_TIMESTAMPS)])
    assert told(bounds) == (20.0, 0.0)
    for us, expected in ((30, None), (45, (45.0, 0.0)), (40, None), (20, (20.0, 0.0))):
        handed.extend([us * US] * 10)
        assert told(bounds) == expected


def test_where_a_hook_is_timed_the_ready_bound_is_the_one_that_analysis_assumes() -> None:
    bounds = TimerBoundsReporter(deque())
    bounds.add_steps([step([-1] * FIRST_TIMESTAMPS)])
    assert told(bounds) == (HOOK_READY_BOUND_US, 0.0)


@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_medians_without_numpy_are_those_of_python(count: int) -> None:
    values = [(7 * number) % 101 for number in range(count)]
    assert (median_or_zero(values), upper_median(values)) == (
        statistics.median(values),
        statistics.median_high(values),
    )
    assert (median_or_zero([]), upper_median([])) == (0, 0)


@pytest.mark.parametrize("ready", [object(), None])
def test_a_stamp_that_is_no_host_time_is_not_measured(ready: object) -> None:
    recorder = Recorder()
    recorder.note_bucket("key", 1_000, 4_000)
    recorder.note_bucket("key", ready, 5_000)  # type: ignore[arg-type]
    assert list(recorder.handover_ns) == [3_000]
