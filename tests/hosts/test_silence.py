"""A host that is cut off or dies is named within 15 s; what a cut off one kept is complete in the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ddptop.analysis.health.hosts import UNREACHABLE_S
from ddptop.analysis.reducer import Reducer
from ddptop.recording.reader import Recording
from tests.hosts.jobs import enough, launched, recorded, shows, snapshot
from tests.hosts.namespaces import Host, hosts
from tests.processes import until

WITHIN_S = 15.0
"""Time from the cut to a verdict that names the host, by the time that the frame shows."""


def names_the_host(screen: Host, silent: Host) -> dict[str, Any]:
    """Wait for a verdict about the silent host, with its rank and its last step."""
    says = f"host {silent.name} is"

    def named() -> dict[str, Any] | None:
        picture = snapshot(screen, "run")
        return picture if picture is not None and says in picture["verdict"]["sentence"] else None

    cut_s = time.time()
    picture = until(named, f"a verdict about {silent.name}", 60.0)
    assert isinstance(picture, dict)
    assert "rank 2, last at step" in picture["verdict"]["sentence"]
    (state,) = [host["state"] for host in picture["hosts"] if host["name"] == silent.name]
    assert state in ("unreachable", "lost")
    seen_s = picture["run"]["started_at"] + picture["run"]["elapsed_s"]
    assert seen_s - cut_s < WITHIN_S
    return picture


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_named_and_nothing_is_lost_when_it_returns(tmp_path: Path) -> None:
    with hosts(3, tmp_path) as (a, b, c), launched((a, b, c), "steps=0", "pause_ms=20") as job:
        shows(a, 3)
        c.cut()
        names_the_host(a, c)
        c.mend()

        def back() -> bool:
            picture = snapshot(a, "run")
            return picture is not None and {host["state"] for host in picture["hosts"]} == {"live"}

        until(back, "all hosts are live again", 60.0)
        before = shows(a, 3)["ranks"][2]["step"]
        shows(a, 3, beyond=before)
        enough((a, b, c))
        assert job.wait() == [0, 0, 0], job.err
        end = recorded(a)
        assert {rank["lost_records"] for rank in end["ranks"]} == {0}
        assert [rank["records"] for rank in end["ranks"]] == [int(job.out[0].split()[0])] * 3
        assert end["run"]["state"] == "finished"


@pytest.mark.slow
def test_a_host_whose_agent_does_not_run_is_not_unreachable_while_steps_finish(tmp_path: Path) -> None:
    with hosts(3, tmp_path) as (a, b, c), launched((a, b, c), "steps=0", "pause_ms=20") as job:
        shows(a, 3)
        (agent,) = [one for one in c.processes() if "ddptop.agent" in one.cmdline()]

        def age_s() -> float:
            (age_ms,) = [host["age_ms"] for host in shows(a, 3)["hosts"] if host["name"] == c.name]
            return float(age_ms) / 1e3

        agent.suspend()
        try:
            until(lambda: age_s() > UNREACHABLE_S + 1, "nothing comes from the host", 30.0)
        finally:
            agent.resume()
        before = shows(a, 3)["ranks"][2]["step"]
        shows(a, 3, beyond=before)
        enough((a, b, c))
        assert job.wait() == [0, 0, 0], job.err
        (path,) = (a.folder / "state" / "ddptop").glob("run.ddptop")
        with Recording.open(path) as recording:
            reducer = Reducer()
            for received in recording.records():
                reducer.feed(received)
        assert "unreachable" not in str(reducer.frame(reducer.state.newest_ns).events)


@pytest.mark.slow
def test_a_host_that_dies_is_named(tmp_path: Path) -> None:
    with hosts(3, tmp_path) as (a, b, c), launched((a, b, c), "steps=0", "pause_ms=20"):
        shows(a, 3)
        c.kill()
        names_the_host(a, c)
