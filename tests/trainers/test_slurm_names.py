"""A Slurm job as a cluster has it: nodes with names, and nothing set but what srun sets."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, environment

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


def test_four_tasks_on_two_named_nodes_become_one_group(nodes: list[str], tmp_path: Path) -> None:
    tasks = []
    for rank in range(4):
        env = environment(tmp_path) | {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "4",
            "SLURM_LOCALID": str(rank % 2),
            "SLURM_NODEID": str(rank // 2),
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_JOB_NODELIST": "gpu[07-08]",
            "SLURM_JOB_ID": "4711",  # makes the port; those of a namespace are its own
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "DDPTOP": "0",
        }
        node = ["ip", "netns", "exec", nodes[rank // 2]]
        command = [*node, sys.executable, "-m", "tests.runtime.group.ranks", str(tmp_path)]
        tasks.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    try:
        for task in tasks:
            _, err = task.communicate(timeout=DEADLINE_S)
            assert task.returncode == 0, err
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    assert (tmp_path / "rows").read_text() == repr(
        [(rank, rank % 2, 2, 4, "cpu", 9 + 1 + rank, "gpu07") for rank in range(4)]
    )
