"""What ddptop starts beside a training has nothing of the training's in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddptop.transport import beside
from tests.processes import run


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH came with Python 3.11")
def test_modules_of_the_current_folder_are_not_taken_for_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('of the user')")
    done = run([sys.executable, "-m", "ddptop.collector", "--help"], beside.environment(), tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    inject = str(Path(__file__).parents[2] / "ddptop" / "runtime" / "inject")
    monkeypatch.setenv("PYTHONPATH", f"{inject}:/of/the/user")
    monkeypatch.setenv("DDPTOP_RUN_DIR", "/run")
    monkeypatch.setenv("DDPTOP_AGENT", "0:0")
    monkeypatch.setenv("DDPTOP_STALL", "5")
    found = beside.environment()
    assert {name for name in found if name.startswith("DDPTOP_")} == {"DDPTOP_STALL"}
    assert found["PYTHONPATH"].split(":")[0] == "/of/the/user"
    assert inject not in found["PYTHONPATH"]
