"""A slow rank is named, with the phase that holds the delay, where phase timers alone see equal ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.processes import DDPTOP, DDPTOP_RUN, environment, run

SCRIPT = Path(__file__).parent / "runtime" / "scripts" / "slow_rank.py"
SLEEP_MS = 30.0
STEPS = 140


@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer", "other"])
def test_the_rank_that_the_others_wait_for_is_named(place: str, tmp_path: Path) -> None:
    env = environment(tmp_path)
    recording = tmp_path / "slow.ddptop"
    options = ["--ddptop-record", str(recording), "--standalone", "--nproc-per-node", "2"]
    done = run([*DDPTOP_RUN, *options, str(SCRIPT), place, str(STEPS)], env, tmp_path)
    assert done.returncode == 0, done.stderr
    shown = run([*DDPTOP, "replay", str(recording), "--json"], env, tmp_path)
    snapshot = json.loads(shown.stdout)
    straggler = snapshot["straggler"]
    assert straggler is not None, snapshot["group"]
    assert (straggler["rank"], straggler["cause"]) == (1, place)
    # A sleep is never shorter than asked for, and on a busy machine a few ms longer.
    assert SLEEP_MS * 0.95 < straggler["lateness_ms"] < SLEEP_MS * 1.4
    victim, culprit = snapshot["ranks"]
    assert victim["wait_ms"] > SLEEP_MS * 0.95 > culprit["wait_ms"]
    assert victim["backward_ms"] > SLEEP_MS * 0.95, "phase timers show the victim's backward as long"
    assert culprit["last_pct"] > 90
