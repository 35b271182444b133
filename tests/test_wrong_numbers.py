"""A loss that is NaN, replicas that differ, gradients that are not all-reduced: on which rank, since when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from ddptop.recording.reader import Recording
from ddptop.render.plain import draw_frame
from ddptop.report.build import read_report
from ddptop.report.text import text_page
from tests.processes import DDPTOP_RUN, environment, run
from tests.recording.replays import frame_at

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 250


def record(home: Path, *script: str | int) -> Path:
    """The recording of a script on three ranks."""
    path = home / "run.ddptop"
    # Steps of a few ms: at the default budget a busy machine has losses and parameters read less often.
    options = ["--ddptop-record", path, "--ddptop-budget", 50, "--standalone", "--nproc-per-node", 3]
    done = run([*DDPTOP_RUN, *map(str, options), *map(str, script)], environment(home), home)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("unhealthy"), str(SCRIPTS / "unhealthy.py"), STEPS)


def alerts(recording: Path, step: int) -> dict[str, dict[str, Any]]:
    shown: Any = snapshot(frame_at(recording, step))["alerts"]
    return {alert["kind"]: alert for alert in shown}


def test_before_nothing_is_wrong(recording: Path) -> None:
    # Ranks report dozens of steps at a time: rank 2 may have told of its step 57 before the others of 56.
    assert not {"nan", "replica_drift"} & set(alerts(recording, 5))


def test_the_rank_with_the_nan_is_named_with_its_step(recording: Path) -> None:
    found = alerts(recording, STEPS - 1)["nan"]
    assert (found["rank"], found["step"], found["evidence"]["ranks"]) == (2, 57, 3)


def test_the_replica_that_was_nudged_is_named_with_its_step(recording: Path) -> None:
    assert "replica_drift" not in alerts(recording, 79)
    found = alerts(recording, STEPS - 1)["replica_drift"]
    assert found["rank"] == 1
    # The first checksum after the nudge shows it: parameters are read every so many steps.
    assert found["evidence"]["equal_step"] < 80 <= found["step"]


def test_a_forward_past_ddp_is_said_everywhere_and_its_steps_go_on(tmp_path: Path) -> None:
    steps = 30
    path = record(tmp_path, str(SCRIPTS / "unsynchronised.py"), "bypass", steps)
    said = "gradients of Sequential are not synchronised: its forward bypasses DDP since step 0 (3 ranks)"
    early, last = frame_at(path, 3), frame_at(path, steps - 1)
    shown: Any = snapshot(early)
    assert (shown["verdict"]["kind"], shown["verdict"]["sentence"]) == ("not_synchronised", said)
    assert shown["verdict"]["detail"].endswith("their parameters differ since step 1")
    assert alerts(path, steps - 1)["not_synchronised"]["message"] == said
    assert last.group.step == steps - 1
    assert [event.message for event in last.events if event.kind == "not_synchronised"] == [said]
    assert not {"refused_messages", "lost_records"} & {*alerts(path, steps - 1)}
    assert said in draw_frame(last, 100)
    with Recording.open(path) as opened:
        text = " ".join(text_page(read_report(opened), 100).split())
    assert said in text
    assert "ddp(x), not ddp.module(x)" in text
    assert "ranks cannot be compared: none waits for another" in text
    assert "waiting cost" not in text


def test_a_wrong_no_sync_and_a_skipped_backward_are_said_with_their_steps(tmp_path: Path) -> None:
    path = record(tmp_path, str(SCRIPTS / "unsynchronised.py"), "several", 40)
    last = frame_at(path, 38)
    said = {event.kind: event.message for event in last.events}
    assert said["not_synchronised"] == (
        "gradients of Critic (DDP model 1) are not synchronised: backward runs under no_sync() before "
        "optimizer.step() since step 0 (3 ranks)"
    )
    assert said["skipped_backward"].startswith("rank 1 ran forward without backward in step 10 ")
    skipped = alerts(path, 38)["skipped_backward"]
    assert (skipped["rank"], skipped["step"]) == (1, 10)
    assert "never broadcast" not in draw_frame(last, 100)
