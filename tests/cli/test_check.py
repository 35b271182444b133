"""`ddptop check`: exit codes, JSON, JUnit, GitHub's lines, and what is said of what cannot be told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as xml

import numpy as np
import pytest

from ddptop.cli.main import main
from ddptop.frames.chance import Difference
from ddptop.protocol.messages import Run
from ddptop.report.check import Measured, against_base, steps_needed
from tests.benchmarks.bench_check import record, step_times
from tests.made_up_run import run_message

STEPS = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings: a base, one of equal speed, a slower one, and one that is too short."""
    folder = tmp_path_factory.mktemp("check")
    base, same = (step_times(STEPS, 0.3, i) for i in (1, 2))
    for name, shares in (("base", base), ("same", same), ("slow", 1.1 * same), ("short", same[:12])):
        record(folder / f"{name}.ddptop", shares)
    return folder


@pytest.fixture
def check(runs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def run(new: str, *words: str) -> int:
        return main(["check", f"{new}.ddptop", *words])

    return run


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ([run_message("failed", 3)], "the run failed with exit code 3"),
        ([run_message("failed")], "the run failed"),
        ([], "how the run ended is unknown"),
    ],
)
def test_a_run_that_did_not_end_well_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: list[Run], said: str
) -> None:
    shares = step_times(STEPS, 0.3, 1)
    record(tmp_path / "base.ddptop", shares)
    record(tmp_path / "new.ddptop", shares, ending=ending)
    assert main(["check", str(tmp_path / "new.ddptop"), "--against", str(tmp_path / "base.ddptop")]) == 0
    assert capsys.readouterr().err == f"ddptop: new.ddptop: {said}; the steps before that are compared\n"


def test_an_equal_run_is_within(check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("same", "--against", "base.ddptop") == 0
    out, err = capsys.readouterr()
    assert out.startswith("check of same, against base: within\n")
    assert err == ""


def test_a_slower_run_is_a_regression(
    check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    junit = tmp_path / "check.xml"
    assert check("slow", "--against", "base.ddptop", "--json", "--junit", str(junit)) == 1
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["schema"], found["outcome"], found["base"]) == (1, "regression", "base")
    step = found["checks"][0]
    assert (step["figure"], step["outcome"]) == ("step_ms", "regression")
    assert 0 < step["low"] < step["more"] < step["high"]
    assert step["new"] == pytest.approx(step["reference"] + step["more"])
    assert err.startswith("::error title=ddptop check::slow: step time ")
    assert "%25) more" in err
    [suite] = xml.parse(junit).iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    assert suite.find("testcase/failure").get("message") == step["sentence"]
    cost = next(one for one in found["checks"] if one["figure"] == "own_cost_pct")
    assert (cost["outcome"], cost["new"]) == ("unknown", None)  # not measured, and not asked for


def test_a_difference_that_is_tolerated_is_within(check) -> None:
    assert check("slow", "--against", "base.ddptop", "--tolerance", "20") == 0


def test_limits_of_a_file(check, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("step_ms = 1000\nstalls = 0\nstraggler_pct = 5\n", encoding="utf-8")
    assert check("slow", "--limits", str(limits)) == 0
    limits.write_text("step_ms = 1\n", encoding="utf-8")
    assert check("slow", "--limits", str(limits)) == 1
    assert "than the limit of 1 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("", "has no limits"),
        ("step = 3", "step is no figure; choose from step_ms,"),
        ("step_ms = true", "is no limit; give a number"),
        ("step_ms = -1", "is no limit; give a number"),
        ("step_ms =", "not valid TOML"),
    ],
)
def test_limits_that_mean_nothing(
    check, limit: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "limits.toml").write_text(limit, encoding="utf-8")
    assert check("same", "--limits", str(tmp_path / "limits.toml")) == 2
    assert words in capsys.readouterr().err


def test_wrong_usage(check, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("same") == 2
    assert check("same", "--limits", "nowhere.toml") == 2
    assert check("same", "--against", "base.ddptop", "--tolerance", "0") == 2
    assert check("same", "--against", "nowhere.ddptop") == 3
    assert len(capsys.readouterr().err.splitlines()) == 4


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (".", "is a folder; give a file"),
        ("nowhere/check.xml", "no such folder"),
        ("/dev/full", "No space left"),
    ],
)
def test_a_junit_file_that_cannot_be_written_is_wrong_usage(
    check, file: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("same", "--against", "base.ddptop", "--junit", file) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ddptop: --junit {file}: {why}")


def test_what_cannot_be_told_is_no_success(check, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "check.xml"
    assert check("short", "--against", "base.ddptop", "--junit", str(junit)) == 5
    out, err = capsys.readouterr()
    assert out.startswith("check of short, against base: cannot tell\n")
    why = "too few steps have it in both runs, 11 after the warm-up; 16 are needed"
    assert err == f"ddptop: cannot tell whether short is worse: step time: {why}\n"
    [suite] = xml.parse(junit).iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_how_many_steps_are_needed_is_said(runs: Path) -> None:
    noisy, other = (np.exp(4 * np.log(step_times(200, 0.9, i))) for i in (5, 6))
    results = []
    for shares in (noisy, 1.02 * other):
        series = dict.fromkeys(("step_ms", "exposed_comm_ms", "exposed_wait_ms"), 100 * shares)
        values = dict.fromkeys(("lost_pct", "straggler_pct", "stalls", "stalled_s", "own_cost_pct"))
        results.append(Measured("run", 2, np.arange(200.0), series, values))
    step = against_base(results[1], results[0], 1.0)[0]
    assert step.outcome == "unknown"
    assert re.fullmatch(
        r"the interval is too wide with 180 steps: compare some [\d,]+ of each run, or on a quieter machine",
        step.reason,
    )


@pytest.mark.parametrize(("own_cost_pct", "outcome"), [(8.0, "within"), (9.1, "regression")])
def test_a_larger_share_of_a_shorter_step_is_no_cost_of_ddptop(own_cost_pct: float, outcome: str) -> None:
    measured = []
    for step_ms, cost_pct in ((10.0, 4.0), (5.0, own_cost_pct)):
        series = dict.fromkeys(("step_ms", "exposed_comm_ms", "exposed_wait_ms"), np.full(200, step_ms))
        values = {"lost_pct": 0.0, "straggler_pct": 0.0, "stalls": 0.0, "own_cost_pct": cost_pct}
        measured.append(Measured("run", 2, np.arange(200.0), series, values))
    results = {result.figure: result for result in against_base(measured[1], measured[0], 1.0)}
    assert (results["step_ms"].outcome, results["own_cost_pct"].outcome) == ("within", outcome)


@pytest.mark.parametrize(
    ("more", "half", "steps"),
    [
        (0.0, 10.0, 800),  # to exclude 5 ms
        (3.0, 10.0, 2_300),  # to exclude 0 ms: (10 / 3)^2
        (4.0, 10.0, 1_300),
        (-5.0, 11.0, 250),  # to exclude 5 ms, 10 away
    ],
)
def test_an_interval_narrows_with_the_root_of_the_steps(more: float, half: float, steps: int) -> None:
    assert steps_needed(Difference(100.0, more, more - half, more + half), 1.0, 200) == steps
