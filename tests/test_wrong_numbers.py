"""A loss that is NaN, and a replica that is not like the others: which rank, and since which step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from ddptop.sources.replay import frame_at
from tests.processes import DDPTOP_RUN, environment, run

SCRIPT = Path(__file__).parent / "scripts" / "unhealthy.py"
STEPS = 250


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("unhealthy")
    path = home / "run.ddptop"
    # Steps of a few ms: at the default budget a busy machine has losses and parameters read less often.
    words = [
        "--ddptop-record",
        path,
        "--ddptop-budget",
        50,
        "--standalone",
        "--nproc-per-node",
        "3",
        SCRIPT,
        STEPS,
    ]
    done = run([*DDPTOP_RUN, *map(str, words)], environment(home), home)
    assert done.returncode == 0, done.stderr
    return path


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
