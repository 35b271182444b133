"""Rows of the table of incidents that take little time, run as the table runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.truth.incident_runs import judge, run
from tests.truth.incidents import named


@pytest.mark.parametrize("name", [pytest.param("death-exit", marks=pytest.mark.slow), "numbers-nan"])
def test_a_quick_row_is_told_with_its_rank_and_cause(tmp_path: Path, name: str) -> None:
    (row,) = named([name])
    run(row, tmp_path, seed=1)
    trial = judge(row, tmp_path)
    assert trial.right and trial.told_after_s is not None, trial.lines
    assert not trial.false_before, trial.lines
