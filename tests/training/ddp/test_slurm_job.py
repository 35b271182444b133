"""The tasks of a Slurm job on two nodes become one group, with nothing set but what srun sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import warm
from tests.hosts.namespaces import Host, hosts
from tests.processes import DEADLINE_S, environment, free_port


def run_job(
    folder: Path, nodelist: str, each: int, nodes: Sequence[Host] | None = None, **further: str
) -> str:
    """Run `each` tasks on each of two nodes, by default this host, and return what rank 0 has gathered."""
    job = {
        "SLURM_NTASKS": str(2 * each),
        "SLURM_TASKS_PER_NODE": f"{each}(x2)",
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_JOB_ID": "4711",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "DDPTOP": "0",
    }
    warm.begin()
    tasks: list[subprocess.Popen[str]] = []
    for rank in range(2 * each):
        node, local = divmod(rank, each)
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        command = [sys.executable, "-m", "tests.training.ddp.ranks", str(folder)]
        env = environment(folder) | job | own | further
        if nodes is None:
            tasks.append(warm.WarmPopen(command, env=env, stderr=subprocess.PIPE, text=True))
        else:
            tasks.append(nodes[node].start(command, env))
    try:
        for task in tasks:
            _, err = task.communicate(timeout=DEADLINE_S)
            assert task.returncode == 0, err
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    return (folder / "rows").read_text()


def rows(each: int, first: str) -> str:
    """Rank, local rank, ranks of the node, world size, device, seed, host of rank 0."""
    world = 2 * each
    return repr([(rank, rank % each, each, world, "cpu", 9 + 1 + rank, first) for rank in range(world)])


@pytest.mark.slow
def test_tasks_on_two_nodes_with_names(tmp_path: Path) -> None:
    """Hosts of their own: the port, made of the job's number, is free there."""
    with hosts(2, tmp_path) as nodes:
        found = run_job(tmp_path, "node-a,node-b", 2, nodes)
    assert found == rows(2, "node-a")


def test_tasks_on_two_addresses_of_this_host(tmp_path: Path) -> None:
    found = run_job(tmp_path, "127.0.0.[1-2]", 1, MASTER_PORT=str(free_port()))
    assert found == rows(1, "127.0.0.1")
