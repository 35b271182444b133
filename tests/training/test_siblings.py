"""Ranks that another rank of the same numbering tells their rank."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop.host.runs import create_run_directory, remove_run_directory
from ddptop.training import siblings, start_report
from ddptop.training.siblings import Number
from ddptop.training.start_report import AwaitedNumber, StoreAsks
from ddptop.training.torch_compat import job_store
from tests.processes import until


@pytest.mark.parametrize(
    ("first", "rank", "world", "other", "told"),
    [
        (Number("mp47", 1), 0, 2, Number("mp47", 2), (1, 2)),
        (Number("mp47", 1), 8, 16, Number("mp47", 3), (10, 16)),  # the second host of two
        (Number("mp47", 3), 1, 2, Number("mp47", 1), None),  # started before the ranks
        (Number("mp47", 1), 0, 2, Number("mp47", 3), None),  # and after them
        (Number("mp47", 1), 0, 2, Number("mp48", 2), None),
        (Number("slurm", 0), 0, 4, Number("slurm", 3), (3, 4)),
    ],
)
def test_a_sibling_tells_the_rank(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: Number,
    rank: int,
    world: int,
    other: Number,
    told: tuple[int, int] | None,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = create_run_directory("aa")
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(directory))
    monkeypatch.setattr(siblings, "own_number", lambda: other)
    assert siblings.told_by_siblings() is None
    monkeypatch.setattr(siblings, "own_number", lambda: first)
    for _ in range(2):  # a second group
        siblings.tell_siblings(rank, world)
    monkeypatch.setattr(siblings, "own_number", lambda: other)
    assert siblings.told_by_siblings() == told
    remove_run_directory(directory)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_ID": "0"}, Number("slurm", 3)),
        ({"SLURM_PROCID": "0"}, None),  # the batch script
        ({}, None),
    ],
)
def test_a_task_of_slurm_has_a_number(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], number: Number | None
) -> None:
    for name in ("RANK", "SLURM_PROCID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (siblings.own_number(), siblings.is_numbered()) == (number, number is not None)
    monkeypatch.setenv("RANK", "0")  # its launcher numbers the ranks
    assert not siblings.is_numbered()


def test_a_child_has_no_number_of_slurm_while_it_imports_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    assert siblings.own_number() is None


class FakeStore:
    """A job's store in this process, that counts its connections."""

    values: dict[str, bytes]
    connections: int

    def __init__(self, _host: str, _port: int) -> None:
        FakeStore.connections += 1

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def close(self) -> None:
        pass


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AwaitedNumber]:
    """A process that waits for its number beside a store without a mark; not begun."""
    FakeStore.values, FakeStore.connections = {}, 0
    monkeypatch.setattr(job_store, "JobStore", FakeStore)
    monkeypatch.setattr(start_report, "REPORT_AFTER_S", 0.001)
    monkeypatch.setenv("DDPTOP_EXCHANGE", "1")
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    thread = AwaitedNumber()
    yield thread
    thread.end_thread()


def test_tasks_of_slurm_tell_other_hosts(awaited: AwaitedNumber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "own_number", lambda: Number("slurm", 0))
    awaited.start()
    awaited.tell_others(0, 4)
    until(lambda: not awaited.is_alive(), "the end")
    (mark,) = FakeStore.values.values()
    monkeypatch.setattr(siblings, "own_number", lambda: Number("slurm", 3))
    assert siblings.told_by(mark.decode()) == (3, 4)


def test_children_of_a_process_do_not_use_the_store(
    awaited: AwaitedNumber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another host may have a parent of the same process id: containers do."""
    looks: list[None] = []
    monkeypatch.setattr(siblings, "own_number", lambda: Number("mp47", 1))
    monkeypatch.setattr(siblings, "told_by_siblings", lambda: looks.append(None))
    awaited.start()
    until(lambda: len(looks) > 2, "three looks")
    awaited.tell_others(0, 4)
    until(lambda: not awaited.is_alive(), "the end")
    assert (FakeStore.connections, FakeStore.values) == (0, {})


def test_the_store_is_asked_ever_more_rarely_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(start_report, "time", SimpleNamespace(monotonic=lambda: now[0]))
    asks, asked = StoreAsks(), []
    for second in range(2000):
        now[0] = float(second)
        if asks.take_due():
            asked.append(second)
    assert asked[:8] == [0, 1, 3, 7, 15, 31, 61, 91]
    assert (asked[-1], asks.is_over) == (571, True)


def test_a_task_that_is_no_rank_asks_the_store_rarely(
    awaited: AwaitedNumber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has started the ranks, and never comes to a process group."""
    looks: list[None] = []
    monkeypatch.setattr(siblings, "own_number", lambda: Number("slurm", 0))
    monkeypatch.setattr(siblings, "told_by_siblings", lambda: looks.append(None))
    monkeypatch.setattr(StoreAsks, "take_due", lambda _: len(looks) == 2)
    awaited.start()
    until(lambda: len(looks) > 9, "ten looks")
    assert FakeStore.connections == 1


def test_a_process_that_nobody_tells_its_number_looks_for_a_limited_time(
    awaited: AwaitedNumber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "own_number", lambda: Number("mp47", 1))
    monkeypatch.setattr(siblings, "told_by_siblings", lambda: None)
    monkeypatch.setattr(start_report, "LOOK_S", 0.05)
    awaited.start()
    until(lambda: not awaited.is_alive(), "the end")
