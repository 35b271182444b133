"""Jobs whose ranks are started by something else: they are one run all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.jobs import (
    TRAIN,
    enough,
    hosts_of,
    in_repository,
    nothing_left,
    python,
    recorded,
    shows,
    tasks,
)
from tests.hosts.namespaces import Host, hosts
from tests.processes import DDPTOP, DDPTOP_RUN, names_ddptop

NAMED = {"DDPTOP_NAME": "run"}


def ends_well(a: Host, b: Host, ranks: int, steps: int) -> None:
    end = recorded(a)
    assert [rank["step"] for rank in end["ranks"]] == [steps] * ranks
    assert {rank["lost_records"] for rank in end["ranks"]} == {0}
    nothing_left((a, b))
    assert not list((b.folder / "state").glob("ddptop/*.ddptop"))


@pytest.mark.slow
def test_srun_with_a_launcher_for_each_task(tmp_path: Path) -> None:
    command = [*DDPTOP_RUN, "--ddptop-name", "run", "--ddptop-exec", *python(TRAIN, "steps=0", "setup=yes")]
    with hosts(2, tmp_path) as (a, b), tasks((a, b), command, each=2, slurm=True) as job:
        assert hosts_of(shows(a, 4)) == ["node-a", "node-a", "node-b", "node-b"]
        enough((a, b))
        assert job.wait() == [0] * 4, job.err
        told = [line for number in range(4) for line in job.lines(number)]
        assert (
            sum(
                "watch it with `ddptop run`, from elsewhere with `ddptop --connect slurm:4711`" in line
                for line in told
            )
            == 1
        )
        assert (
            sum("recorded on node-a, watch it with `ddptop --connect slurm:4711`" in line for line in told)
            == 1
        )
        ends_well(a, b, 4, int(job.out[0].split()[0]))


@pytest.mark.slow
def test_setup_without_any_launcher(tmp_path: Path) -> None:
    command = python(TRAIN, "steps=0", "setup=yes")
    with hosts(2, tmp_path) as (a, b), tasks((a, b), command, each=2, variables=NAMED) as job:
        assert hosts_of(shows(a, 4)) == ["node-a", "node-a", "node-b", "node-b"]
        enough((a, b))
        assert job.wait() == [0] * 4, job.err
        assert not any(map(names_ddptop, job.err))
        ends_well(a, b, 4, int(job.out[0].split()[0]))


@pytest.mark.slow
def test_the_variables_of_ddptop_env_in_the_environment_of_a_plain_script(tmp_path: Path) -> None:
    with hosts(2, tmp_path) as (a, b):
        printed = a.run([*DDPTOP, "env", "--name", "run", "--json"], in_repository(a)).stdout
        with tasks((a, b), python(TRAIN, "steps=0"), each=2, variables=json.loads(printed)) as job:
            assert hosts_of(shows(a, 4)) == ["node-a", "node-a", "node-b", "node-b"]
            enough((a, b))
            assert job.wait() == [0] * 4, job.err
            ends_well(a, b, 4, int(job.out[0].split()[0]))


@pytest.mark.slow
def test_a_launcher_in_each_pod_with_the_variables_of_an_operator(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """One process per pod, as a PyTorchJob has it; the collector's port is given."""
    words = ["--ddptop-name", "run", "--ddptop-port", "4712", "--ddptop-exec"]
    command = [*DDPTOP_RUN, *words, *python(TRAIN, "steps=0")]
    folder = tmp_path_factory.mktemp("pods")  # short: sockets are below it, and a longer path is replaced
    with hosts(2, folder) as (a, b), tasks((a, b), command) as job:
        assert hosts_of(shows(a, 2)) == ["node-a", "node-b"]
        (address,) = (b.folder / "r" / "ddptop").glob("*/collector.json")
        assert json.loads(address.read_text())["endpoint"] == f"tcp://{a.address}:4712"
        enough((a, b))
        assert job.wait() == [0, 0], job.err
        assert "watch it with `ddptop run`" in job.lines(0)[0]
        assert "recorded on node-a" in job.lines(1)[0]
        ends_well(a, b, 2, int(job.out[0].split()[0]))
