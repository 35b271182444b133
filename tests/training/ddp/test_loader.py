"""Each rank's part of the data: as torch's sampler deals it, with the duplicates known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ddptop.training.ddp import loader as module
from ddptop.training.ddp.group import Group
from ddptop.training.ddp.loader import Loader

TEN = TensorDataset(torch.arange(10))


def group(rank: int, world_size: int = 3, **changes: int) -> Group:
    return Group(rank, world_size, rank, torch.device("cpu"), "none", seed=changes.get("seed", 0))


def indices(batches: object) -> list[int]:
    return [int(value) for (batch,) in batches for value in batch]  # type: ignore[attr-defined]


def made_by_torch(rank: int, epoch: int, **options: bool) -> list[int]:
    sampler: DistributedSampler[object] = DistributedSampler(TEN, 3, rank, seed=0, **options)
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_indices_are_those_of_torchs_sampler_in_every_epoch(shuffle: bool, drop_last: bool) -> None:
    for rank in range(3):
        loader = group(rank).loader(TEN, shuffle=shuffle, drop_last=drop_last)
        assert isinstance(loader, DataLoader)
        for epoch in (0, 1, 5, 1):
            expected = made_by_torch(rank, epoch, shuffle=shuffle, drop_last=drop_last)
            assert indices(loader.epoch(epoch)) == expected


def test_plain_iteration_never_repeats_an_epoch_and_goes_on_after_a_named_one() -> None:
    loader = group(0).loader(TEN)
    epochs = [indices(loader) for _ in range(3)]
    assert epochs == [made_by_torch(0, epoch) for epoch in range(3)]
    assert epochs[0] != epochs[1]
    loader.epoch(7)
    assert indices(loader) == made_by_torch(0, 8)


@pytest.mark.parametrize("size", range(1, 14))
@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_without_the_duplicates_every_sample_is_seen_once(size: int, batch_size: int) -> None:
    world_size = 4
    seen, batches = [], set()
    for rank in range(world_size):
        loader = group(rank, world_size).loader(
            TensorDataset(torch.arange(size)), batch_size=batch_size, shuffle=False
        )
        counted = list(loader.counted())
        seen += [int(value) for (batch,), count in counted for value in batch[:count]]
        batches.add(len(counted))
        assert loader.padding in (0, 1)
        assert loader.samples + loader.padding == len(loader.sampler)
    assert sorted(seen) == list(range(size))
    assert len(batches) == 1, "ranks must not part ways where the forward communicates"


def test_ten_samples_on_three_ranks() -> None:
    loaders = [group(rank).loader(TEN, shuffle=False) for rank in range(3)]
    assert [indices(loader) for loader in loaders] == [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    assert [loader.samples for loader in loaders] == [4, 3, 3]
    assert [loader.padding for loader in loaders] == [0, 1, 1]


def test_with_drop_last_there_are_neither_duplicates_nor_small_batches() -> None:
    loader = group(2).loader(TEN, batch_size=2, drop_last=True)
    assert (loader.samples, loader.padding, len(loader)) == (3, 0, 1)
    assert [(len(batch), count) for (batch,), count in loader.counted()] == [(2, 2)]


def test_the_seed_of_the_group_gives_the_order_and_the_rank_the_workers_seed() -> None:
    assert indices(group(0, seed=1).loader(TEN)) != indices(group(0, seed=2).loader(TEN))
    first, second = (group(rank).loader(TEN).generator.initial_seed() for rank in range(2))
    assert first != second


def test_workers_read_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = group(1).loader(TEN, batch_size=2, num_workers=1)
    assert loader.persistent_workers
    assert loader.multiprocessing_context is None, "CUDA is not in use: the platform's own way"
    assert [indices(loader) for _ in range(2)] == [made_by_torch(1, epoch) for epoch in range(2)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    context = group(1).loader(TEN, num_workers=1).multiprocessing_context
    assert context.get_start_method() == "forkserver"


def test_workers_by_default_are_for_the_gpu_and_leave_a_core_to_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Files(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return index

    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(16)))
    gpu = Group(0, 4, 0, torch.device("cuda", 0), "nccl", local_world_size=4, seed=0)
    assert module.default_workers(gpu, Files()) == 3
    assert module.default_workers(gpu, TEN) == 0
    assert module.default_workers(group(0), Files()) == 0


def test_what_cannot_be_divided_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    with pytest.raises(ValueError, match="IterableDataset has no indices"):
        group(0).loader(Stream())
    with pytest.raises(ValueError, match="makes the DistributedSampler itself"):
        group(0).loader(TEN, sampler=range(10))


def test_other_options_reach_torchs_loader() -> None:
    loader = group(0).loader(TEN, batch_size=4, shuffle=False, collate_fn=len)
    assert isinstance(loader, Loader)
    assert list(loader) == [4]
