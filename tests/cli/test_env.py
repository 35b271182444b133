"""`ddptop env`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ddptop.cli.main import main
from ddptop.cli.watched_run import INJECT
from ddptop.training.attach import is_enabled
from tests.processes import DDPTOP, environment, run


def test_the_variables_have_the_recorder_loaded_and_the_settings_that_are_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/my own/modules")
    monkeypatch.setenv("DDPTOP_STALL", "5")
    monkeypatch.delenv("DDPTOP_NAME", raising=False)
    assert main(["env", "--name", "llama", "--json"]) == 0
    variables = json.loads(capsys.readouterr().out)
    assert variables == {
        "DDPTOP": "1",
        "PYTHONPATH": f"{INJECT}:/my own/modules",
        "DDPTOP_STALL": "5.0",
        "DDPTOP_NAME": "llama",
    }
    assert main(["env"]) == 0
    assert f"PYTHONPATH='{INJECT}:/my own/modules'" in capsys.readouterr().out.splitlines()
    assert main(["env", "--name", "a b"]) == 2
    monkeypatch.setenv("DDPTOP", variables["DDPTOP"])
    assert is_enabled()


def test_a_process_with_the_variables_that_trains_nothing_is_as_always(tmp_path: Path) -> None:
    env = environment(tmp_path)
    variables = json.loads(run([*DDPTOP, "env", "--json"], env, tmp_path).stdout)
    done = run([sys.executable, "-c", "import sys; print('torch' in sys.modules)"], env | variables, tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert not (tmp_path / "r" / "ddptop").exists()
