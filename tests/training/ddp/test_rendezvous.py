"""The roll call: who is missing, and who does not fit."""

from __future__ import annotations

import dataclasses
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from ddptop.training.ddp import rendezvous
from ddptop.training.ddp.placement import Placement
from ddptop.training.ddp.rendezvous import RankCard, decide_group, meet_ranks, store_of
from tests.processes import free_port, until

SOON = timedelta(seconds=0.2)


def card(rank: int, **changes: object) -> RankCard:
    made = RankCard(
        rank, world_size=2, host="h", pid=100 + rank, gpu=f"GPU-{rank}", backend=None, seed=0, nonce=str(rank)
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_nccl_where_each_rank_has_its_own_gpu() -> None:
    assert decide_group([card(0), card(1)]) == {"backend": "nccl", "addresses": [""]}


def test_gloo_where_ranks_share_a_gpu_or_have_none() -> None:
    assert decide_group([card(0), card(1, gpu="GPU-0")])["backend"] == "gloo"
    assert decide_group([card(0), card(1, gpu=None)])["backend"] == "gloo"
    assert decide_group([card(0, backend="gloo"), card(1, backend="gloo")])["backend"] == "gloo"


def test_two_ranks_on_one_gpu_under_nccl_are_named() -> None:
    wrong = decide_group([card(0, backend="nccl"), card(1, gpu="GPU-0", backend="nccl")])["wrong"]
    assert "rank 0 (process 100 on h) and rank 1 (process 101 on h) are on one GPU" in wrong
    assert "CUDA_VISIBLE_DEVICES" in wrong


def test_a_rank_without_a_gpu_under_nccl_is_named() -> None:
    wrong = decide_group([card(0, backend="nccl"), card(1, gpu=None, backend="nccl")])["wrong"]
    assert "rank 1 (process 101 on h) sees none" in wrong
    wrong = decide_group([card(0, backend="nccl"), card(1, gpu=None, backend="nccl", device="cpu")])["wrong"]
    assert "rank 1 (process 101 on h) was given device 'cpu'" in wrong


def test_ranks_on_devices_of_different_kinds_are_named() -> None:
    on_gpu = {"backend": "gloo", "device": "cuda"}
    assert decide_group([card(0, **on_gpu), card(1, **on_gpu, gpu="GPU-0")])["backend"] == "gloo"
    wrong = decide_group([card(0, **on_gpu), card(1, gpu=None, backend="gloo")])["wrong"]
    assert "rank 0 (process 100 on h) would train on cuda and rank 1 (process 101 on h) on cpu" in wrong
    wrong = decide_group([card(0, gpu=None, device="cpu"), card(1, device="cuda")])["wrong"]
    assert "rank 0 (process 100 on h) would train on cpu and rank 1 (process 101 on h) on cuda" in wrong


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed: rank 0 0, rank 1 1"),
        ({"world_size": 3}, "world_size: rank 0 2, rank 1 3"),
        ({"backend": "gloo"}, "backend: rank 0 None, rank 1 gloo"),
    ],
)
def test_ranks_that_were_told_different_things_are_refused(change: dict[str, object], words: str) -> None:
    assert words in decide_group([card(0), card(1, **change)])["wrong"]


def put(store: dist.Store, made: RankCard) -> None:
    store.set(f"card/{made.rank}", json.dumps(dataclasses.asdict(made)))


def test_ranks_that_never_come_are_named() -> None:
    store = dist.HashStore()
    put(store, card(2, world_size=4))
    with pytest.raises(RuntimeError, match=r"after 0.2 s 2 of 4 ranks have not come: 1, 3. Here: 0, 2"):
        meet_ranks(store, card(0, world_size=4), SOON)
    with pytest.raises(RuntimeError, match="2 of 4 ranks have not come"):
        meet_ranks(store, card(2, world_size=4), SOON)  # in the same words


def test_what_ranks_before_a_restart_have_left_does_not_count() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        for attempt in ("before", "after"):
            cards = [card(rank, nonce=f"{attempt} {rank}", seed=len(attempt)) for rank in range(2)]
            first, second = [pool.submit(meet_ranks, store, each, 50 * SOON) for each in cards]
            assert first.result() == second.result()
    with pytest.raises(RuntimeError, match="1 of 2 ranks have not come: 1"):
        meet_ranks(store, card(0, nonce="alone"), SOON)


def test_two_processes_of_one_rank_are_named() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(meet_ranks, store, card(1), 50 * SOON)
        until(lambda: store.check(["card/1"]), "the first one's card")
        put(store, card(1, pid=7, nonce="other"))
        with pytest.raises(ValueError, match=r"rank 1 \(process 101 on h\) and rank 1 \(process 7 on h\)"):
            waits.result()


def test_a_rank_that_waits_for_rank_0_in_vain_says_where() -> None:
    port = free_port()
    with pytest.raises(RuntimeError, match=f"rank 1 reached no store at 127.0.0.1:{port} within 0.2 s"):
        store_of(Placement(1, 2, 1, 2, "127.0.0.1", port, "explicit"), SOON)


def test_a_long_wait_says_what_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendezvous, "NOTICE_S", 0.0)
    with pytest.raises(RuntimeError):
        meet_ranks(dist.HashStore(), card(0), SOON)
    assert capsys.readouterr().err == "ddptop: still waiting: 1 of 2 ranks have not come: 1\n"
    with pytest.raises(RuntimeError):
        store_of(Placement(1, 2, 1, 2, "127.0.0.1", free_port(), "explicit"), SOON)
    assert capsys.readouterr().err.startswith("ddptop: still waiting for rank 0: no answer from 127.0.0.1:")


def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{port}: the port is in use.*Set MASTER_PORT"):
            store_of(Placement(0, 2, 0, 2, "127.0.0.1", port, "explicit"), SOON)
