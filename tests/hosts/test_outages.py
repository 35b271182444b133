"""Real ranks on several hosts while the collector is killed, an agent is killed, and a link is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hosts.jobs import enough, launched, nothing_left, recorded, shows, snapshot
from tests.hosts.namespaces import Host, hosts
from tests.processes import until


def process_of(host: Host, module: str) -> psutil.Process | None:
    return next((process for process in host.processes() if module in process.cmdline()), None)


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
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0", "pause_ms=20") as job:
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

        def unreachable() -> dict[str, Any] | None:
            picture = snapshot(a, "run")
            states = {} if picture is None else {host["name"]: host["state"] for host in picture["hosts"]}
            return picture if states.get("node-b") in ("unreachable", "lost") else None

        until(unreachable, "node-b is unreachable", 30.0)
        b.mend()
        beyond(a, 20)
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        end = recorded(a)
        assert [rank["step"] for rank in end["ranks"]] == [int(job.out[0].split()[0])] * 2
        assert [(rank["records"], rank["lost_records"]) for rank in end["ranks"]] == [
            (int(job.out[0].split()[0]), 0)
        ] * 2
        nothing_left((a, b))
