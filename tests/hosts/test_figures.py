"""Verdicts between hosts: a slow rank is flagged with its host and cause, whatever the hosts' clocks say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.jobs import enough, hosts_of, launched, recorded, snapshot
from tests.hosts.namespaces import hosts
from tests.processes import until

AHEAD_S = (0, 5000, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["backward", "other"])
def test_20_ms_on_one_rank_of_three_hosts_with_clocks_5000_s_apart(place: str, tmp_path: Path) -> None:
    words = ("steps=0", "pause_ms=30", "slow=1", "slow_ms=20", f"place={place}")
    with hosts(3, tmp_path, clocks_s=AHEAD_S) as some, launched(some, *words) as job:

        def flagged() -> dict[str, Any] | None:
            picture = snapshot(some[0], "run")
            return picture if picture is not None and picture["straggler"] is not None else None

        picture = until(flagged, "a straggler", 200.0)
        assert isinstance(picture, dict)
        straggler = picture["straggler"]
        assert (straggler["rank"], straggler["cause"]) == (1, place)
        assert hosts_of(picture)[1] == "node-b"
        assert 10 < straggler["lateness_ms"] < 60
        for clock, ahead_s in zip(picture["clocks"], AHEAD_S, strict=True):
            assert abs(clock["offset_ms"] + ahead_s * 1e3) <= clock["bound_ms"] + 0.001
        enough(some)
        assert job.wait() == [0, 0, 0], job.err
        end = recorded(some[0])
        assert (end["straggler"] or picture["straggler"])["rank"] == 1
