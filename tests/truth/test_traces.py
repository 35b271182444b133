"""Recorded traces of each row, replayed through the rules: the right rank, cause and place, and nobody else.

The traces in `data/` are real runs (`python -m tests.truth --pack tests/truth/data`), recorded on two cores
beside other work; the name says beside how many busy loops. Their stamps are the script's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.truth import traces
from tests.truth.__main__ import compare, train
from tests.truth.judge import Judged, judge, looks
from tests.truth.rows import BY_NAME

DATA = sorted((Path(__file__).parent / "data").glob("*.trace"))

LARGE = 0.1
"""A delay of this share of a step is to be flagged in every window."""


@pytest.fixture(scope="module", params=DATA, ids=lambda path: path.stem)
def judged(request: pytest.FixtureRequest) -> Judged:
    row, stamps, records = traces.read(request.param)
    return judge(row, stamps, looks(records))


def test_the_late_rank_is_flagged_with_its_cause(judged: Judged) -> None:
    for window in judged.faults:
        if judged.row.kind == "sleep" and judged.row.mean_ms >= LARGE * judged.step_ms:
            assert window.flagged_after is not None, window
        if window.flagged_after is not None:
            assert window.cause_right in (True, None), window
        assert not window.wrong, window


def test_no_rank_is_flagged_in_windows_without_a_fault(judged: Judged) -> None:
    assert not judged.false_flags


def test_the_figures_are_those_of_the_stamps(judged: Judged) -> None:
    errors = [window.size_error for window in judged.faults if window.size_error is not None]
    assert all(error < 0.1 for error in errors), errors


@pytest.mark.slow
def test_a_live_run(tmp_path: Path) -> None:
    row = BY_NAME["data-20"]
    train(row, tmp_path, load=0, steps=160, windows=5, seed=1, seconds=0.0)
    judged = compare(row, tmp_path)
    assert [window.cause_right for window in judged.faults] == [True, True], judged
