"""Devices, failures under torchrun, and what the run's card is told."""

from __future__ import annotations

import multiprocessing
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ddptop
from ddptop.training import attach
from ddptop.training.ddp import setup, teardown, wrap
from ddptop.training.ddp.logging import note_on_card
from ddptop.training.ddp.placement import Placement
from tests.processes import TORCHRUN, environment, run

SCRIPT = """
import torch, torch.distributed as dist, ddptop
with ddptop.setup() as group:
    model = group.wrap(torch.nn.Linear(1, 1))
    begin = group.resume("checkpoints", model)
    group.print(f"restart {group.restarts} from epoch {begin.epoch}")
    group.save("checkpoints", model, epoch=begin.epoch + 1)
    if group.rank == 1:
        raise ValueError("the user's own mistake")
    dist.all_reduce(torch.ones(1))
"""


def test_torchrun_restarts_from_the_checkpoint_and_names_who_raised_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    env = environment(tmp_path) | {"DDPTOP": "0"}
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = run([*TORCHRUN, *options, "train.py"], env, tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"[rank {rank}] restart {attempt} from epoch {attempt}" for attempt in (0, 1) for rank in (0, 1)
    ]
    root_cause = done.stderr.partition("Root Cause")[2]
    assert re.search(r"rank +: 1 ", root_cause)
    assert "ValueError: the user's own mistake" in root_cause, "with its traceback"


@pytest.mark.parametrize(
    ("gpus", "backend", "device", "local_rank", "expected"),
    [
        (0, None, None, 1, "cpu"),
        (4, None, None, 1, "cuda:1"),
        (1, None, None, 3, "cuda:0"),  # a launcher that shows each rank one GPU
        (4, "gloo", None, 1, "cpu"),
        (4, "cpu:gloo,cuda:nccl", None, 1, "cuda:1"),
        (4, "gloo", "cuda", 2, "cuda:2"),
        (4, None, "cuda:3", 2, "cuda:3"),
        (4, None, "cpu", 2, "cpu"),
        (1, "gloo", "cuda", 2, "cuda:0"),
        (0, "nccl", None, 0, "cpu"),  # what is wrong with that the ranks are told together
    ],
)
def test_each_rank_wants_the_gpu_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    backend: str | None,
    device: str | None,
    local_rank: int,
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert setup.device_of_rank(backend, device, local_rank) == torch.device(expected)


@pytest.mark.parametrize(
    ("gpus", "device", "words"),
    [
        (2, "cuda:2", "there is no cuda:2 here: this process sees 2 GPUs (CUDA_VISIBLE_DEVICES=3,5)"),
        (1, "cuda:1", "there is no cuda:1 here: this process sees 1 GPU (CUDA_VISIBLE_DEVICES=3,5)"),
        (0, "cuda", "there is no cuda here: this process sees no GPUs (CUDA_VISIBLE_DEVICES=3,5)"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ValueError, match=re.escape(words)):
        ddptop.setup(device=device)


@pytest.mark.parametrize(
    ("backend", "timeout", "expected"),
    [
        ("nccl", None, {"device_id": torch.device("cuda:1")}),
        ("cpu:gloo,cuda:nccl", None, {"device_id": torch.device("cuda:1")}),
        (
            "nccl",
            timedelta(seconds=7),
            {"device_id": torch.device("cuda:1"), "timeout": timedelta(seconds=7)},
        ),
        ("gloo", None, {}),
    ],
)
def test_nccl_is_told_its_device_and_a_timeout_only_where_the_user_set_one(
    monkeypatch: pytest.MonkeyPatch, backend: str, timeout: timedelta | None, expected: dict[str, object]
) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **words: told.update(words))
    setup.begin_process_group(
        backend, None, Placement(1, 2, 1, 2, "h", 1, "torchrun"), torch.device("cuda:1"), timeout
    )
    assert told == {"store": None, "rank": 1, "world_size": 2, **expected}


def test_a_worker_that_imports_the_script_is_told_about_the_main_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match="__name__ == '__main__'"):
        ddptop.setup()


def test_a_failed_group_is_gone_and_the_next_one_is_sound() -> None:
    with pytest.raises(KeyError), ddptop.setup(seed=None):
        raise KeyError("x")
    try:
        ddptop.setup(seed=3)
        raise KeyError("y")
    except KeyError:
        ddptop.cleanup()
    with ddptop.setup() as group:
        assert group.mean(2.0) == 2.0


def test_a_module_on_several_devices_is_not_moved() -> None:
    spread = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
    assert wrap.devices_of(spread) == {torch.device("cpu"), torch.device("meta")}
    assert wrap.devices_of(nn.Linear(1, 1)) == {torch.device("cpu")}


def test_the_seed_is_written_on_the_runs_card(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        def __init__(self) -> None:
            self.card: dict[str, object] = {}
            self.asked = 0

        def request_description(self) -> None:
            self.asked += 1

    session = Session()
    monkeypatch.setattr(attach, "current_session", lambda: session)
    note_on_card("seed", 7)
    assert session.card == {"seed": 7}
    assert session.asked, "so that the card is sent again"


@pytest.mark.parametrize(("code", "expected"), [(None, 0), (0, 0), (3, 3), ("no such file", 1)])
def test_exit_codes_are_those_that_python_makes_of_them(code: object, expected: int) -> None:
    assert teardown.exit_code(SystemExit(code)) == expected
    assert teardown.exit_code(ValueError()) is None
