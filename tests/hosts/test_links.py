"""The network between hosts: connections of the ranks are read from the kernel, and named by both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddptop.protocol.hosts import HostLink, HostUsage
from ddptop.recording.reader import Recording
from tests.hosts.cable import Cable
from tests.hosts.jobs import enough, launched, shows, snapshot
from tests.hosts.namespaces import hosts
from tests.processes import until


@pytest.mark.slow
def test_the_connections_of_the_ranks_are_measured_at_both_ends(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        hosts(2, tmp_path_factory.mktemp("short")) as (a, b),
        launched((a, b), "steps=0", "pause_ms=5") as job,
    ):
        shows(a, 2)

        def links() -> dict[tuple[str, str], HostLink]:
            (path,) = (a.folder / "state" / "ddptop").glob("run.ddptop")
            with Recording.open(Path(path)) as recording:
                usages = [r.message for r in recording.records() if isinstance(r.message, HostUsage)]
            return {(link.own, link.peer): link for usage in usages for link in usage.links or ()}

        def busy_at_each_end() -> dict[tuple[str, str], HostLink] | None:
            found = links()
            return found if len(found) == 2 and all(link.sent > 10 for link in found.values()) else None

        found = until(busy_at_each_end, "a reading with traffic at each end")
        assert isinstance(found, dict)
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        assert found.keys() == {(a.address, b.address), (b.address, a.address)}
        for link in found.values():
            assert link.connections > 0
            assert 0 < link.least_us <= link.round_trip_us


@pytest.mark.slow
def test_a_link_that_loses_segments_is_the_verdict_and_no_rank_is_flagged(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        hosts(2, tmp_path_factory.mktemp("lossy")) as (a, b),
        launched((a, b), "steps=0", "pause_ms=5") as job,
    ):
        shows(a, 2)
        a.lose(10)

        def named() -> dict[str, Any] | None:
            picture = snapshot(a, "run")
            return picture if picture is not None and picture["verdict"]["kind"] == "network" else None

        found = until(named, "the verdict names the network", 90.0)
        assert isinstance(found, dict)
        words = found["verdict"]["sentence"]
        assert f"network from host {b.name} to host {a.name}: " in words and "segments lost" in words
        assert found["straggler"] is None
        assert [alert["rank"] for alert in found["alerts"] if alert["kind"] == "network"] == [None]
        enough((a, b))
        assert job.wait() == [0, 0], job.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_a_slow_link_of_two_and_of_three_hosts_is_named_with_its_two_ends(
    tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    with hosts(number, tmp_path_factory.mktemp("slow")) as made, Cable(made[1], made[0]) as cable:
        cable.delay_s = cable.back_delay_s = 0.01
        with launched(made, "steps=0", "pause_ms=5") as job:
            shows(made[0], number)

            def named() -> dict[str, Any] | None:
                picture = snapshot(made[0], "run")
                kinds = {alert["kind"] for alert in picture["alerts"]} if picture is not None else ()
                return picture if "network" in kinds else None

            found = until(named, "an alert names the link", 90.0)
            assert isinstance(found, dict)
            (alert,) = [alert for alert in found["alerts"] if alert["kind"] == "network"]
            assert {alert["evidence"]["host"], alert["evidence"]["peer"]} == {made[0].name, made[1].name}
            assert "round trip 2" in alert["message"] and alert["rank"] is found["straggler"] is None
            enough(made)
            assert not any(job.wait()), job.err
