"""Real groups: three ranks that do everything, and ranks that fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

import ddptop
from tests.processes import DEADLINE_S, environment, free_port
from tests.runtime.group import ranks


@pytest.fixture(autouse=True)
def _one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("DDPTOP", "0")


def test_three_ranks_do_everything(tmp_path: Path) -> None:
    ddptop.spawn(ranks.everything, 3, (tmp_path,))


def test_the_rank_that_raised_is_named_and_no_process_stays(tmp_path: Path) -> None:
    spawned = ddptop.spawn(ranks.one_fails, 2, (tmp_path, "raise"), join=False)
    assert spawned is not None
    with pytest.raises(mp.ProcessRaisedException) as caught:
        while not spawned.join(DEADLINE_S):
            pass
    assert "ValueError: the user's own mistake" in str(caught.value)
    assert caught.value.error_index == 1
    assert not any(psutil.pid_exists(pid) for pid in spawned.pids())
    assert not (tmp_path / "went on").exists()


def test_an_exit_code_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(mp.ProcessExitedException, match="exit code 3") as caught:
        ddptop.spawn(ranks.one_fails, 2, (tmp_path, "exit"))
    assert (caught.value.error_index, caught.value.exit_code) == (1, 3)


class Nodes(NamedTuple):
    """Two hosts: what to put before a command to run it there, and their names."""

    enter: tuple[list[str], list[str]]
    nodelist: str
    first: str


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Two network namespaces where we may make them, this host under two addresses otherwise."""
    names = [f"dt{os.getpid()}{letter}" for letter in "ab"]
    try:
        if not all(ip("netns", "add", name) for name in names):
            yield Nodes(([], []), "127.0.0.[1-2]", "127.0.0.1")
            return
        assert ip("link", "add", "veth", "netns", names[0], "type", "veth", "peer", "veth", "netns", names[1])
        for number, name in enumerate(names, 1):
            assert ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "veth")
            assert ip("-n", name, "link", "set", "veth", "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        enter = [["ip", "netns", "exec", name] for name in names]
        yield Nodes((enter[0], enter[1]), "10.77.0.[1-2]", "10.77.0.1")
    finally:
        for name in names:
            ip("netns", "del", name)


def ip(*words: str) -> bool:
    if shutil.which("ip") is None:
        return False
    return subprocess.run(["ip", *words], capture_output=True, timeout=30).returncode == 0


def test_the_tasks_of_a_slurm_job_on_two_nodes_become_one_group(nodes: Nodes, tmp_path: Path) -> None:
    port = free_port()
    tasks = []
    for rank in range(4):
        env = environment(tmp_path) | {
            "SLURM_PROCID": str(rank),
            "SLURM_NTASKS": "4",
            "SLURM_LOCALID": str(rank % 2),
            "SLURM_NODEID": str(rank // 2),
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_JOB_NODELIST": nodes.nodelist,
            "SLURM_JOB_ID": "77",
            "MASTER_PORT": str(port),
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "DDPTOP": "0",
        }
        command = [*nodes.enter[rank // 2], sys.executable, "-m", "tests.runtime.group.ranks", str(tmp_path)]
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
        [(rank, rank % 2, 2, 4, "cpu", 9 + 1 + rank, nodes.first) for rank in range(4)]
    )


def test_alone_the_same_script_runs_as_a_group_of_one() -> None:
    before = dict(os.environ)
    with ddptop.setup() as group:
        assert (group.rank, group.world_size) == (0, 1)
        assert group.gather_object("x") == ["x"]
        with pytest.raises(RuntimeError, match="there is a process group already"):
            ddptop.setup()
        current = ddptop.Group.current()
        assert (current.rank, current.world_size, current.backend) == (0, 1, "gloo")
    assert not dist.is_initialized()
    ddptop.cleanup()
    assert dict(os.environ) == before


def test_a_world_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ddptop.spawn(ranks.one_fails, 0)


def test_spawning_once_for_each_process_of_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="2 processes of this script, and each would spawn 3 ranks"):
        ddptop.spawn(ranks.one_fails, 3)
