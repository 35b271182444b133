"""A host that has only an agent of a run: what is shown there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptop.cli.errors import Exit
from ddptop.cli.main import main
from ddptop.cli.runs import MachineRuns
from tests.made_up_run import write_recording

WHERE = "run train is collected on gpu01: ddptop --connect gpu01/train"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--once"], WHERE),
        (["train", "--json"], WHERE),
        (["report", "train"], f"{WHERE}; its recording is there"),
    ],
)
def test_where_it_is_collected_is_one_line(
    live_run, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    live_run("train", "aa11", collector_host="gpu01")
    assert main(words) == Exit.FAILED
    assert capsys.readouterr() == ("", f"ddptop: {line}\n")


def test_a_recording_that_is_wanted_by_no_name_is_said_to_be_where_the_run_is_collected(
    live_run, capsys: pytest.CaptureFixture[str]
) -> None:
    live_run("train", "aa11", collector_host="gpu01")
    assert main(["report"]) == Exit.NOT_FOUND
    line = f"no recording on this machine: {WHERE}; its recording is there"
    assert capsys.readouterr() == ("", f"ddptop: {line}\n")


def test_while_the_collector_is_not_reached_its_own_recording_is_shown(
    live_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "part.ddptop"
    write_recording(path)
    live_run("train", "aa11", collector_host="gpu01", collector_reached=False, recording=str(path))
    assert main(["--json"]) == Exit.DONE
    shown = capsys.readouterr()
    assert json.loads(shown.out)["source"] == "replay"
    assert shown.err == f"ddptop: {WHERE}; it is not reached: this is what the agent of this host records\n"


def test_ls_and_the_list_on_the_screen_name_the_host(live_run, capsys: pytest.CaptureFixture[str]) -> None:
    live_run("train", "aa11", collector_host="gpu01")
    live_run("early", "bb22", collector_host="")
    assert main(["ls"]) == Exit.DONE
    listed = capsys.readouterr().out
    assert "collected on gpu01" in listed
    assert "collected on another host" in listed
    runs = MachineRuns()
    (choice,) = [choice for choice in runs.choices() if choice.name == "train"]
    with pytest.raises(ValueError, match="ddptop --connect gpu01/train"):
        runs.open(choice)
    assert main(["ls", "--json"]) == Exit.DONE
    notes = [run["note"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert "collected on gpu01" in notes


def test_a_run_that_is_collected_here_comes_first(live_run, capsys: pytest.CaptureFixture[str]) -> None:
    live_run("train", "aa11", started_at=2.0, collector_host="gpu01")
    here = live_run("train-2", "bb22", started_at=1.0)
    from ddptop.cli.commands.relay import run_meant

    assert run_meant(None) == here
    assert run_meant("train-").name == "train-2"
