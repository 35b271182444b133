"""A link so slow in one direction that the clocks' bound is wider than the delay of a rank."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ddptop.host.collector_address import CollectorAddress
from tests.hosts.jobs import enough, in_repository, launched, recorded, snapshot
from tests.hosts.namespaces import hosts
from tests.hosts.test_outages import process_of
from tests.processes import DDPTOP, until

PORT = 4712
SLOW_MS = 20
LINK_MS = 60
"""From the agent to the collector, and nothing back: the offset is wrong by half of it."""


@pytest.mark.slow
def test_a_slow_rank_is_flagged_by_its_own_times_and_arrivals_are_not_compared(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("wide")  # short: sockets are below it, and a longer path is replaced
    options = ("--ddptop-name", "run", "--ddptop-port", str(PORT), "--ddptop-detail", "full")
    words = ("steps=0", "pause_ms=30", "slow=1", f"slow_ms={SLOW_MS}")
    words_of_link = f"{sys.executable} -m tests.link {PORT + 1} node-a:{PORT} --delay-ms {LINK_MS}"
    link = ["sh", "-c", f"sleep 1000 | {words_of_link}"]  # it ends with its standard input
    with hosts(2, folder) as (a, b), b.started(link, in_repository(b)):
        with launched((a, b), *words, options=options) as job:

            def address_file() -> Path | None:
                return next((b.folder / "r" / "ddptop").glob("*/collector.json"), None)

            path = until(address_file, "the collector's address on node-b")
            assert isinstance(path, Path)
            direct = CollectorAddress.from_text(path.read_text())
            over_link = replace(direct, endpoint=f"tcp://127.0.0.1:{PORT + 1}")
            path.write_text(over_link.to_text())  # the launcher writes it again only if the collector moves
            before = until(lambda: process_of(b, "ddptop.agent"), "the agent")
            assert isinstance(before, psutil.Process)
            before.kill()  # the next one knows the clock from exchanges over the link alone

            def flagged() -> dict[str, Any] | None:
                picture = snapshot(a, "run")
                if picture is None or not picture["straggler"] or not picture["group"]["clock_free"]:
                    return None
                # The rank may be flagged before the clocks have been compared at all.
                return picture if "bound of" in (picture["group"]["clock_reason"] or "") else None

            found = until(flagged, "a straggler is flagged without clocks", 120.0)
            assert isinstance(found, dict)
            straggler, group = found["straggler"], found["group"]
            assert (straggler["rank"], straggler["place"], straggler["basis"]) == (
                1,
                "backward",
                "every_step",
            )
            assert 15 < straggler["lateness_ms"] < 40
            (remote,) = [host for host in found["hosts"] if host["name"] == "node-b"]
            assert remote["clock_bound_ms"] > SLOW_MS
            assert abs(remote["clock_offset_ms"]) <= remote["clock_bound_ms"]
            assert "wider than" in group["clock_reason"], group
            assert all(rank["lateness_ms"] is None for rank in found["ranks"]), found["ranks"]
            lines = a.run([*DDPTOP, "run", "--once"], in_repository(a)).stdout
            assert group["clock_reason"].split("±")[0] in lines, lines
            assert "node-b" in lines and "rank 1" in lines, lines
            enough((a, b))
            assert job.wait() == [0, 0], job.err
        assert recorded(a)["straggler"]["rank"] == 1
