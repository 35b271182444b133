"""Hosts that leave and come back: the world shrinks and grows, and stays one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.jobs import enough, hosts_of, launch, launched, nothing_left, recorded, snapshot
from tests.hosts.namespaces import hosts
from tests.processes import until


@pytest.mark.slow
def test_a_host_that_is_killed_and_one_that_joins(tmp_path: Path) -> None:
    """Three hosts, of which one is powered off; later another launcher of it joins."""
    options = ("--ddptop-name", "run", "--max-restarts", "3")
    with (
        hosts(3, tmp_path) as (a, b, c),
        launched((a, b), "steps=0", "pause_ms=30", backend="c10d", nodes="1:3", options=options) as job,
    ):

        def world(size: int) -> dict[str, Any] | None:
            picture = snapshot(a, "run")
            if picture is None or picture["run"]["world_size"] != size:
                return None
            steps = [rank["step"] for rank in picture["ranks"][:size]]
            return picture if all(step is not None and step > 5 for step in steps) else None

        first = until(lambda: world(2), "two ranks")
        assert isinstance(first, dict)
        assert hosts_of(first) == ["node-a", "node-b"]
        joined = launch(c, (a, b, c), "steps=0", "pause_ms=30", backend="c10d", nodes="1:3", options=options)
        job.processes.append(joined)
        second = until(lambda: world(3), "three ranks")
        assert isinstance(second, dict)
        assert sorted(hosts_of(second)) == ["node-a", "node-b", "node-c"]
        assert second["group"]["incarnation"] > first["group"]["incarnation"]
        enough((a, b, c))
        assert job.wait() == [0, 0, 0], job.err
        end = recorded(a)
        assert end["run"]["state"] == "finished"
        nothing_left((a, b, c))
