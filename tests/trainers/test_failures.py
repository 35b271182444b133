"""The user's own exception on one rank ends all of them at once, and the rank is named with its traceback."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.main import main
from tests.processes import DDPTOP, DDPTOP_RUN, DEADLINE_S, environment, free_port, run, started, until
from tests.trainers.pairs import SCRIPTS, TWO_RANKS

pytestmark = pytest.mark.slow  # twelve runs that fail

SCRIPT = str(SCRIPTS / "failing.py")
FAILS_AT = 10
WITHIN_S = 90.0
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


def assert_named(shown: dict[str, Any], state: str = "failed") -> None:
    """The rank that failed first, its words and its traceback."""
    assert shown["run"]["state"] == state
    first = shown["deaths"][0]
    assert (first["rank"], first["step"]) == (1, FAILS_AT), shown["deaths"]
    assert "ValueError: a label of -1 in shard 7" in first["reason"], first
    assert first["position"]["user_call"]["function"] == "augment", first
    assert [call["function"] for call in first["position"]["traces"][0]["calls"]][:2] == ["augment", "train"]
    alert = next(alert for alert in shown["alerts"] if alert["kind"] == "failed_rank")
    assert alert["rank"] == 1 and "a label of -1 in shard 7" in alert["message"]


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
    assert len(shown["ranks"]) == world
    assert_named(shown)

    report = told(capsys, "report", str(recording))
    assert "rank 1" in report and "a label of -1 in shard 7" in report, report
    assert "augment" in report and "failing.py" in report, report


def test_a_failed_rank_of_torchs_own_spawn_is_named_while_the_run_still_lives(tmp_path: Path) -> None:
    env = environment(tmp_path)
    script = [sys.executable, str(SCRIPTS / "mp_spawn.py"), str(tmp_path), str(free_port())]
    snapshots: list[dict[str, Any]] = []

    def failed() -> bool:
        done = run([*DDPTOP, "spawned", "--json"], env, tmp_path)
        snapshots.append(json.loads(done.stdout) if done.returncode == 0 else {"deaths": []})
        # Rank 0 ends for it, and may be reported first.
        known = [
            death for death in snapshots[-1]["deaths"] if death["reason"] and death["position"]["user_call"]
        ]
        return 1 in [death["rank"] for death in known] and snapshots[-1]["run"]["state"] == "lost"

    with started(
        [*DDPTOP_RUN, "--ddptop-name", "spawned", "--ddptop-exec", *script], env, tmp_path
    ) as process:
        until(failed, "the death of rank 1 in --json", DEADLINE_S)
        (tmp_path / "looked").touch()
        _, err = process.communicate(timeout=DEADLINE_S)
    assert snapshots[-1]["source"] == "live"
    assert_named(snapshots[-1], "lost")  # it has not failed before its launcher ends
    assert process.returncode != 0
    # mp.spawn raises the words of the lowest rank of those that ended before it looked: rank 0's gloo notices
    # within a millisecond that rank 1 is gone.
    words = {"0": "by peer", "1": "ValueError: a label of -1 in shard 7"}
    (ended,) = set(re.findall(r"Process (\d) terminated", err))
    assert words[ended] in err, err
