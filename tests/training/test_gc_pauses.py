"""How long garbage collections pause the training thread: noted by step, and a signal is not lost in one."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator

import pytest

from ddptop.training.gc_pauses import FIRST_NS, MORE_NS, MOST, UNKNOWN, GcPauses, watch_collector


@pytest.fixture
def pauses() -> Iterator[GcPauses]:
    kept = gc.callbacks[:]
    gc.callbacks.clear()  # hypothesis has one in Python, in which a signal is dropped
    gc.freeze()  # what the tests before have left takes half a second to go through
    pauses = GcPauses()
    watch_collector(pauses)
    yield pauses
    gc.unfreeze()
    gc.callbacks[:] = kept


def step(pauses: GcPauses, *, collections: int = 0) -> int:
    for _ in range(collections):
        gc.collect()
    return pauses.take_paused(time.monotonic_ns(), pauses.step_closes())


def test_the_pauses_of_a_step_are_those_of_its_collections(pauses: GcPauses) -> None:
    gc.disable()
    try:
        assert step(pauses, collections=1) == UNKNOWN  # its begin is not known
        assert step(pauses) == 0
        for collections in (1, 20):
            for _ in range(collections):
                gc.collect()
            at = [time_ns for _, time_ns in pauses.times]
            assert len(at) == 2 * collections
            assert step(pauses) == sum(at[1::2]) - sum(at[::2]) > 0
        assert step(pauses) == 0
        assert (pauses.take_cost(), pauses.take_cost()) == (3 * FIRST_NS + 19 * MORE_NS, 0)
    finally:
        gc.enable()


def test_what_comes_after_the_step_has_ended_belongs_to_the_next_one(pauses: GcPauses) -> None:
    gc.disable()
    try:
        step(pauses)
        end = time.monotonic_ns()
        gc.collect()
        assert pauses.take_paused(end, pauses.step_closes()) == 0
        assert step(pauses) > 0
    finally:
        gc.enable()


def test_collections_of_another_thread_do_not_count(pauses: GcPauses) -> None:
    gc.disable()
    try:
        step(pauses)
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
        assert step(pauses) == 0
    finally:
        gc.enable()


def test_more_collections_than_are_kept_make_a_step_unknown(pauses: GcPauses) -> None:
    step(pauses)
    for _ in range(MOST):
        gc.collect(0)
    assert step(pauses) == UNKNOWN
    assert step(pauses) >= 0


def test_times_cleared_while_a_pair_is_taken_leave_the_later_ones_paired(pauses: GcPauses) -> None:
    class Cleared(deque[tuple[int, int]]):
        """Training clears it after the first time is taken, and a collection follows."""

        def popleft(self) -> tuple[int, int]:
            first = super().popleft()
            if first[1] == 10:
                self.clear()
                self.extend([(1, 1000), (1, 1007)])
            return first

    step(pauses)
    pauses.times = Cleared([(1, 10), (1, 20)])
    assert pauses.take_paused(end=100, thread=1) == 0
    assert pauses.take_paused(end=2000, thread=1) == 7


def test_a_signal_during_a_collection_still_interrupts_training(pauses: GcPauses) -> None:
    heap = [[] for _ in range(300_000)]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            for _ in range(500):
                gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heap
