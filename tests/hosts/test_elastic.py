"""Hosts that join and leave: the world grows and shrinks, and stays one run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.jobs import (
    enough,
    hosts_of,
    in_repository,
    launch,
    launched,
    nothing_left,
    recorded,
    shows,
    snapshot,
)
from tests.hosts.namespaces import Host, hosts
from tests.processes import DDPTOP, until

OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Otherwise torchrun (2.13) hangs when a host joins: the launcher of rank 0 does not write the address of its
store again, for which the newcomer waits."""


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_host_that_joins_and_leaves(tmp_path: Path) -> None:
    options = ("--ddptop-name", "run", "--max-restarts", "3")
    script = ("steps=0", "pause_ms=30")
    with (
        hosts(3, tmp_path) as (a, b, c),
        launched((a, b), *script, backend="c10d", nodes="1:3", options=options, variables=OWN_STORE) as job,
    ):

        def world(size: int, incarnation: int) -> dict[str, Any] | None:
            picture = snapshot(a, "run")
            if picture is None or picture["run"]["world_size"] != size:
                return None
            steps = [rank["step"] for rank in picture["ranks"][:size]]
            trains = all(step is not None and step > 5 for step in steps)
            return picture if trains and picture["group"]["incarnation"] >= incarnation else None

        first = until(lambda: world(2, 0), "two ranks")
        assert isinstance(first, dict)
        assert sorted(hosts_of(first)) == ["node-a", "node-b"]
        late = launch(
            c, (a, b, c), *script, backend="c10d", nodes="1:3", options=options, variables=OWN_STORE
        )
        job.processes.append(late)
        second = until(lambda: world(3, 1), "three ranks")
        assert isinstance(second, dict)
        assert sorted(hosts_of(second)) == ["node-a", "node-b", "node-c"]
        late.signal(signal.SIGTERM)
        third = until(lambda: world(2, 2), "two ranks again")
        assert isinstance(third, dict)
        assert sorted(hosts_of(third)[:2]) == ["node-a", "node-b"]
        enough((a, b))
        codes = job.wait()
        assert codes[:2] == [0, 0], job.err
        nothing_left((a, b, c))
        assert recorded(a)["run"]["state"] == "finished"


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_host_that_joins_a_script_without_our_launcher_is_collected(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The host that began keeps the collector; the one that joins owns the store of the new group."""
    folder = tmp_path_factory.mktemp("short")
    with hosts(2, folder) as (a, b), launched((), plain=True) as job:
        printed = a.run([*DDPTOP, "env", "--name", "run", "--json"], in_repository(a)).stdout
        variables = OWN_STORE | json.loads(printed)

        def begin(host: Host) -> None:
            words = ("steps=0", "pause_ms=30")
            job.processes.append(
                launch(host, (b, a), *words, backend="c10d", nodes="1:2", variables=variables, plain=True)
            )

        begin(b)
        assert hosts_of(shows(b, 1)) == ["node-b"]
        begin(a)
        assert hosts_of(shows(b, 2)) == ["node-a", "node-b"]
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        nothing_left((a, b))
        end = recorded(b)
        assert end["run"]["state"] == "finished"
        assert {rank["step"] for rank in end["ranks"]} == {int(job.out[1].split()[0])}
        assert [*(a.folder / "state").glob("ddptop/*.ddptop")] == []
