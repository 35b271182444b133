"""Runs without a launcher of ours: one collector per host, which the training neither sees nor waits for."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from ddptop.frames.verdict import verdict
from ddptop.host.runs import RunFile, read_run_file
from ddptop.protocol.messages import Progress
from ddptop.recording.reader import Recording, RecordingError
from ddptop.report.build import read_report
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, free_port, names_ddptop, run, started, until
from tests.recording.replays import frame_at

SCRIPTS = Path(__file__).parent / "scripts"
TWO = ["--standalone", "--nproc-per-node", "2"]


def runs(home: Path) -> list[RunFile]:
    """As `ddptop ls` would find them, in the folder of this test."""
    found = (read_run_file(folder) for folder in (home / "r" / "ddptop").glob("*"))
    return [run for run in found if run is not None and psutil.pid_exists(run.pid)]


def of_srun(task: int, tasks: int) -> dict[str, str]:
    """The variables that Slurm's srun gives to a task on one node."""
    variables = {
        "NTASKS": tasks,
        "TASKS_PER_NODE": tasks,
        "NODEID": 0,
        "JOB_ID": os.getpid(),
        "JOB_NODELIST": "localhost",
        "PROCID": task,
        "LOCALID": task,
    }
    return {f"SLURM_{name}": str(value) for name, value in variables.items()}


def trains(run: RunFile, ranks: int = 2) -> bool:
    """Whether heartbeats of all ranks have been recorded from beyond the first step."""
    try:
        with Recording.open(Path(str(run.recording))) as opened:
            beats = [(item.rank, item.message) for item in opened.records()]
    except (OSError, RecordingError):  # not there yet
        return False
    seen = {rank for rank, message in beats if isinstance(message, Progress) and message.step > 0}
    return len(seen) == ranks


def test_the_first_rank_starts_the_collector_and_it_ends_with_the_training(tmp_path: Path) -> None:
    command = [*TORCHRUN, *TWO, SCRIPTS / "explicit.py", "0.5"]
    with started(command, environment(tmp_path), tmp_path) as training:
        (first,) = until(lambda: runs(tmp_path), "a run")  # type: ignore[misc]
        until(lambda: trains(first), "both ranks on record")
        collector = psutil.Process(first.pid)
        assert collector.nice() == 10
        assert not {process.pid for process in collector.parents()} & {training.pid, os.getpid()}
        assert os.getsid(first.pid) not in (os.getsid(training.pid), first.pid)
        assert {str(Path(f"/proc/{first.pid}/fd/{number}").readlink()) for number in (0, 1)} == {"/dev/null"}
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: [run for run in runs(tmp_path) if run.pid != first.pid], "another collector")
        (second,) = runs(tmp_path)
        assert (second.name, second.recording) == (first.name, first.recording)
        (tmp_path / "enough").touch()
        out, err = training.communicate(timeout=120)
    assert (training.returncode, names_ddptop(err)) == (0, False), err
    until(lambda: not psutil.pid_exists(second.pid), "the collector's end")
    frame = frame_at(Path(str(first.recording)), None)
    assert (frame.run.state, frame.run.exit_code) == ("finished", None)
    assert list(zip(frame.ranks.state, frame.ranks.step, strict=True)) == [("finished", int(out))] * 2
    assert list(frame.ranks.lost_records) == [0, 0]
    assert not list((tmp_path / "r" / "ddptop").iterdir())


def test_ctrl_c_ends_the_training_and_the_collector_tells_of_it(tmp_path: Path) -> None:
    words = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, SCRIPTS / "explicit.py"]
    with started(command, environment(tmp_path) | words, tmp_path) as training:
        (only,) = until(lambda: runs(tmp_path), "a run")  # type: ignore[misc]
        until(lambda: trains(only, ranks=1), "it on record")
        os.killpg(training.pid, signal.SIGINT)
        _, err = training.communicate(timeout=120)
    assert training.returncode == -signal.SIGINT, err
    until(lambda: not psutil.pid_exists(only.pid), "the collector's end")
    frame = frame_at(Path(str(only.recording)), None)
    assert frame.run.state == "failed"
    assert verdict(frame).sentence == "INTERRUPTED by SIGINT (Ctrl-C)"
    assert frame.deaths == ()


