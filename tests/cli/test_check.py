"""`ddptop check`: exit codes, JSON, JUnit, GitHub's lines, and what is said of what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest

from ddptop.cli.main import main
from tests.benchmarks.bench_check import record, step_times

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


def test_what_cannot_be_told_is_no_success(check, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "check.xml"
    assert check("short", "--against", "base.ddptop", "--junit", str(junit)) == 1
    out, err = capsys.readouterr()
    assert out.startswith("check of short, against base: cannot tell\n")
    assert (
        err == "ddptop: cannot tell whether short is worse: step time: too few steps have it in both runs\n"
    )
    [suite] = xml.parse(junit).iter("testsuite")
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
