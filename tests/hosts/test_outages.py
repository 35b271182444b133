"""Real ranks on several hosts while the collector is killed, an agent is killed, and a link is cut."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import LoggedEvent
from ddptop.recording.merge import merge_recordings
from ddptop.recording.reader import Recording
from tests.hosts.jobs import Job, enough, launched, nothing_left, recorded, shows, snapshot
from tests.hosts.namespaces import Host, hosts
from tests.processes import until


def process_of(host: Host, module: str) -> psutil.Process | None:
    for process in host.processes():
        with suppress(psutil.Error):  # it has exited meanwhile
            if module in process.cmdline():
                return process
    return None


def beyond(host: Host, steps: int) -> int:
    """Wait until every rank on the screen has so many steps more than now; returns the least step."""

    def least() -> int | None:
        picture = snapshot(host, "run")
        if picture is None or picture["run"]["state"] != "live":
            return None
        return min(rank["step"] or 0 for rank in picture["ranks"])

    now = until(least, "a live run")
    assert isinstance(now, int)
    last = until(lambda: (step := least()) is not None and step > now + steps and step, "further steps")
    assert isinstance(last, int)
    return last


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_nothing_is_lost_when_our_processes_are_killed_and_the_link_is_cut(tmp_path: Path) -> None:
    """And no rank is called missing whose agent was killed or cut off, not even for a moment."""
    options = ("--ddptop-name", "run", "--ddptop-stall", "5")
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0", "pause_ms=20", options=options) as job:
        shows(a, 2)
        for host, module in ((a, "ddptop.collector"), (b, "ddptop.agent"), (a, "ddptop.collector")):
            victim = until(lambda host=host, module=module: process_of(host, module), module)
            assert isinstance(victim, psutil.Process)
            victim.kill()
            until(
                lambda host=host, module=module, pid=victim.pid: (
                    (now := process_of(host, module)) is not None and now.pid != pid
                ),
                f"another {module}",
            )
            beyond(a, 20)
        b.cut()

        def lost() -> bool:
            picture = snapshot(a, "run")
            hosts_now = {} if picture is None else {host["name"]: host for host in picture["hosts"]}
            node_b = hosts_now.get("node-b", {"state": "live"})
            # For some seconds, so that every check for lost hosts has found it, also in a replay.
            return node_b["state"] == "lost" and node_b["age_ms"] > 14_000

        until(lost, "node-b is lost", 60.0)
        b.mend()
        agent = process_of(b, "ddptop.agent")
        assert agent is not None
        agent.kill()
        beyond(a, 20)
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        end = recorded(a)
        assert [rank["step"] for rank in end["ranks"]] == [int(job.out[0].split()[0])] * 2
        assert [(rank["records"], rank["lost_records"]) for rank in end["ranks"]] == [
            (int(job.out[0].split()[0]), 0)
        ] * 2
        nothing_left((a, b))
        critical = [event.message for event in events(a) if event.severity == "critical"]
        assert any("host node-b is lost" in text for text in critical)
        assert not [text for text in critical if "missing" in text]


def events(host: Host) -> Sequence[LoggedEvent]:
    """All that are in the recording on this host."""
    (path,) = (host.folder / "state" / "ddptop").glob("run.ddptop")
    reducer = Reducer()
    with Recording.open(path) as recording:
        for received in recording.records():
            reducer.feed(received)
    return reducer.frame(reducer.state.newest_ns).events


def ours(a: Host, b: Host) -> list[psutil.Process]:
    """The collector, which is on the first host, and the agent of the second one."""
    found = [process_of(a, "ddptop.collector"), process_of(b, "ddptop.agent")]
    assert all(found)
    return [process for process in found if process is not None]


def all_recorded(a: Host, job: Job, *, most_lost: int = 0) -> None:
    """Every step that was trained is in the recording, or counted as lost."""
    steps = int(job.out[0].split()[0])
    end = recorded(a)
    assert end["run"]["state"] == "finished"
    for rank in end["ranks"]:
        assert rank["records"] + rank["lost_records"] == steps, rank
        assert rank["lost_records"] <= most_lost, rank


@pytest.mark.slow
def test_launchers_exit_while_collector_and_agent_are_stopped(tmp_path: Path) -> None:
    """They wait for neither: both are stopped still when both launchers have exited."""
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0", "pause_ms=20") as job:
        shows(a, 2)
        stopped = ours(a, b)
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        assert [process.status() for process in stopped] == [psutil.STATUS_STOPPED] * 2
        assert any("goes on by itself" in line for line in job.lines(0)), job.err
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        nothing_left((a, b))
        all_recorded(a, job)


@pytest.mark.slow
def test_what_is_lost_is_counted_when_our_processes_are_killed_at_the_end(tmp_path: Path) -> None:
    """A rank that ends waits 0.8 s for another agent, and then leaves with what is not acked."""
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0", "pause_ms=20") as job:
        shows(a, 2)
        enough((a, b))
        for process in ours(a, b):
            process.kill()
        assert job.wait() == [0, 0], job.err
        nothing_left((a, b))
        all_recorded(a, job, most_lost=100)


@pytest.mark.slow
def test_a_host_that_never_reaches_the_collector_trains_and_records_by_itself(tmp_path: Path) -> None:
    """The collector's port is behind a firewall from the start."""
    options = ("--ddptop-name", "run", "--ddptop-port", "4712")
    with hosts(2, tmp_path) as (a, b):
        a.refuse(4712)
        with launched((a, b), "steps=400", "pause_ms=20", options=options) as job:
            assert job.wait() == [0, 0], job.err
        assert len([line for line in job.lines(1) if "the collector is not reached" in line]) == 1, job.err
        nothing_left((a, b))
        (main,) = (a.folder / "state" / "ddptop").glob("*.ddptop")
        (local,) = (b.folder / "state" / "ddptop").glob("*@node-b.ddptop")
        assert [rank["step"] for rank in recorded(a)["ranks"]] != [400, 400]
        merge_recordings([main, local], tmp_path / "whole.ddptop")
        whole = snapshot(a, "replay", str(tmp_path / "whole.ddptop"))
        assert whole is not None
        assert [(rank["step"], rank["records"], rank["lost_records"]) for rank in whole["ranks"]] == [
            (400, 400, 0)
        ] * 2, json.dumps(whole["ranks"])
