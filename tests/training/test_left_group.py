"""Ranks that have destroyed their process group and are then ended by force, as Ray ends its workers."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TypeVar

from ddptop.protocol.messages import Hello, Message, Steps
from ddptop.recording.reader import Recording, RecordingError
from tests.processes import DDPTOP_RUN, environment, free_port, run, started, until
from tests.recording.replays import frame_at

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 5
Kind = TypeVar("Kind", bound=Message)


def launched(recording: Path, *how: str) -> list[str]:
    """A launcher that is none of ours, which starts a rank for each word and does not mind how they end."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(how))}
    command = [sys.executable, str(SCRIPTS / "left.py"), *how]
    ranks = [(place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, command) for rank in range(len(how))]
    launcher = [sys.executable, str(SCRIPTS / "in_parallel.py"), json.dumps(ranks), "ignore"]
    return [*DDPTOP_RUN, "--ddptop-record", str(recording), "--ddptop-exec", *launcher]


def test_no_step_is_missing_and_nobody_is_dead(tmp_path: Path) -> None:
    recording = tmp_path / "left.ddptop"
    done = run(launched(recording, "exits", "killed"), environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{STEPS} steps" in done.stderr
    assert "lost" not in done.stderr
    frame = frame_at(recording, None)
    assert list(zip(frame.ranks.state, frame.ranks.step, strict=True)) == [("finished", STEPS)] * 2
    assert frame.deaths == ()
    assert frame.alerts == ()


def test_who_trains_on_in_another_group_is_seen_and_can_die(tmp_path: Path) -> None:
    recording = tmp_path / "again.ddptop"

    def told(kind: type[Kind]) -> list[Kind]:
        try:
            with Recording.open(recording) as opened:
                return [item.message for item in opened.records() if isinstance(item.message, kind)]
        except (OSError, RecordingError):  # not there yet
            return []

    with started(launched(recording, "again"), environment(tmp_path), tmp_path) as process:
        # Its last step is closed by a forward that does not come.
        until(lambda: sum(len(steps.rows) for steps in told(Steps)) == 2 * STEPS - 1, "steps in both groups")
        os.kill(told(Hello)[-1].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=120)
    assert [death.signal for death in frame_at(recording, None).deaths] == ["SIGKILL"], err
