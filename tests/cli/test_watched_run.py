"""The launcher's hold on its run's folder."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop.agent.launcher import parse_arguments
from ddptop.cli import watched_run
from ddptop.cli.find import find_recorded
from ddptop.cli.launch_options import OPTIONS, LaunchOptions, add_options
from ddptop.collector.supervisor import RunSummary
from ddptop.host.processes import boot_id, pid_namespace
from ddptop.host.runs import RunFile, create_run_directory, write_run_file
from ddptop.training.budget import Budget
from ddptop.training.shadow import NEVER, ShadowBlocks


def test_no_other_run_takes_the_folder_away_before_a_dead_collector_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = SimpleNamespace(start_process=lambda: None, finish_run=lambda _: None)
    monkeypatch.setattr(watched_run, "CollectorSupervisor", lambda *_, **__: collector)
    monkeypatch.setattr(os, "environ", os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)})
    tmp_path.chmod(0o700)
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = LaunchOptions.from_parsed(parser.parse_args(["--ddptop-record", "off"]))
    run = watched_run.WatchedRun.begin_run(options, "name", ["train.py"])
    assert run is not None
    folder = Path(os.environ["DDPTOP_RUN_DIR"])
    dead = RunFile("name", folder.name, 1, 1, boot_id(), pid_namespace(), 1.5, "train.py", 1, None, folder)
    write_run_file(folder, dead)
    create_run_directory("another")
    assert folder.exists()
    run.end_run(0)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("nodes", "processes", "most"),
    [
        ("1", "4", 4),
        ("1:1", "4", 4),
        ("1:4", "8", None),
        ("2", "8", None),
        ("1", "1", None),
        ("1", "auto", None),
    ],
)
def test_the_collector_is_told_how_many_ranks_torchrun_starts(
    nodes: str, processes: str, most: int | None, tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--nnodes")
    parser.add_argument("--nproc-per-node")
    parsed = parser.parse_args(["--nnodes", nodes, "--nproc-per-node", processes])
    words = watched_run.collector_arguments(LaunchOptions.from_parsed(parsed), "name", "id", tmp_path, "off")
    assert parse_arguments(words).most_ranks == most


VALUES = {
    "name": "llama",
    "record": "runs/a.ddptop",
    "record_limit": "2MiB",
    "budget": "0.5",
    "stall": "7",
    "detail": "full",
    "argv": "off",
    "shadow": "off",
    "hosts": "off",
    "listen": "[::1]:7077",
    "port": "4711",
    "on_alert": "https://hooks/secret",
    "metrics": "otlp:https://user:secret@collector/",
    "to": "tensorboard:secret",
}
"""Of each option one that is not its default."""


def test_every_option_reaches_the_agent_the_ranks_and_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    words = [word for name, value in VALUES.items() for word in (f"--ddptop-{name.replace('_', '-')}", value)]
    defaults, options = LaunchOptions.from_words(), LaunchOptions.from_words(words)
    assert all(getattr(options, name) != getattr(defaults, name) for name in OPTIONS)
    arguments = watched_run.collector_arguments(options, "llama", "id", tmp_path, "off")
    of_collector = parse_arguments(arguments)
    assert (of_collector.stall_s, of_collector.record_limit, of_collector.listen) == (
        7,
        2 << 20,
        "[::1]:7077",
    )
    assert "secret" not in " ".join(arguments)
    os.environ.update(options.as_environment("llama"))
    for variables in (options.variables_for("ranks"), options.variables_for("collector in secret")):
        assert variables.items() <= os.environ.items()
    monkeypatch.chdir(tmp_path)  # as an agent does
    assert LaunchOptions.from_words() == options
    budget = Budget.from_environment()
    assert budget.budget_pct == 0.5
    assert ShadowBlocks.from_environment().next == NEVER
    package = Path(watched_run.__file__).parents[1]
    readers = {"ranks": package / "training", "collector in secret": package / "collector"}
    sources = {
        reader: "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
        for reader, folder in readers.items()
    }
    for reader, source in sources.items():
        names = [name for name, option in OPTIONS.items() if option.goes_to == reader]
        assert [name for name in names if f'"DDPTOP_{name.upper()}"' not in source] == []
    described = (Path(watched_run.__file__).parent / "README.md").read_text()
    assert [word for word in words[::2] if f"| `{word} " not in described] == []


@pytest.mark.parametrize("where", ["0.0.0.0:7077", "[::1]:7077", None])
def test_the_collector_is_told_where_viewers_are_let_in(where: str | None, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = LaunchOptions.from_parsed(
        parser.parse_args([] if where is None else ["--ddptop-listen", where])
    )
    assert (
        parse_arguments(watched_run.collector_arguments(options, "name", "id", tmp_path, "off")).listen
        == where
    )
    assert options.as_environment("name").get("DDPTOP_LISTEN") == where


def test_the_first_line_has_the_command_for_viewers_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    line = watched_run.how_to_watch("run", listen="gpu01:7077")
    assert line.endswith("with a key over TCP with `ddptop --connect gpu01:7077 --key FILE`")
    assert "0.0.0.0" not in watched_run.how_to_watch("run", listen="0.0.0.0:7077")


def test_one_step_and_one_record_are_no_plurals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPTOP", raising=False)
    none = RunSummary(None, 0, 0, None, None)
    hint = " (no torch imported, or no ddptop in the Python that trains)"
    assert watched_run.describe_summary(none, 0) == f"no training step was seen{hint}"
    came = replace(none, reached="2 ranks have their process group")
    for code in (0, 1):
        said = "no training step was seen: 2 ranks have their process group"
        assert watched_run.describe_summary(came, code) == said
    monkeypatch.setenv("DDPTOP", "0")
    off = watched_run.describe_summary(none, 0)
    assert off == "no training step was seen (DDPTOP=0 turns the recorder off)"
    went_on = replace(none, steps=8, note="recording goes on: the disk had taken nothing for a time (full)")
    assert watched_run.describe_summary(went_on, 0) == "9 steps, the disk had taken nothing for a time (full)"
    failed = replace(none, steps=8, failure="rank 1 exited with code 3 at step 9")
    assert watched_run.describe_summary(failed, 1) == "rank 1 exited with code 3 at step 9; 9 steps"
    assert watched_run.describe_summary(RunSummary(0, 1, 1, None, None), 0) == "1 step, 1 record missing"
    assert (
        watched_run.describe_summary(RunSummary(None, 1, 2, None, None), 0) == "1 record, 2 records missing"
    )


def test_where_there_can_be_no_folder_of_recordings_the_run_is_watched_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    parser = argparse.ArgumentParser()
    add_options(parser)
    options = LaunchOptions.from_parsed(parser.parse_args([]))
    assert watched_run.recording_path(options, "train") == "off"
    said = capsys.readouterr().err
    assert said.startswith("ddptop: run train: not recorded: cannot make ") and "--ddptop-record PATH" in said
    assert find_recorded([]) == []


def test_a_path_that_ends_like_a_folder_is_one_also_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_options(parser)
    for words, path in (("runs/", "runs/train.ddptop"), ("runs", "runs")):
        options = LaunchOptions.from_parsed(parser.parse_args(["--ddptop-record", words]))
        assert Path(watched_run.recording_path(options, "train")) == tmp_path / path
