"""`ddptop replay` and a run that has ended, on real recordings, without a screen."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptop.cli.commands.replay import show_recording
from ddptop.cli.show import Mode
from ddptop.recording.format import MAGIC
from tests.made_up_run import write_recording


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "train-k7qf.ddptop"
    write_recording(path)
    return path


def test_json_is_the_snapshot_of_the_end(ddptop, recording: Path) -> None:
    done = ddptop("replay", str(recording), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["schema"], shown["source"]) == (1, "replay")
    assert shown["run"]["state"] == "finished"
    assert shown["group"]["step"] == 99
    assert shown["straggler"]["rank"] == 1
    assert shown["straggler"]["cause"] == "data"


def test_json_at_a_step(ddptop, recording: Path) -> None:
    shown = json.loads(ddptop("replay", str(recording), "--json", "--at", "49").stdout)
    assert shown["group"]["step"] == 49
    assert shown["run"]["state"] == "live"


def test_piped_it_prints_one_picture(ddptop, recording: Path) -> None:
    done = ddptop("replay", str(recording))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ddptop train-k7qf   ✓ FINISHED   REPLAY   step 99")
    assert done.stdout == ddptop("replay", str(recording), "--once").stdout
    assert ddptop("replay", str(recording), "--ascii").stdout.isascii()
    assert ddptop("replay", str(recording), PYTHONIOENCODING="latin-1").stdout.isascii()


def test_watch_plays_to_the_end_and_ends(ddptop, recording: Path) -> None:
    done = ddptop("replay", str(recording), "--watch", "--speed", "20")
    assert (done.returncode, done.stderr) == (0, "")
    assert "step        99" in done.stdout.splitlines()[-1]


def test_an_ended_run_opens_its_recording_at_the_end(ddptop, tmp_path: Path) -> None:
    state = tmp_path / "state" / "ddptop"
    state.mkdir(mode=0o700)
    write_recording(state / "train-k7qf.ddptop", run_id="beef01")
    write_recording(state / "other-a2a2.ddptop", run_id="cafe02")
    for word in ("train-k7qf", "tr", "beef01", "bee"):
        shown = json.loads(ddptop(word, "--json").stdout)
        assert shown["run"]["id"] == "beef01"
        assert shown["group"]["step"] == 99
    assert "step 99" in ddptop("train").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing.ddptop"], 3, "no such file"),
        (["."], 3, "not a recording"),
        (["text"], 3, "not a ddptop recording"),
        (["empty"], 3, "empty"),
        (["future"], 3, "format"),
        (["train-k7qf.ddptop", "--at", "100"], 2, "holds steps 0 to 99"),
        (["train-k7qf.ddptop", "--at", "100", "--json"], 2, "holds steps 0 to 99"),
    ],
)
def test_mistakes_are_one_line(
    ddptop, recording: Path, tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "text").write_text("this is no recording\n" * 100)
    (tmp_path / "empty").touch()
    data = recording.read_bytes()
    (tmp_path / "future").write_bytes(data[: len(MAGIC) - 1] + bytes([MAGIC[-1] + 1]) + data[len(MAGIC) :])
    done = ddptop("replay", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_damaged_is_said(ddptop, recording: Path) -> None:
    data = bytearray(recording.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 32] = bytes(32)
    recording.write_bytes(data)
    done = ddptop("replay", str(recording), "--once")
    assert done.returncode == 0
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("damage: ")]
    assert "messages are missing" in line


def test_two_recordings_open_at_the_last_step_that_both_have(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter, opened = tmp_path / "b.ddptop", []
    write_recording(shorter, count=60, run_id="bb22")
    monkeypatch.setattr("ddptop.cli.show.choose_mode", lambda *_, **__: Mode.SCREEN)
    monkeypatch.setattr("ddptop.cli.show.show_source", lambda source, *_: opened.append(source) or 0)
    for first, second in ((recording, shorter), (shorter, recording)):
        assert show_recording(first, argparse.Namespace(), compare=second) == 0
        source = opened.pop()
        source.start()
        try:
            deadline = time.monotonic() + 60
            while (frame := source.latest()) is None or frame.group.step != 59 or source.other() is None:
                assert time.monotonic() < deadline, frame and frame.group.step
                time.sleep(0.005)
            assert frame.playback is not None and not frame.playback.playing
        finally:
            source.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_without_permission(ddptop, recording: Path) -> None:
    recording.chmod(0)
    done = ddptop("replay", str(recording))
    assert done.returncode == 4
    assert "permission denied" in done.stderr


def test_a_reader_that_leaves_is_no_error(home: dict[str, str], recording: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ddptop.cli.main", "replay", str(recording), "--json"]
    try:
        done = subprocess.run(command, env=home, stdout=writing, stderr=subprocess.PIPE, timeout=120)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_one_line(home: dict[str, str], recording: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-m", "ddptop.cli.main", "replay", str(recording), "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=home, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_replay_never_loads_torch(home: dict[str, str], recording: Path) -> None:
    code = (
        "import sys\nfrom ddptop.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "print([name for name in ('torch', 'textual', 'zmq') if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "replay", str(recording), "--json"]
    done = subprocess.run(command, env=home, capture_output=True, encoding="utf-8", timeout=120)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_end_no_command(ddptop, recording: Path, closed: str) -> None:
    words = f"ddptop replay {recording} --once"
    program = f"import sys; sys.argv = {words.split()}; from ddptop.cli.main import main; main()"
    line = f'{sys.executable} -c "{program}" {closed}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("" if ">&- 2" in closed or closed == ">&-" else "ddptop train-k7qf")
