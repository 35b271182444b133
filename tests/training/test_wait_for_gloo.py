"""Gloo's threads are given their turn before the interpreter ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.training import exit


@pytest.fixture(autouse=True)
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", sys)


class Tasks:
    """Threads as /proc shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, thread: int, name: str, state: str) -> None:
        (self.folder / str(thread)).mkdir(exist_ok=True)
        new = self.folder / str(thread) / "new"
        new.write_text(f"{thread} ({name}) {state} 1 2 3")
        new.replace(self.folder / str(thread) / "stat")


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_it_waits_for_a_thread_that_has_not_had_its_turn(tasks: Tasks) -> None:
    tasks.put(1, "python", "R")
    tasks.put(2, exit.GLOO_THREAD, "R")
    had_its_turn = threading.Event()  # set before it can be seen: the thread itself ends a moment later

    def turn() -> None:
        had_its_turn.set()
        tasks.put(2, exit.GLOO_THREAD, "S")

    timer = threading.Timer(0.05, turn)
    timer.start()
    assert exit.wait_for_gloo(tasks.folder, 60)
    assert had_its_turn.is_set()
    timer.join()


def test_it_does_not_wait_for_a_collective_under_way_or_for_other_threads(tasks: Tasks) -> None:
    tasks.put(1, "python", "R")
    tasks.put(2, exit.GLOO_THREAD, "S")
    tasks.put(3, "a) R (thread", "R")
    assert exit.wait_for_gloo(tasks.folder, 60)


def test_it_gives_up_at_the_deadline(tasks: Tasks) -> None:
    tasks.put(2, exit.GLOO_THREAD, "R")
    assert not exit.wait_for_gloo(tasks.folder, 0.01)


def test_threads_that_end_meanwhile_and_a_system_without_them_are_no_matter(tasks: Tasks) -> None:
    (tasks.folder / "7").mkdir()
    assert exit.wait_for_gloo(tasks.folder, 60)
    assert exit.wait_for_gloo(tasks.folder / "none", 60)


def test_ctrl_c_at_the_very_end_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(exit.atexit, "register", registered.append)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exit, "wait_for_gloo", interrupted)
    exit.wait_for_gloo_at_exit()
    for last in registered:  # none on Python 3.14
        last()
