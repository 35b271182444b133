"""`ddptop demo --simulate`: made-up ranks through the real collector."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptop.cli.errors import CliError, Exit
from ddptop.cli.main import main
from ddptop.cli.simulate import Simulated
from tests.recording.replays import frame_at

PATIENCE_S = 120


def demo(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run it in a home of its own."""
    home.mkdir(mode=0o700, exist_ok=True)
    places = {"XDG_RUNTIME_DIR": str(home), "XDG_STATE_HOME": str(home), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "ddptop.cli.main", "demo", "--simulate", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=places, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
    )


def test_a_line_a_second_and_a_recording_that_says_it_is_simulated(tmp_path: Path) -> None:
    done = demo(tmp_path / "h", "24", "--headless", "--steps", "45")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) >= 2
    assert "finished" in lines[-1]
    [recording] = (tmp_path / "h").rglob("*.ddptop")
    assert f"ddptop replay {recording}" in done.stderr
    frame = frame_at(recording, None)
    assert (frame.source, frame.run.state, frame.run.world_size) == ("simulated", "finished", 24)
    assert (frame.group.step, frame.lost_records) == (44, 0)
    assert len(frame.clocks) == 3
    assert not list((tmp_path / "h").rglob("ingest")), "no folder of a run is left behind"


def test_ranks_that_end_before_anybody_looks_are_shown_all_the_same(tmp_path: Path) -> None:
    done = demo(tmp_path / "h", "2", "--headless", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert " finished " in done.stdout.splitlines()[-1]


def test_json_is_one_snapshot(tmp_path: Path) -> None:
    done = demo(tmp_path / "h", "9", "--json")
    assert done.returncode == 0, done.stderr
    snapshot = json.loads(done.stdout)
    assert snapshot["source"] == "simulated"
    [recording] = (tmp_path / "h").rglob("*.ddptop")
    assert frame_at(recording, None).run.state == "finished", "who leaves it has not made it fail"


def test_where_nothing_can_be_recorded_no_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(CliError, match="cannot simulate"):
        Simulated("demo-1", 2, 3)
    assert not list((tmp_path / "ddptop").glob("*"))


def test_made_up_ranks_end_with_whoever_started_them(tmp_path: Path) -> None:
    words = ["-m", "ddptop.sources.simulation", "--directory", str(tmp_path), "--run-id", "x", "--ranks", "2"]
    orphan = f"""
import os, subprocess, sys
command = [sys.executable, *{words!r}, "--parent", str(os.getpid())]
print(subprocess.Popen(command, stdin=subprocess.PIPE).pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", orphan], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    process = Path("/proc") / parent.stdout.readline().strip()
    running = "ddptop.sources.simulation"
    deadline = time.monotonic() + PATIENCE_S
    while not loaded(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    while process.exists() and running in (process / "cmdline").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def loaded(process: Path) -> bool:
    """Whether it has come as far as making up steps: numpy and ZeroMQ are there."""
    return "_zmq" in (process / "maps").read_text()


@pytest.mark.parametrize("ranks", ["0", "-3", "many", "100000"])
def test_no_number_of_ranks(ranks: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--simulate={ranks}"]) == Exit.USAGE
    assert ranks in capsys.readouterr().err
