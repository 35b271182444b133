"""The user's own exception on one rank ends all of them at once, and the rank is named with its traceback."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.main import main
from tests.processes import DDPTOP_RUN, environment, free_port, run
from tests.trainers.pairs import SCRIPTS, TWO_RANKS

SCRIPT = str(SCRIPTS / "failing.py")
FAILS_AT = 10
WITHIN_S = 30.0
"""Until all is over. Waiting for the failed rank in a collective would be gloo's half hour."""

SRUN = ["--ddptop-exec", "bash", str(SCRIPTS / "like_srun.sh"), "4"]


def launch(how: str, folder: Path) -> list[str]:
    if how == "spawn":
        return ["--ddptop-exec", sys.executable, SCRIPT, str(folder), "spawn"]
    if how == "torchrun":
        return [*TWO_RANKS, SCRIPT, str(folder)]
    job = free_port()  # of which ddptop.setup() makes the port
    return [*SRUN, str(job), sys.executable, SCRIPT, str(folder)]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `ddptop` prints."""
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("how", "world"), [("spawn", 2), ("torchrun", 2), ("srun", 4)])
def test_a_failed_rank_ends_all_and_is_named_with_its_traceback(
    how: str, world: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = tmp_path / "run.ddptop"
    done = run(
        [*DDPTOP_RUN, "--ddptop-record", str(recording), *launch(how, tmp_path)],
        environment(tmp_path),
        tmp_path,
    )
    ended = time.time()
    assert done.returncode != 0
    assert "ValueError: a label of -1 in shard 7" in done.stderr
    assert ended - (tmp_path / "failed").stat().st_mtime < WITHIN_S

    shown: dict[str, Any] = json.loads(told(capsys, "replay", str(recording), "--json"))
    assert shown["run"]["state"] == "failed"
    assert len(shown["ranks"]) == world
    first = shown["deaths"][0]
    assert (first["rank"], first["step"]) == (1, FAILS_AT), shown["deaths"]
    assert "ValueError: a label of -1 in shard 7" in first["reason"], first
    assert first["testimony"]["user_call"]["function"] == "augment", first
    alert = next(alert for alert in shown["alerts"] if alert["kind"] == "failed_rank")
    assert alert["rank"] == 1 and "a label of -1 in shard 7" in alert["message"]

    report = told(capsys, "report", str(recording))
    assert "rank 1" in report and "a label of -1 in shard 7" in report, report
    assert "augment" in report and "failing.py" in report, report
