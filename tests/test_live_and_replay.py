"""One run, looked at while it lives and afterwards: the same figures, also from a damaged recording."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.processes import (
    DDPTOP,
    DDPTOP_RUN,
    DEADLINE_S,
    collector_below,
    environment,
    live_step,
    run,
    started,
    until,
)

SCRIPT = Path(__file__).parent / "training" / "scripts" / "paced.py"
STEPS = 360


@dataclass
class Watched:
    """What was seen of a run: snapshots while it lived, and its recording."""

    home: Path
    env: dict[str, str]
    snapshots: list[dict[str, Any]]
    recording: Path
    out: str
    err: str

    def replayed(self, step: int, recording: Path | None = None) -> dict[str, Any]:
        """The snapshot of the recording at a step."""
        command = [*DDPTOP, "replay", str(recording or self.recording), "--json", "--at", str(step)]
        done = run(command, self.env, self.home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def watch(home: Path, *, kill_collector: bool) -> Watched:
    env = environment(home)
    words = ["--ddptop-name", "both", "--standalone", "--nproc-per-node", "2", str(SCRIPT), str(STEPS)]
    words += [str(home), "270"]
    snapshots: list[dict[str, Any]] = []

    def look(step: int) -> bool:
        """At a step from this one on."""
        if (live_step(env) or 0) < step:
            return False
        done = run([*DDPTOP, "both", "--json"], env, home)
        if done.returncode or json.loads(done.stdout)["source"] != "live":
            return False
        snapshots.append(json.loads(done.stdout))
        [host] = snapshots[-1]["hosts"] or [{"cpu_pct": None}]  # a new collector has it after two readings
        return (snapshots[-1]["group"]["step"] or 0) >= step and host["cpu_pct"] is not None

    with started([*DDPTOP_RUN, *words], env, home) as process:
        until(lambda: look(60), "60 steps")
        until(lambda: look(120), "120 steps")
        if kill_collector:
            os.kill(collector_below(process.pid), signal.SIGKILL)
        until(lambda: look(200), "200 steps")
        until(lambda: look(260), "260 steps")
        (home / "go").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, err
    found = re.search(r"recorded in (\S+\.ddptop)", err)
    assert found, err
    return Watched(home, env, snapshots, Path(found[1]), out, err)


@pytest.fixture(
    scope="module",
    params=[pytest.param(False, marks=pytest.mark.slow), True],
    ids=["undisturbed", "collector killed"],
)
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    yield watch(tmp_path_factory.mktemp("both"), kill_collector=request.param)


def figures(snapshot: dict[str, Any]) -> dict[str, Any]:
    """All of a snapshot but ages, clocks, how far each rank is ahead of the last complete step, and readings:
    a rank sends what it has read from disk every 2 s, and a frame before and one after it may have the same
    complete step."""
    run_ = {k: v for k, v in snapshot["run"].items() if k not in ("elapsed_s", "state")}
    readings = ("rss_bytes", "cpu_pct", "step_read_bytes")
    moving = ("age_ms", "state", "step", "bucket", "sequence", "records", *readings)
    ranks = [{k: v for k, v in rank.items() if k not in moving} for rank in snapshot["ranks"]]
    alerts = [{k: v for k, v in alert.items() if k != "since_s"} for alert in snapshot["alerts"]]
    return {
        "run": run_,
        "group": snapshot["group"],
        "ranks": ranks,
        "buckets": snapshot["buckets"],
        "straggler": snapshot["straggler"],
        "alerts": alerts,
    }


def judged(snapshots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with figures in them, a few."""
    return [snapshot for snapshot in snapshots if (snapshot["group"]["step"] or 0) > 20][-4:]


def test_a_recording_replays_to_the_figures_that_were_live(watched: Watched) -> None:
    snapshots = judged(watched.snapshots)
    assert len(snapshots) >= 2
    for live in snapshots:
        assert figures(watched.replayed(live["group"]["step"])) == figures(live)


def test_so_does_one_whose_last_bytes_are_cut_off(watched: Watched) -> None:
    torn = watched.recording.with_name("torn.ddptop")
    shutil.copy(watched.recording, torn)
    os.truncate(torn, torn.stat().st_size - 37)
    for live in judged(watched.snapshots)[:2]:
        assert figures(watched.replayed(live["group"]["step"], torn)) == figures(live)


def test_nothing_is_lost(watched: Watched) -> None:
    end = watched.replayed(STEPS - 1)
    assert end["group"]["step"] == STEPS - 1
    assert [rank["records"] for rank in end["ranks"]] == [STEPS, STEPS]
    assert [rank["lost_records"] for rank in end["ranks"]] == [0, 0]
    assert "missing" not in watched.err


def test_the_figures_are_there(watched: Watched) -> None:
    last = judged(watched.snapshots)[-1]
    assert last["group"]["step_ms"]["p50"] > 0
    assert last["group"]["loss"]["mean"] > 0
    assert last["group"]["steps_per_s"] > 0
    assert last["overhead"]["us_per_step"] > 0
    for snapshot in (last, watched.replayed(STEPS - 1)):
        [host] = snapshot["hosts"]  # the user's own machine, also where it is the only one
        assert host["collector"] and host["cpu_pct"] is not None
        assert 0 < host["memory_used_bytes"] < host["memory_bytes"]
    assert len(last["buckets"]) >= 2
    for bucket in last["buckets"]:
        assert bucket["collective_ms"] >= bucket["transfer_ms"] > 0
        assert bucket["busbw_gbps"] > 0
    for rank in last["ranks"]:
        phases = [rank[f"{name}_ms"] for name in ("data", "forward", "backward", "optimizer", "other")]
        assert all(value is not None for value in phases)
        assert rank["step_ms"] > 0


def test_the_columns_of_every_rank_add_up_to_its_step(watched: Watched) -> None:
    env = watched.env | {"COLUMNS": "200"}  # with room for every column
    done = run([*DDPTOP, "replay", str(watched.recording), "--once"], env, watched.home)
    assert done.returncode == 0, done.stderr
    assert_columns_add_up(done.stdout, ranks=2)


def assert_columns_add_up(picture: str, *, ranks: int) -> None:
    """Each row's parts, as they are printed: rounded to a tenth."""
    titles, *rows = picture[picture.index("\nrank ") + 1 :].splitlines()[: 1 + ranks]
    names = re.split(r"\s{2,}", titles)
    for text in rows:
        row = dict(zip(names, re.split(r"\s{2,}", text.strip()), strict=True))
        parts = [row[name] for name in ("data", "fwd", "bwd", "lost", "transfer", "opt", "other")]
        total = sum(float(part.strip("~").replace(",", "")) for part in parts)
        assert abs(total - float(row["ms/step"].replace(",", ""))) <= 0.05 * (len(parts) + 1) + 1e-6, text
