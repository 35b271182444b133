"""A rank that fails before it is recorded says why in a file; what it starts, and forks, does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.host.early_failures import take_failures
from tests.processes import environment
from tests.training.conftest import INJECT

RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "2"}

HELPERS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", "raise ValueError('a helper')"], stderr=subprocess.DEVNULL)
if os.fork() == 0:
    raise ValueError("a forked child")
os.wait()
"""

FAILS = """
def load():
    raise OSError("no such shard\\nlook into /data")
load()
"""


def failures_of(tmp_path: Path, code: str, **variables: str) -> list[tuple[int, str]]:
    """Rank and reason of the failures that a script has left."""
    run_folder = tmp_path / "run"
    run_folder.mkdir(mode=0o700, exist_ok=True)
    env = environment(tmp_path) | {"PYTHONPATH": str(INJECT), "DDPTOP_RUN_ID": "aa"} | RANK
    env |= {"DDPTOP_RUN_DIR": str(run_folder)} | variables
    script = tmp_path / "train.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert "ddptop" not in done.stderr
    left = take_failures(run_folder, "aa", set())
    assert list(run_folder.iterdir()) == []
    return [(hello.rank, evidence.reason) for hello, evidence in left]


def test_a_rank_says_why_it_fails_and_helpers_of_a_rank_are_none(tmp_path: Path) -> None:
    assert failures_of(tmp_path, HELPERS) == []
    assert failures_of(tmp_path, HELPERS + FAILS) == [(1, "OSError: no such shard look into /data")]


def test_its_numbers_and_the_place_are_told(tmp_path: Path) -> None:
    run_folder = tmp_path / "run"
    run_folder.mkdir(mode=0o700)
    env = environment(tmp_path) | {"PYTHONPATH": str(INJECT), "DDPTOP_RUN_ID": "aa"} | RANK
    env["DDPTOP_RENDEZVOUS"] = "3"  # another host has restarted the ranks once more than this one
    command = [sys.executable, "-c", FAILS]
    subprocess.run(
        command, env=env | {"DDPTOP_RUN_DIR": str(run_folder)}, stderr=subprocess.DEVNULL, check=False
    )
    assert take_failures(run_folder, "another run", set()) == []
    subprocess.run(
        command, env=env | {"DDPTOP_RUN_DIR": str(run_folder)}, stderr=subprocess.DEVNULL, check=False
    )
    ((hello, evidence),) = take_failures(run_folder, "aa", set())
    assert (hello.rank, hello.local_rank, hello.world_size, hello.incarnation) == (1, 1, 4, 3)
    assert [call.function for call in evidence.stacks[0].frames] == ["load", "<module>"]
    assert evidence.message == ("OSError: no such shard", "look into /data")


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        (FAILS, {"DDPTOP": "0"}),
        (FAILS, {"RANK": "seven"}),
        (FAILS, {"RANK": "4"}),
        (FAILS, {"WORLD_SIZE": ""}),
        ("raise SystemExit(3)", {}),
        ("1", {}),
    ],
)
def test_where_nothing_is_to_be_said_nothing_is_left(
    tmp_path: Path, code: str, variables: dict[str, str]
) -> None:
    assert failures_of(tmp_path, code, **variables) == []


def test_a_folder_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"PYTHONPATH": str(INJECT), "DDPTOP_RUN_ID": "aa"} | RANK
    env["DDPTOP_RUN_DIR"] = str(tmp_path / "none")
    done = subprocess.run([sys.executable, "-c", FAILS], env=env, capture_output=True, text=True, check=False)
    plain = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


def test_files_that_are_no_failures_are_removed(tmp_path: Path) -> None:
    (tmp_path / "ddptop-failed-1").write_bytes(b"")
    (tmp_path / "ddptop-failed-2").write_bytes(b"\xff" * 1000)
    (tmp_path / "ddptop-failed-3").write_bytes(b"\x02\x00\x00\x00\x91\x01\x91\x0e")
    (tmp_path / "ddptop-failed-4").symlink_to("/etc/passwd")
    assert take_failures(tmp_path, "aa", set()) == []
    assert list(tmp_path.iterdir()) == []
