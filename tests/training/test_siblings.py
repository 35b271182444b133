"""Ranks that another rank of the same numbering tells their rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.host.runs import create_run_directory, remove_run_directory
from ddptop.training import siblings
from ddptop.training.siblings import Number


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
