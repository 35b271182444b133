"""What a shell is told when Tab is pressed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.cli.commands import COMMANDS
from ddptop.cli.main import main
from tests.cli.conftest import MAIN

LINES = ("", "tr", "--the", "ls --", "replay --s", "replay ol", "report b", "completion z", "--view ti")
LINES += ("demo --theme ddptop-cv", "--rate ", "--rate 2 report b", "ls report --")


@pytest.fixture
def offers(live_run, tmp_path: Path) -> Callable[[str], dict[str, list[str]]]:
    """By line: what a shell offers where two runs are live and a recording lies in the folder."""
    live_run("train-k7qf", "aa11")
    live_run("$(reboot)", "bb22")
    (tmp_path / "old.ddptop").touch()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ddptop"
    command = [sys.executable, "-c", MAIN]  # sees none of this machine's own runs
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def ask(shell: str) -> dict[str, list[str]]:
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell} here")
        begin, asks = SHELLS[shell]
        asking = "\n".join([begin, *(asks.format(line=f"ddptop {line}") for line in LINES)])
        command = [shell, *PLAIN.get(shell, []), "-c", asking]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answers = [part.split("\n") for part in done.stdout.split("====\n")]
        return {
            line: [word.partition("\t")[0].strip() for word in words if word]
            for line, words in zip(LINES, answers, strict=False)
        }

    return ask


SHELLS = {
    "bash": (
        'eval "$(ddptop completion bash)"',
        """
COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMPREPLY=()
_python_argcomplete ddptop 2>/dev/null; printf '%s\n' "${{COMPREPLY[@]}}"; echo ====
""",
    ),
    "fish": ("ddptop completion fish | source", "complete -C '{line}'; echo ===="),
}
"""What a shell reads first, and what asks it for its completions, where no person types into it."""

PLAIN = {"fish": ["--no-config"]}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_runs_and_options(shell: str, offers) -> None:
    offered = offers(shell)
    assert {command.name for command in COMMANDS} <= set(offered[""])
    assert {"train-k7qf", "--once", "--no-mouse"} <= set(offered[""]) or shell == "fish"
    assert "$(reboot)" not in offered[""]
    assert offered["tr"] == ["train-k7qf"]
    assert offered["--the"] == ["--theme"]
    assert sorted(offered["ls --"]) == ["--help", "--json"]
    assert "--speed" in offered["replay --s"]
    assert offered["replay ol"] == ["old.ddptop"]
    assert [one.rstrip("/") for one in offered["report b"]] == ["bin"]
    assert offered["completion z"] == ["zsh"]
    assert offered["--view ti"] == ["timeline"]
    assert offered["demo --theme ddptop-cv"] == ["ddptop-cvd"]
    assert offered["--rate "] == [], "no run is a rate"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "ddptop" in capsys.readouterr().out


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
