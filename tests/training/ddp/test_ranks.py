"""Real groups: three ranks that do everything, and ranks that fail."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ddptop
from tests.processes import DEADLINE_S
from tests.training.ddp import ranks


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


def test_alone_the_same_script_runs_as_a_group_of_one() -> None:
    before = dict(os.environ)
    with ddptop.setup() as group:
        assert (group.rank, group.world_size) == (0, 1)
        assert group.gather_object("x") == ["x"]
        with pytest.raises(RuntimeError, match="there is a process group already"):
            ddptop.setup()
        current = ddptop.Group.current()
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        assert (current.rank, current.world_size, current.backend) == (0, 1, backend)
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
