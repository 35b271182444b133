"""`ddptop attach` without a training: where ranks begin, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.commands import attach
from ddptop.cli.errors import CliError
from ddptop.cli.main import main
from ddptop.host import inject


def reports(*ranks: list[int], world: int = 2, step_s: float = 0.01) -> attach.Reports:
    """Of ranks with so many collectives before their last forwards, `step_s` apart."""
    return {
        100 + rank: {
            "rank": rank,
            "world": world,
            "forwards": [[number, at * step_s] for at, number in enumerate(numbers)],
        }
        for rank, numbers in enumerate(ranks)
    }


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        (
            10.0,
            18 + 3 * 4,
        ),  # three steps of four collectives
        (0.01, 18 + 400),  # a second
    ],
)
def test_ranks_begin_a_second_or_three_steps_ahead_of_the_foremost(step_s: float, expected: int) -> None:
    assert attach.step_to_begin(reports([6, 10, 14], [10, 14, 18], step_s=step_s)) == expected


@pytest.mark.parametrize(
    ("of_ranks", "words"),
    [
        (reports([6, 10, 14], [10, 12, 14]), "do not launch the same collectives"),
        (reports([6, 10, 14], world=3), "2 of 3 ranks were not found on this host (rank 1 first)"),
    ],
)
def test_ranks_whose_steps_cannot_be_paired_do_not_begin(of_ranks: Any, words: str) -> None:
    with pytest.raises(CliError) as refused:
        attach.step_to_begin(of_ranks)
    assert words in str(refused.value)


def test_of_several_jobs_one_rank_each_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pid, parent = os.getpid(), os.getppid()
    found = [(pid, ("a",)), (1 << 22, ("a",)), (parent, ("b",))]
    monkeypatch.setattr(attach, "find_ranks", lambda: found)
    with pytest.raises(CliError, match="2 jobs run on this host") as refused:
        attach.ranks_of([])
    listed = [int(line.split()[0]) for line in str(refused.value).splitlines()[1:]]
    assert listed == sorted([pid, parent])


def test_what_is_no_training_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert main(["attach", str(child.pid)]) == 1
        finally:
            child.kill()
    assert capsys.readouterr().err == f"ddptop: process {child.pid} is not a Python process\n"
    assert main(["attach", str(child.pid)]) == 1
    assert capsys.readouterr().err == f"ddptop: there is no process {child.pid}\n"


def test_a_python_without_torch_is_refused() -> None:
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert inject.why_not(child.pid) == f"process {child.pid} has not loaded torch"
        child.kill()


def test_without_gdb_a_process_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    with pytest.raises(inject.InjectionError, match="gdb is not installed"):
        inject.inject_file(os.getpid(), tmp_path / "file")


def test_the_injected_line_raises_nothing_into_the_training(tmp_path: Path) -> None:
    """A pending call that fails raises SystemError in whatever the main thread does."""
    exec(inject.python_line(tmp_path / "not there"), {})


def test_a_file_name_with_quotes_reaches_gdb_whole() -> None:
    line = inject.python_line(Path("/tmp/a'b\"c"))
    command = next(
        line for line in inject.gdb_commands(1, line).splitlines() if line.startswith("set {char[")
    )
    size, _, literal = command.removeprefix("set {char[").partition("]} $page = ")
    assert literal[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") == line
    assert int(size) == len(line) + 1


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ptrace: Operation not permitted.", "may not be traced"),
        ('No symbol "Py_AddPendingCall" in current context.', "finds no interpreter"),
        ("Couldn't get registers: No such process.", "gdb could not reach process 7: Couldn't get"),
    ],
)
def test_gdbs_failures_are_one_line(output: str, words: str) -> None:
    assert words in inject.failure_reason(7, f"Reading symbols\n{output}\n")


NOTHING = "; nothing was recorded, training goes on as before"


def test_where_no_step_begins_the_place_of_each_rank_is_shown_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attach, "WAIT_S", 0.0)
    monkeypatch.setattr("ddptop.host.inject.inject_file", lambda pid, file: None)
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            exchange = attach.Exchange(tmp_path, [os.getpid(), child.pid])
            places = {os.getpid(): "train.py:26 main", child.pid: ""}
            monkeypatch.setattr("ddptop.host.worker_calls.call_of", places.__getitem__)
            with pytest.raises(CliError) as refused:
                attach.begin_recording(exchange)
            text = str(refused.value)
            assert text.startswith(f"process {os.getpid()} has begun no training step within 0 s (")
            assert text.endswith(f": process {os.getpid()} is in train.py:26 main{NOTHING}")
            assert "\n" not in text
            assert (tmp_path / "go").read_text() == "-1", "which is true: they are not to begin"
            for program, words in (
                (None, "pip install py-spy"),
                ("/py-spy", "py-spy may not, or finds no code of yours"),
            ):
                places[os.getpid()] = ""
                monkeypatch.setattr("shutil.which", lambda name, program=program: program)
                with pytest.raises(CliError, match=rf"where they are \({words}"):
                    exchange.wait_for_state("waiting", 3)
        finally:
            child.kill()


@pytest.mark.parametrize("state", ["recording", "detached"])
def test_where_a_run_is_or_may_be_recorded_nothing_else_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str
) -> None:
    """Ranks that know the step begin there though the command has given up."""
    monkeypatch.setattr("ddptop.host.worker_calls.call_of", lambda pid: "train.py:26 main")
    monkeypatch.setattr("ddptop.host.inject.inject_file", lambda pid, file: None)
    monkeypatch.setattr(attach, "BEGIN_S", 0.0)
    report, known = tmp_path / f"rank-{os.getpid()}", reports([6, 10, 14], world=1)[100]
    report.write_text(json.dumps({"state": "waiting", **known}))
    exchange = attach.Exchange(tmp_path, [os.getpid()])
    with pytest.raises(CliError) as refused:
        attach.begin_recording(exchange) if state == "recording" else exchange.wait_for_state(
            state, wait_s=0.0
        )
    place = f"process {os.getpid()} is in train.py:26 main"
    assert (
        str(refused.value)
        == f"process {os.getpid()} has begun no training step within 0 s (waiting): {place}"
    )
    assert (tmp_path / "go").exists() == (state == "recording")
