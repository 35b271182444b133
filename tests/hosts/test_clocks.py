"""Clocks of hosts that are 5000 s apart: offsets are within their bounds, and a slow rank is flagged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.jobs import enough, launched, recorded, snapshot
from tests.hosts.namespaces import hosts
from tests.processes import until

CLOCKS_S = (0, 5_000, -5_000)
"""By which the monotonic clock of each host is ahead; it has run for longer than the last one is behind."""

PLACES = {"other": "between_steps", "backward": "backward"}
"""Where the rank sleeps, and where ddptop finds it: `tests/analysis/test_remote_hosts.py` has the others."""


def offsets_hold(picture: dict[str, Any]) -> None:
    """Every offset that was measured is wrong by less than its bound."""
    for host in picture["hosts"]:
        if host["clock_offset_ms"] is not None:
            true_ms = 1e3 * (CLOCKS_S[0] - CLOCKS_S["abc".index(host["name"][-1])])
            assert abs(host["clock_offset_ms"] - true_ms) <= host["clock_bound_ms"] + 1e-3, host


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_slow_rank_is_flagged_with_clocks_far_apart(place: str, tmp_path: Path) -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    clocks_s = CLOCKS_S if uptime_s > 1.1 * 5_000 else (5_000, 10_000, 0)
    words = ("steps=0", "pause_ms=30", "slow=1", "slow_ms=20", f"place={place}")
    with hosts(3, tmp_path, clocks_s=clocks_s) as (a, b, c), launched((a, b, c), *words) as job:

        def flagged() -> dict[str, Any] | None:
            picture = snapshot(a, "run")
            if picture is None:
                return None
            offsets_hold(picture)
            known = [host["clock_offset_ms"] is not None for host in picture["hosts"]]
            return picture if picture["straggler"] is not None and known == [False, True, True] else None

        found = until(flagged, "a straggler is flagged, and both clocks are known", 120.0)
        assert isinstance(found, dict)
        straggler = found["straggler"]
        assert (straggler["rank"], straggler["place"]) == (1, PLACES[place])
        assert 15 < straggler["lateness_ms"] < 40
        assert found["ranks"][1]["host"] == "node-b"
        sampled = until(lambda: (snapshot(a, "run") or {}).get("sampled"), "its agent passes the ASK on")
        assert sampled[0]["rank"] == 1 and "train.py:" in sampled[0]["line"]
        enough((a, b, c))
        assert job.wait() == [0, 0, 0], job.err
        end = recorded(a)
        offsets_hold(end)
        assert end["straggler"]["rank"] == 1
