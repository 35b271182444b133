"""`ddptop-run` on every host gives one run: one screen, one recording, weights as under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.jobs import enough, hosts_of, launched, nothing_left, recorded, shows, snapshot
from tests.hosts.namespaces import Host, hosts
from tests.processes import until


def test_two_hosts_are_one_run(tmp_path: Path) -> None:
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0") as job:
        assert hosts_of(shows(a, 2)) == ["node-a", "node-b"]

        def live() -> bool:
            """On a busy machine an agent may be silent for seconds."""
            found = [(host["name"], host["state"]) for host in shows(a, 2)["hosts"]]
            return found == [("node-a", "live"), ("node-b", "live")]

        until(live, "both hosts are live")
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        assert job.lines(0)[0].startswith("ddptop: run run: watch it with `ddptop run`, from elsewhere with")
        assert "@node-a/run`" in job.lines(0)[0]
        assert job.lines(1)[0].startswith("ddptop: run run: recorded on node-a, watch it with `ddptop --conn")
        end = recorded(a)
        assert end["run"]["state"] == "finished"
        assert [rank["step"] for rank in end["ranks"]] == [int(job.out[0].split()[0])] * 2
        assert hosts_of(end) == ["node-a", "node-b"]
        nothing_left((a, b))
        assert not list((b.folder / "state").glob("ddptop/*.ddptop"))


def weights(host: Host) -> str:
    return (host.folder / "weights").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ranks", "backend"), [(2, 2, "static"), (2, 2, "c10d"), (3, 1, "c10d")])
def test_the_same_weights_and_exit_codes_as_under_torchrun(
    number: int, ranks: int, backend: str, tmp_path: Path
) -> None:
    words = ("steps=60", "pause_ms=20", "weights=weights")
    with hosts(number, tmp_path) as some:
        with launched(some, *words, ranks=ranks, backend=backend, plain=True) as job:
            assert job.wait() == [0] * number, job.err
        plain = next(weights(host) for host in some if (host.folder / "weights").exists())
        for host in some:
            (host.folder / "weights").unlink(missing_ok=True)
        with launched(some, *words, ranks=ranks, backend=backend) as job:
            assert job.wait() == [0] * number, job.err
        assert next(weights(host) for host in some if (host.folder / "weights").exists()) == plain
        end = recorded(some[0])
        assert sorted(hosts_of(end)) == sorted(host.name for host in some for _ in range(ranks))
        assert [rank["step"] for rank in end["ranks"]] == [60] * number * ranks
        assert {rank["lost_records"] for rank in end["ranks"]} == {0}
        nothing_left(some)


@pytest.mark.slow
def test_with_hosts_off_each_host_is_recorded_by_itself(tmp_path: Path) -> None:
    options = ("--ddptop-name", "run", "--ddptop-hosts", "off")
    with hosts(2, tmp_path) as (a, b), launched((a, b), "steps=0", options=options) as job:
        for rank, host in enumerate((a, b)):
            picture = snapshot(host, "run", "--wait", "60")
            assert picture is not None
            assert all(line["host"] in (None, host.name) for line in picture["ranks"]), rank
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        for rank, host in enumerate((a, b)):
            assert recorded(host)["ranks"][rank]["step"] == int(job.out[0].split()[0])
        nothing_left((a, b))