@pytest.mark.parametrize("how", ["torchrun", "srun", "exec"])
def test_a_signal_to_the_launcher_is_told_as_the_end_of_the_run(tmp_path: Path, how: str) -> None:
    """To torchrun alone; as `scancel` sends it, to all processes of all tasks at once; to a launcher of
    mp.spawn, whose ranks end when their parent does."""
    launcher = [*DDPTOP_RUN, "--ddptop-name", how]
    command = [*launcher, *TWO, SCRIPTS / "explicit.py"]
    if how == "srun":
        task = [*launcher, "--ddptop-exec", sys.executable, str(SCRIPTS / "explicit.py")]
        tasks = json.dumps([(of_srun(number, 2), task) for number in range(2)])
        command = [sys.executable, SCRIPTS / "in_parallel.py", tasks]
    elif how == "exec":
        command = [*launcher, "--ddptop-exec", sys.executable, SCRIPTS / "spawned_loop.py", str(free_port())]
    with started(command, environment(tmp_path), tmp_path) as job:
        (only,) = until(lambda: runs(tmp_path), "a run")  # type: ignore[misc]
        until(lambda: trains(only), "both ranks on record")
        (os.killpg if how == "srun" else os.kill)(job.pid, signal.SIGTERM)
        job.communicate(timeout=120)
    until(lambda: not psutil.pid_exists(only.pid), "the collector's end")
    recording = Path(str(only.recording))
    frame = frame_at(recording, None)
    found = verdict(frame)
    assert (found.kind, frame.run.state, frame.deaths) == ("ended_from_outside", "failed", ()), found
    assert found.sentence == "INTERRUPTED by SIGTERM (time limit, scancel, eviction?)"
    with Recording.open(recording) as opened:
        report = read_report(opened)
    assert [one.kind for one in report.verdict if one.sign == "critical"] == ["ended_from_outside"]
    assert not report.deaths
    assert not list((tmp_path / "r" / "ddptop").iterdir())


def test_switched_off_it_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    done = run([sys.executable, SCRIPTS / "explicit.py"], environment(tmp_path) | {"DDPTOP": "0"}, tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert not (tmp_path / "r" / "ddptop").exists() and not (tmp_path / "state").exists()


def test_launchers_started_once_per_rank_share_one_collector(tmp_path: Path) -> None:
    command = [*DDPTOP_RUN, "--ddptop-name", "shared", "--ddptop-exec", sys.executable]
    tasks = [(of_srun(task, 2), [*command, str(SCRIPTS / "explicit.py")]) for task in range(2)]
    words = [sys.executable, SCRIPTS / "in_parallel.py", json.dumps(tasks)]
    with started(words, environment(tmp_path), tmp_path) as job:
        (only,) = until(lambda: runs(tmp_path), "a run")  # type: ignore[misc]
        until(lambda: trains(only), "both ranks on record")
        assert [run.pid for run in runs(tmp_path)] == [only.pid]
        (tmp_path / "enough").touch()
        out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    told = [line for line in err.splitlines() if line.startswith("ddptop: ")]
    from_elsewhere = f"from elsewhere with `ddptop --connect slurm:{os.getpid()}`"
    assert told[0] == f"ddptop: run shared: watch it with `ddptop shared`, {from_elsewhere}"
    assert re.fullmatch(rf"ddptop: run shared: {int(out)} steps, recorded in .*/shared.ddptop", told[1])
    assert len(told) == 2
    until(lambda: not psutil.pid_exists(only.pid), "the collector's end")
