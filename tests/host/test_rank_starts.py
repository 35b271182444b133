"""Ranks that have not met after a restart, from the marks that they leave and their variables."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddptop.host import rank_starts, start_marks
from ddptop.host.rank_starts import RankStarts


@pytest.fixture
def ranks() -> Iterator[list[int]]:
    """Pids of three children that are ranks of a run after its second restart."""
    with ExitStack() as stack:
        pids = []
        for rank in range(3):
            variables = {"RANK": str(rank), "WORLD_SIZE": "3", "TORCHELASTIC_RESTART_COUNT": "2"}
            child = subprocess.Popen(["sleep", "600"], env=os.environ | variables | {"DDPTOP_RUN_ID": "aa"})
            stack.callback(child.wait)
            stack.callback(child.kill)
            pids.append(child.pid)
        yield pids


def mark(folder: Path, prefix: str, pid: int, ago_s: float = 20.0) -> None:
    path = folder / f"{prefix}{pid}"
    path.touch()
    os.utime(path, (time.time() - ago_s, time.time() - ago_s))


def test_ranks_that_are_in_their_first_group_for_long_after_a_restart_are_told(
    tmp_path: Path, ranks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getppid", os.getpid)
    monkeypatch.setattr(rank_starts, "CHECK_S", 0.0)
    starts = RankStarts(tmp_path, "aa")
    assert starts.find_meeting() is None
    for pid in ranks[:2]:
        mark(tmp_path, "ddptop-init-", pid)
    mark(tmp_path, "ddptop-init-", os.getpid())  # no rank
    monkeypatch.setattr(rank_starts, "CHECK_S", 10.0)
    found = starts.find_meeting()
    assert found is not None and found.for_s >= 20.0
    assert (found.ranks, found.world, found.restart) == ((0, 1), 3, 2)
    assert starts.find_meeting() is None  # once every CHECK_S
    for pid in ranks:
        mark(tmp_path, "ddptop-met-", pid)
    assert RankStarts(tmp_path, "aa").find_meeting() is None
    assert RankStarts(tmp_path, "bb").find_meeting() is None


def test_a_rank_marks_when_it_begins_to_wait_and_when_it_has_met_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    for leave_mark in (start_marks.mark_initialization, start_marks.mark_met):
        leave_mark()
        leave_mark()  # of a second group
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"ddptop-init-{os.getpid()}", f"ddptop-met-{os.getpid()}"]
