"""How long the training thread waited for a CPU: read, and unknown where it cannot be read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ddptop.training import cpu_wait
from ddptop.training.cpu_wait import DIVIDED_STEPS, LEAST_NS, LEAST_SHARE, UNKNOWN, CpuWait

SCHEDSTAT = Path("/proc/self/schedstat")
counted = pytest.mark.skipif(
    not SCHEDSTAT.exists() or SCHEDSTAT.read_text().split()[2:] in ([], ["0"]),
    reason="this kernel does not count how long threads wait for a CPU",
)


class Readings(CpuWait):
    """Reads these run delays."""

    def __init__(self, *readings: int) -> None:
        super().__init__()
        self.readings = [*readings]
        self.at = 0
        self.waits_for_others = True

    def _open_file(self) -> None:
        self._thread, self._descriptor = threading.get_ident(), 10**6

    def _read_delay(self) -> int:
        return self.readings.pop(0)

    def step(self, *, exposed: int = 0, step: int = 10 * LEAST_NS) -> int:
        """A step as long as `step`, in which communication is exposed for so long; what was waited in it."""
        self.at += step
        if exposed:
            self.last_gradient(self.at - exposed)
            self.backward_ends(self.at)
        self.step_ends(self.at)
        return self.take_wait()


LONG = 10 * LEAST_NS


def test_what_was_waited_in_exposed_communication_does_not_count() -> None:
    more = LONG + 300
    waits = Readings(100, more, more + 100, more + 160, 2 * more)
    assert waits.step() == UNKNOWN  # of the first step the begin is not known
    assert waits.step(exposed=LEAST_NS) == more - 100 - LEAST_NS  # all of it may have been waited
    assert waits.step(exposed=LEAST_NS) == more - 60


def test_it_is_unknown_where_the_last_gradient_was_not_seen() -> None:
    waits = Readings(0, LONG, 2 * LONG, 2 * LONG, 3 * LONG)
    waits.step()
    assert waits.step(exposed=1) == LONG - 1
    for waited in (UNKNOWN, 0):  # a short wait is none wherever it was
        waits.at += LONG
        waits.backward_ends(waits.at)
        waits.step_ends(waits.at)
        assert waits.take_wait() == waited
    assert waits.step(exposed=1) == LONG - 1


def test_it_is_read_there_only_soon_after_a_step_with_a_considerable_wait() -> None:
    waits = Readings(0, LONG, *[LONG] * 3 * DIVIDED_STEPS, LONG + 30, LONG + 50)
    waits.step()
    assert waits.step(exposed=LEAST_NS) == LONG - LEAST_NS
    for _ in range(DIVIDED_STEPS):
        assert waits.step(exposed=LEAST_NS) == 0
    assert len(waits.readings) == 2
    assert waits.step(exposed=LEAST_NS) == 0 and len(waits.readings) == 1


def test_one_rank_alone_reads_once_in_a_step() -> None:
    waits = Readings(*range(0, 4 * LONG, LONG))
    waits.waits_for_others = False
    steps = [waits.step(exposed=LEAST_NS) for _ in range(4)]
    assert steps == [UNKNOWN, *[LONG - LEAST_NS] * 3]
    assert waits.readings == []


def test_a_little_exposed_communication_is_not_read() -> None:
    waits = Readings(0, LONG, 2 * LONG)
    assert [waits.step(exposed=1) for _ in range(3)] == [UNKNOWN, LONG - 1, LONG - 1]


@pytest.mark.parametrize(("step", "known"), [(LEAST_NS, LEAST_NS), (round(LONG / LEAST_SHARE), LONG)])
def test_a_wait_that_is_a_small_part_of_a_step_is_given_as_none(step: int, known: int) -> None:
    waits = Readings(0, known - 1, 2 * known - 1)
    assert [waits.step(step=step) for _ in range(3)] == [UNKNOWN, 0, known]


def test_a_reading_that_fails_makes_its_steps_unknown() -> None:
    waits = Readings(100, UNKNOWN, UNKNOWN, 150, 150 + LONG)
    assert [waits.step() for _ in range(4)] == [UNKNOWN, UNKNOWN, UNKNOWN, LONG]


@counted
def test_it_is_that_of_the_thread_whose_step_ends() -> None:
    waits, taken = CpuWait(), []

    def step() -> None:
        waits.step_ends(0)
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


def open_counters() -> set[int]:
    """The descriptors under which this process has a `schedstat` open."""
    links = [*Path("/proc/self/fd").iterdir()]
    return {int(link.name) for link in links if link.exists() and link.readlink().name == "schedstat"}


@counted
def test_a_file_of_the_script_is_not_closed_and_no_step_is_known_from_it(tmp_path: Path) -> None:
    before, waits = open_counters(), CpuWait()
    waits.step_ends(0)
    waits.take_wait()
    (number,) = open_counters() - before
    theirs = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT)
    os.write(theirs, b"1 2 3")
    os.dup2(theirs, number)
    os.ftruncate(theirs, 0)
    waits.step_ends(0)
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
        waits.last_gradient(0)
        waits.backward_ends(0)
        waits.step_ends(0)
        assert waits.take_wait() == UNKNOWN
    assert len(asked) <= 1
