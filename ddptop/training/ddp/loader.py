"""A DataLoader over this rank's part of a dataset: calls `set_epoch`, and knows its duplicates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ddptop.training.ddp.group_info import GroupInfo, seed_of_rank

MAX_WORKERS = 4
"""Workers by default and rank: beyond a few, what limits a loader is seldom their number."""


class Loader(DataLoader[Any]):  # type: ignore[misc]  # torch is not followed
    """torch's DataLoader over a DistributedSampler; made by `group.loader`.

    Plain iteration is one epoch, each in another order; `epoch(n)` is the epoch `n`, in the same order
    whenever it is requested (after a resume, for example).
    """

    def __init__(self, dataset: Dataset[Any], sampler: DistributedSampler[Any], **options: Any) -> None:
        super().__init__(dataset, sampler=sampler, **options)
        self._next_epoch = 0
        self._fraction = (sampler.rank, sampler.num_replicas)

    @property
    def samples(self) -> int:
        """Samples of this rank in an epoch that are no duplicates. Over all ranks they are the dataset's
        (without `drop_last`)."""
        rank, world_size = self._fraction
        # The sampler deals positions out in turn: rank, rank + world size, and so on.
        positions = len(range(rank, len(self.dataset), world_size))
        return min(len(self.sampler), positions)

    @property
    def padding(self) -> int:
        """Duplicates that the sampler has added for this rank, 0 or 1: they come last in its epoch."""
        return len(self.sampler) - self.samples

    def epoch(self, epoch: int) -> Iterator[Any]:
        """The batches of this rank in epoch `epoch`, counted from 0; plain iteration goes on from there."""
        self.sampler.set_epoch(epoch)
        self._next_epoch = epoch + 1
        batches: Iterator[Any] = super().__iter__()
        return batches

    def __iter__(self) -> Any:
        """The batches of the next epoch."""
        return self.epoch(self._next_epoch)

    def counted(self, epoch: int = 0) -> Iterator[tuple[Any, int]]:
        """Yield (batch, count): only the first `count` samples of a batch are no duplicates.

        For evaluation that counts every sample once: look at `[:count]` of the outputs, and give the sum of
        the counts to `group.mean` as the weight. All ranks get the same number of batches, as a model whose
        forward communicates needs; a count may be 0.
        """
        remaining = self.samples
        size = self.batch_size or 1
        for batch in self.epoch(epoch):
            yield batch, max(0, min(remaining, size))
            remaining -= size


def loader(
    group: GroupInfo,
    dataset: Dataset[Any],
    *,
    batch_size: int = 1,
    shuffle: bool = True,
    drop_last: bool = False,
    num_workers: int | None = None,
    pin_memory: bool | None = None,
    **options: Any,
) -> Loader:
    """A DataLoader over this rank's part of `dataset`: ranks get as many samples each, no two the same.

    Args:
        group: the process group; its seed gives the order, and each rank's workers a seed of their own.
        dataset: with a length and indices.
        batch_size: samples in a batch of this rank; the group's batch is `world_size` times as large.
        shuffle: another order in every epoch; False for evaluation.
        drop_last: leave out what does not fill a batch, or does not divide by the ranks. Otherwise the last
            batch may be smaller, and the sampler repeats samples until the ranks have equally many: see
            `Loader.padding` and `Loader.counted`.
        num_workers: None: for training on a GPU, up to four of the cores that are left to this rank, and
            none for tensors in memory or on the CPU, where the model needs the cores itself. Workers are
            kept between epochs, and started by forkserver once CUDA is in use, where a fork is not safe.
        pin_memory: None: with a GPU.
        options: passed to DataLoader as they are.

    Raises:
        ValueError: for a dataset without indices, or a sampler among the options.
    """
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "an IterableDataset has no indices to divide among the ranks: let the dataset itself take every "
            "world_size-th sample from rank on (of its workers, see torch.utils.data.get_worker_info), and "
            "give it to torch's DataLoader"
        )
    for name in {"sampler", "batch_sampler"} & options.keys():
        raise ValueError(f"group.loader() makes the DistributedSampler itself; for a {name} use DataLoader")
    cuda = group.device.type == "cuda"
    workers = default_workers(group, dataset) if num_workers is None else num_workers
    if workers:
        options.setdefault("persistent_workers", True)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            options.setdefault("multiprocessing_context", "forkserver")
    seed = group.seed or 0
    options.setdefault(
        "generator", torch.Generator().manual_seed(seed_of_rank(seed, group.rank))
    )  # seeds the workers
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, group.world_size, group.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    return Loader(
        dataset,
        sampler,
        batch_size=batch_size,
        drop_last=drop_last,
        num_workers=workers,
        pin_memory=cuda if pin_memory is None else pin_memory,
        **options,
    )


def default_workers(group: GroupInfo, dataset: Dataset[Any]) -> int:
    """How many processes load batches where the script does not say it."""
    if group.device.type != "cuda" or isinstance(dataset, TensorDataset):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # One core is left to the rank itself.
    return max(0, min(MAX_WORKERS, cores // group.local_world_size - 1))
