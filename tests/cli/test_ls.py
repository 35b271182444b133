"""`ddptop ls`: live runs first, then recordings, also those that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptop.cli.runs import short_age
from tests.made_up_run import write_recording


def test_nothing_yet(ddptop) -> None:
    done = ddptop("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ddptop-run" in done.stderr
    assert json.loads(ddptop("ls", "--json").stdout) == {"schema": 1, "runs": []}


def test_a_live_run_without_a_recording_is_said_where_one_is_wanted(ddptop, live_run) -> None:
    live_run("train-k7qf", "11ff", recording=None)
    done = ddptop("report")
    said = "no recording on this machine: train-k7qf is live and not being recorded"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", f"ddptop: {said}\n")


def test_live_runs_and_recordings(ddptop, live_run, tmp_path: Path) -> None:
    state = tmp_path / "state" / "ddptop"
    state.mkdir(mode=0o700)
    write_recording(state / "done-a2a2.ddptop", run_id="d0")
    write_recording(state / "cut-b3b3.ddptop", run_id="c0", world=3, ending=False)
    write_recording(state / "train-k7qf.ddptop", run_id="11ff")
    (state / "junk.ddptop").write_text("junk")
    live_run("train-k7qf", "11ff", recording=str(state / "train-k7qf.ddptop"))
    done = ddptop("ls")
    assert (done.returncode, done.stderr) == (0, "")
    titles, *lines = done.stdout.splitlines()
    assert titles.split() == ["STATE", "NAME", "RANKS", "SCRIPT", "AGE", "RECORDING"]
    assert len(lines) == 4, "the live run's own recording is not listed again"
    assert lines[0].split()[:4] == ["live", "train-k7qf", "2", "train.py"]
    others = {line.split()[1]: line.split() for line in lines[1:]}
    assert others["done-a2a2"][0] == "finished"
    assert others["cut-b3b3"][::2][:2] == ["lost", "3"]
    assert others["junk"][0] == "unreadable"
    assert len({line.index(str(state)) for line in lines}) == 1, "columns line up"
    as_json = {run["name"]: run for run in json.loads(ddptop("ls", "--json").stdout)["runs"]}
    assert as_json["train-k7qf"]["live"] is True
    assert as_json["done-a2a2"]["id"] == "d0"
    assert as_json["done-a2a2"]["world_size"] == 2
    assert as_json["junk"]["note"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0s"), (59.0, "59s"), (60.0, "1m"), (7_300.0, "2h"), (86_400.0 * 40, "40d")],
)
def test_age(seconds: float, text: str) -> None:
    assert short_age(seconds) == text
