"""What `ddptop.spawn` says of a script that cannot spawn, and groups that end before their models."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import ddptop
from tests.processes import DEADLINE_S, environment, run
from tests.training.ddp import ranks

NO_MAIN_GUARD = """
import ddptop

def train(rank):
    pass

ddptop.spawn(train, 1)
"""


def test_a_script_without_a_main_guard_hears_what_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NO_MAIN_GUARD)
    done = run([sys.executable, script], environment(tmp_path), tmp_path)
    assert done.returncode == 1
    assert (
        "RuntimeError: ddptop.spawn() was reached while a process that this script has started" in done.stderr
    )
    assert "put what the script does below `if __name__ == '__main__':`" in done.stderr


def test_models_that_outlive_their_group_do_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DDPTOP", "0")
    spawned = ddptop.spawn(ranks.many_groups, 2, daemon=True, join=False)
    assert spawned is not None
    end = time.monotonic() + DEADLINE_S
    done = False
    while not done and time.monotonic() < end:
        done = spawned.join(1.0)
    assert done, "a group hangs at its end"
