"""How long the training thread waited for a CPU: read, and unknown where it cannot be read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ddptop.training import cpu_wait
from ddptop.training.cpu_wait import LEAST_NS, READ_STEPS, UNKNOWN, CpuWait

SCHEDSTAT = Path("/proc/self/schedstat")
counted = pytest.mark.skipif(
    not SCHEDSTAT.exists() or SCHEDSTAT.read_text().split()[2:] in ([], ["0"]),
    reason="this kernel does not count how long threads wait for a CPU",
)


class Readings(CpuWait):
    """Reads these run delays, of a thread that has been off its CPU for a second more at each border."""

    def __init__(self, *readings: int) -> None:
        super().__init__()
        self.readings = [*readings]
        self.off_cpu = 0
        self._read_steps = READ_STEPS

    def _off_cpu(self) -> int:
        self.off_cpu += 10**9
        return self.off_cpu

    def _open_file(self) -> None:
        self._thread, self._descriptor = threading.get_ident(), 10**6

    def _read_delay(self) -> int:
        return self.readings.pop(0)


def test_what_was_waited_in_exposed_communication_does_not_count() -> None:
    waits = Readings(100, 130, 190, 200)
    waits.step_ends()
    assert waits.take_wait() == UNKNOWN  # of the first step the begin is not known
    waits.last_gradient()
    waits.backward_ends()
    waits.step_ends()
    assert waits.take_wait() == 100 - 60


def test_a_reading_that_fails_makes_its_steps_unknown() -> None:
    waits = Readings(100, UNKNOWN, UNKNOWN, 150, 170)
    for expected in (UNKNOWN, UNKNOWN, UNKNOWN, 20):
        waits.step_ends()
        assert waits.take_wait() == expected


class OffCpu(Readings):
    """A thread that was off its CPU for as long as given, at each border."""

    def __init__(self, off_cpu: list[int], *readings: int) -> None:
        super().__init__(*readings)
        self.times = off_cpu
        self._read_steps = self._newest = 0

    def _off_cpu(self) -> int:
        return self.times.pop(0)


def test_the_run_delay_is_read_only_where_the_thread_was_off_its_cpu_outside_exposed_communication() -> None:
    long = 10 * LEAST_NS
    waits = OffCpu([0, 0, long, long + LEAST_NS - 1, 2 * long, 3 * long, 4 * long], 100, 130, 200)
    waits.step_ends()
    assert waits.take_wait() == UNKNOWN
    waits.last_gradient()
    waits.backward_ends()
    waits.step_ends()
    assert waits.take_wait() == 0 and len(waits.readings) == 3
    for expected in (100, 30, 70):  # the first two: all since the last reading
        waits.step_ends()
        assert waits.take_wait() == expected


def test_it_is_read_where_the_thread_was_off_its_cpu_since_the_last_reading() -> None:
    less, more = LEAST_NS - 1, LEAST_NS
    waits = OffCpu([0, less, more, more + less, 3 * more], 100, 170, 400)
    waits._read_steps = READ_STEPS
    waits.step_ends()
    waits.take_wait()
    waits.last_gradient()
    waits.backward_ends()
    assert len(waits.readings) == 1, "not at the last gradient"
    waits.step_ends()
    waits.take_wait()
    assert len(waits.readings) == 1
    waits.step_ends()
    assert waits.take_wait() == 400 - 170


@counted
def test_it_is_that_of_the_thread_whose_step_ends() -> None:
    waits, taken = CpuWait(), []

    def step() -> None:
        waits.step_ends()
        taken.append(waits.take_wait())

    step()
    step()
    for _ in range(2):  # the second thread may have the number of the first
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    step()
    step()
    assert [one >= 0 for one in taken] == [False, True, False, False, False, True]
    waits.forget()


@counted
def test_a_file_of_the_script_is_not_closed_and_no_step_is_known_from_it(tmp_path: Path) -> None:
    waits = CpuWait()
    waits.step_ends()
    waits.take_wait()
    waits._read_steps, waits._last = READ_STEPS, UNKNOWN
    theirs = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(theirs, b"1 2 3")
    os.dup2(theirs, waits._descriptor)
    os.ftruncate(theirs, 0)
    number = waits._descriptor
    waits.step_ends()
    assert waits.take_wait() == UNKNOWN
    os.fstat(number)
    os.close(number)
    os.close(theirs)
    waits.forget()


def test_a_kernel_that_does_not_count_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pread(descriptor: int, *_: int) -> bytes:
        asked.append(descriptor)
        return b"0 0 0\n"

    monkeypatch.setattr(cpu_wait.os, "pread", pread)
    waits = CpuWait()
    for _ in range(3):
        waits.last_gradient()
        waits.backward_ends()
        waits.step_ends()
        assert waits.take_wait() == UNKNOWN
    assert len(asked) <= 1
