"""Recorded traces of each row, replayed through the rules: the right rank, cause and place, and nobody else.

The traces in `data/` are real runs (`python -m tests.truth --pack tests/truth/data`), recorded on two cores
beside other work; the name says beside how many busy loops. Their stamps are the script's own.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.truth import traces
from tests.truth.__main__ import compare, train
from tests.truth.judge import Judged, judge, looks
from tests.truth.rows import BY_NAME

DATA = sorted((Path(__file__).parent / "data").glob("*.trace"))

LARGE = 0.1
"""A delay of this share of a step, in most steps, is to be flagged in nearly every window."""

LOOKS_EVERY = 15
"""Steps between two frames: with steps of 20 ms they are as far apart as on the screen."""

NOISY = 5
"""Flags in the windows without a fault of all traces, some 90: four in `quota-no-readings` beside busy loops.
None in `healthy`. A lower number is progress."""


@cache
def judged(path: Path) -> Judged:
    row, stamps, records = traces.read(path)
    return judge(row, stamps, looks(records, LOOKS_EVERY))


FAULTS = [path for path in DATA if not path.stem.startswith("asleep-overlapped")]

QUICK = (
    *("data-3-load-0", "backward-20-load-4", "forward-20-load-0", "optimizer-20-load-0", "garbage-load-0"),
    *("hog-load-0", "intermittent-load-0", "rotating-load-0", "two-of-four-load-0", "uneven-work-load-0"),
)
"""One of each cause and pattern. All others, and what is said of all together, are slow tests."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in FAULTS
    ],
)
def test_the_late_rank_is_flagged_with_its_cause_and_no_other(path: Path) -> None:
    faults = judged(path).faults
    right = [window for window in faults if window.flagged_after is not None]
    assert 2 * len(right) >= len(faults)
    for window in right:
        assert window.cause_right in (True, None) and not window.wrong, window


@pytest.mark.slow
def test_large_delays_are_flagged_in_nearly_all_windows() -> None:
    runs = [judged(path) for path in DATA]
    large = [run for run in runs if run.row.one_in == 1 and run.row.ms >= LARGE * run.step_ms]
    windows = [window for run in large for window in run.faults]
    assert len(windows) > 40
    assert sum(window.flagged_after is not None for window in windows) >= 0.95 * len(windows)


@pytest.mark.slow
def test_few_flags_are_raised_without_a_fault() -> None:
    assert sum(len(judged(path).false_flags) for path in DATA) <= NOISY


def test_no_flag_is_raised_in_a_healthy_run() -> None:
    runs = [judged(path) for path in DATA if path.stem.startswith("healthy-")]
    assert len(runs) == 2
    assert [run.false_flags for run in runs if run.row.kind != "none" or run.false_flags] == []


@pytest.mark.slow
def test_sizes_are_those_of_the_stamps() -> None:
    windows = [w for path in DATA if judged(path).row.cause != "backward" for w in judged(path).faults]
    errors = [window.size_error for window in windows if window.size_error is not None]
    assert median(errors) < 0.015


@pytest.mark.slow
def test_what_if_figures_are_those_of_the_stamps_where_ranks_sleep() -> None:
    windows = [window for path in DATA for window in judged(path).faults if window.known_error is not None]
    assert len(windows) >= 10
    errors = [window.known_error for window in windows]
    assert median(errors) < 0.015 and np.quantile(errors, 0.9) < 0.05
    assert sum(window.held is True for window in windows) >= 0.95 * len(windows)


@pytest.mark.slow
def test_a_live_run(tmp_path: Path) -> None:
    row = BY_NAME["data-20"]
    train(row, tmp_path, load=0, steps=160, windows=5, seed=1, seconds=0.0)
    judged = compare(row, tmp_path)
    assert [window.cause_right for window in judged.faults] == [True, True], judged
