"""What a shell is told when Tab is pressed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ddptop.cli.commands import COMMANDS
from ddptop.cli.main import main
from tests.processes import DDPTOP


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for a line; `ddptop completion names` is answered by two runs."""
    quoted = " ".join(f"'{word}'" for word in ("ddptop", *words))
    program = f"""
ddptop() {{ echo train-k7qf; echo bert-a9a9; }}
{script}
COMP_WORDS=({quoted})
COMP_CWORD={len(words)}
_ddptop
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()


@pytest.fixture(scope="module")
def bash() -> str:
    done = subprocess.run([*DDPTOP, "completion", "bash"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bash_completes_commands_runs_and_options(
    bash: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.ddptop").touch()
    everything = completed(bash, "")
    assert {command.name for command in COMMANDS} <= set(everything)
    assert {"train-k7qf", "bert-a9a9", "--once", "--no-mouse"} <= set(everything)
    assert completed(bash, "tr") == ["train-k7qf"]
    assert completed(bash, "--the") == ["--theme"]
    assert completed(bash, "ls", "--") == ["--help", "--json"]
    assert "--speed" in completed(bash, "replay", "--s")
    assert completed(bash, "replay", "ol") == ["old.ddptop"]
    assert completed(bash, "report", "b") == ["bert-a9a9"]
    assert completed(bash, "completion", "z") == ["zsh"]
    assert completed(bash, "--view", "ti") == ["timeline"]
    assert completed(bash, "demo", "--theme", "ddptop-cv") == ["ddptop-cvd"]
    assert completed(bash, "--rate", "") == [], "no run is a rate"


SHELLS = {
    "zsh": """
compdef() {{ : }}; _files() {{ : }}; compadd() {{ shift; print -rl -- ${{(M)@:#$words[CURRENT]*}} }}
ddptop() {{ echo train-k7qf; echo bert-a9a9; }}
{script}
words=(ddptop {words} '{last}'); CURRENT=$#words; _ddptop
""",
    "fish": """
function ddptop; echo train-k7qf; echo bert-a9a9; end
{script}
complete -C 'ddptop {words} {last}'
""",
}
"""What asks a shell for its completions, where it is not one that a person types into."""


@pytest.mark.parametrize("shell", SHELLS)
def test_zsh_and_fish_complete_the_same(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command.name in script for command in COMMANDS)
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: its script was made, not run")

    def offered(words: str, last: str) -> list[str]:
        program = SHELLS[shell].format(script=script, words=words, last=last)
        command = [shell, "-f", "-c", program] if shell == "zsh" else [shell, "--no-config", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert offered("", "tr") == ["train-k7qf"]
    assert {"--once", "--no-mouse"} <= set(offered("", "--"))
    assert sorted(offered("ls", "--")) == ["--help", "--json"]
    assert "bert-a9a9" in offered("report", "b")
    assert offered("completion", "z") == ["zsh"]
    assert offered("--view", "ti") == ["timeline"]


def test_names_of_runs(live_run, capsys: pytest.CaptureFixture[str]) -> None:
    live_run("train-k7qf", "aa11")
    live_run("$(reboot)", "bb22")
    assert main(["completion", "names"]) == 0
    assert capsys.readouterr().out == "train-k7qf\n"


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
