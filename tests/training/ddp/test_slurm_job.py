"""The tasks of a Slurm job on two nodes become one group, with nothing set but what srun sets."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, environment, free_port

HOSTS = "127.0.0.1 localhost\n10.78.0.1 gpu07\n10.78.0.2 gpu08\n"


def ip(*words: str) -> bool:
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *words], capture_output=True, timeout=30).returncode == 0


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    """Two network namespaces joined by a cable, each of which knows both nodes by name."""
    names = [f"dn{os.getpid()}{letter}" for letter in "ab"]
    folders = [Path("/etc/netns", name) for name in names]
    with contextlib.ExitStack() as undone:
        for name in names:
            if not ip("netns", "add", name):
                pytest.skip("needs the right to make network namespaces")
            undone.callback(ip, "netns", "del", name)
        for folder in folders:
            folder.mkdir(parents=True)  # `ip netns exec` puts what is in it over /etc
            undone.callback(shutil.rmtree, folder)
            (folder / "hosts").write_text(HOSTS)
        assert ip("link", "add", "eth9", "netns", names[0], "type", "veth", "peer", "eth9", "netns", names[1])
        for number, name in enumerate(names, 1):
            assert ip("-n", name, "addr", "add", f"10.78.0.{number}/24", "dev", "eth9")
            assert ip("-n", name, "link", "set", "eth9", "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        yield names


def run_job(
    folder: Path, nodelist: str, each: int, enter: Sequence[Sequence[str]] = ((), ()), **further: str
) -> str:
    """Run `each` tasks on each of two nodes, and return what rank 0 has gathered.

    `enter`: for each node, what to put before a command to run it there.
    """
    job = {
        "SLURM_NTASKS": str(2 * each),
        "SLURM_TASKS_PER_NODE": f"{each}(x2)",
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_JOB_ID": "4711",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "DDPTOP": "0",
    }
    tasks = []
    for rank in range(2 * each):
        node, local = divmod(rank, each)
        own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}
        command = [*enter[node], sys.executable, "-m", "tests.training.ddp.ranks", str(folder)]
        env = environment(folder) | job | own | further
        tasks.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
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


def test_tasks_on_two_nodes_with_names(nodes: list[str], tmp_path: Path) -> None:
    """In namespaces of their own: the port, made of the job's number, is free there."""
    found = run_job(tmp_path, "gpu[07-08]", 2, [["ip", "netns", "exec", node] for node in nodes])
    assert found == rows(2, "gpu07")


def test_tasks_on_two_addresses_of_this_host(tmp_path: Path) -> None:
    found = run_job(tmp_path, "127.0.0.[1-2]", 1, MASTER_PORT=str(free_port()))
    assert found == rows(1, "127.0.0.1")
