"""Collectives, one call each: shapes are checked first; on the CPU and on GPUs, in a world of one too.

Every function here is a collective: all ranks call it, in the same order. NCCL transfers tensors on GPUs
only and gloo reads them from the CPU, so they are copied there and back. `mean` is over all samples of the
group, not over its ranks. `first` and `print_in_order` have the ranks run one after another.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

import torch
import torch.distributed as dist

from ddptop.training.ddp import rendezvous
from ddptop.training.ddp.group_info import GroupInfo
from ddptop.training.ddp.logging import phase
from ddptop.training.torch_compat import process_groups

T = TypeVar("T")

Layout = tuple[tuple[int, ...], torch.dtype]


@overload
def gather(group: GroupInfo, tensor: torch.Tensor, *, dst: None = None) -> torch.Tensor: ...
@overload
def gather(group: GroupInfo, tensor: torch.Tensor, *, dst: int) -> torch.Tensor | None: ...
def gather(group: GroupInfo, tensor: torch.Tensor, *, dst: int | None = None) -> torch.Tensor | None:
    """The tensors of all ranks, stacked in rank order: shape (world size, *tensor.shape), where `tensor` is.

    Args:
        group: the process group.
        tensor: of one shape and dtype on all ranks (see `gather_list` for others); any device.
        dst: the rank that gets them, the others getting None; None: all ranks do.

    Raises:
        ValueError: on all ranks, where shapes or dtypes differ.
    """
    # Shapes first: a collective over different ones would hang, or mix up bytes.
    layouts: list[Layout] = _all_objects(group, (tuple(tensor.shape), tensor.dtype))
    if any(layout != layouts[0] for layout in layouts):
        given = ", ".join(f"rank {rank} {shape} {dtype}" for rank, (shape, dtype) in enumerate(layouts))
        raise ValueError(f"gather() needs one shape and dtype; gather_list() takes any: {given}")
    rows = _gather_bytes(group, _as_bytes(tensor), dst)
    if rows is None:
        return None
    gathered = torch.stack([_from_bytes(row, layouts[0]) for row in rows])
    return gathered.to(tensor.device)


@overload
def gather_list(
    group: GroupInfo, tensors: Sequence[torch.Tensor], *, dst: None = None
) -> list[list[torch.Tensor]]: ...
@overload
def gather_list(
    group: GroupInfo, tensors: Sequence[torch.Tensor], *, dst: int
) -> list[list[torch.Tensor]] | None: ...
def gather_list(
    group: GroupInfo, tensors: Sequence[torch.Tensor], *, dst: int | None = None
) -> list[list[torch.Tensor]] | None:
    """The lists of all ranks, in rank order, on `group.device`; lengths, shapes and dtypes may all differ.

    The tensors travel as one block of bytes: one collective, not one for each tensor. Ranks with less are
    padded to the largest block, so a group of very unequal ranks moves more than it has.

    Args:
        group: the process group.
        tensors: this rank's, also none at all.
        dst: the rank that gets them, the others getting None; None: all ranks do.
    """
    layouts: list[list[Layout]] = _all_objects(group, [(tuple(t.shape), t.dtype) for t in tensors])
    largest = max(sum(_size_bytes(layout) for layout in of_rank) for of_rank in layouts)
    block = torch.zeros(largest, dtype=torch.uint8)
    parts = [_as_bytes(tensor).cpu() for tensor in tensors]
    if parts:
        together = torch.cat(parts)
        block[: len(together)] = together
    rows = _gather_bytes(group, block, dst)
    if rows is None:
        return None
    return [
        [tensor.to(group.device) for tensor in _split_block(row, of_rank)]
        for row, of_rank in zip(rows, layouts, strict=True)
    ]


@overload
def gather_object(group: GroupInfo, value: T, *, dst: None = None) -> list[T]: ...
@overload
def gather_object(group: GroupInfo, value: T, *, dst: int) -> list[T] | None: ...
def gather_object(group: GroupInfo, value: T, *, dst: int | None = None) -> list[T] | None:
    """The values of all ranks in rank order, pickled on the way; None on ranks other than `dst`."""
    if dst is None or not _has_others(group):
        return _all_objects(group, value)
    # torch takes a list on the receiving rank only, and refuses one elsewhere.
    values: list[Any] | None = [None] * group.world_size if group.rank == dst else None
    dist.gather_object(value, values, dst=dst)
    return values


def broadcast_object(group: GroupInfo, value: T, *, src: int = 0) -> T:
    """The value of rank `src`, on all ranks; what the others pass is ignored."""
    if not _has_others(group):
        return value
    values = [value]
    dist.broadcast_object_list(values, src=src)
    return values[0]


def barrier(group: GroupInfo) -> None:
    """Wait until all ranks have called it."""
    if not _has_others(group):
        return
    # Without it NCCL guesses the GPU from the rank.
    if "nccl" in group.backend and group.device.type == "cuda":
        dist.barrier(device_ids=[group.device.index])
    else:
        dist.barrier()


def _has_others(group: GroupInfo) -> bool:
    return group.world_size > 1 and bool(dist.is_initialized())


def _all_objects(group: GroupInfo, value: T) -> list[T]:
    if not _has_others(group):
        return [value]
    values: list[Any] = [None] * group.world_size
    dist.all_gather_object(values, value)
    return values


def _gather_bytes(group: GroupInfo, block: torch.Tensor, dst: int | None) -> list[torch.Tensor] | None:
    """Blocks of one size, in rank order; bytes, because not every backend knows every dtype."""
    receives = dst is None or group.rank == dst
    # An empty block is empty on all ranks, as its size is that of the largest.
    if not _has_others(group) or block.numel() == 0:
        return [block] * group.world_size if receives else None
    block = block.to(group.device if "nccl" in group.backend else "cpu")
    rows = [torch.empty_like(block) for _ in range(group.world_size)] if receives else None
    if dst is None:
        dist.all_gather(rows, block)
    else:
        dist.gather(block, rows, dst=dst)
    return rows


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Conjugates and negatives are lazy views: their bytes would be those of another tensor.
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _from_bytes(block: torch.Tensor, layout: Layout) -> torch.Tensor:
    shape, dtype = layout
    return block.clone().view(dtype).reshape(shape)  # a view must start at a multiple of its item's size


def _split_block(row: torch.Tensor, layouts: Sequence[Layout]) -> list[torch.Tensor]:
    tensors, offset = [], 0
    for layout in layouts:
        tensors.append(_from_bytes(row[offset : offset + _size_bytes(layout)], layout))
        offset += _size_bytes(layout)
    return tensors


def _size_bytes(layout: Layout) -> int:
    """Bytes."""
    shape, dtype = layout
    return math.prod(shape) * int(dtype.itemsize)


Number: TypeAlias = "float | torch.Tensor"


@overload
def mean(group: GroupInfo, metrics: Mapping[str, Number], *, weight: float = 1) -> dict[str, float]: ...
@overload
def mean(group: GroupInfo, metrics: Number, *, weight: float = 1) -> float: ...
def mean(
    group: GroupInfo, metrics: Mapping[str, Number] | Number, *, weight: float = 1
) -> dict[str, float] | float:
    """The mean over all ranks, each counting with its `weight`: sum(weight * value) / sum(weight).

    With the number of samples as the weight it is the mean over samples, also where ranks have different
    numbers of them. A rank that has seen none passes weight 0, and may leave metrics out.

    Args:
        group: the process group; all ranks call it.
        metrics: numbers or one-element tensors (a tensor on a GPU is waited for), by name or just one.
        weight: how many samples this rank's values are the mean of; at least 0.

    Returns:
        The same names with floats, equal on all ranks; NaN where all weights are 0.

    Raises:
        ValueError: for a negative weight.
    """
    if weight < 0:
        raise ValueError(f"weight must not be negative, but is {weight}")
    single = not isinstance(metrics, Mapping)
    named: Mapping[str, Number] = {"": metrics} if not isinstance(metrics, Mapping) else metrics
    # With weight 0 the values mean nothing, and may be NaN.
    own_values = (
        {name: float(value) for name, value in named.items()} if weight else dict.fromkeys(named, 0.0)
    )
    of_ranks = _all_objects(group, (own_values, float(weight)))
    names = dict.fromkeys(name for values, _ in of_ranks for name in values)
    means = {}
    for name in names:
        pairs = [(values[name], rank_weight) for values, rank_weight in of_ranks if name in values]
        total = _sum([rank_weight for _, rank_weight in pairs])
        weighted = _sum([value * rank_weight for value, rank_weight in pairs])
        means[name] = weighted / total if total else math.nan
    return means[""] if single else means


def _sum(values: Sequence[float]) -> float:
    """The sum without rounding; infinity or NaN where a sum of floats is that, for which `fsum` raises."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


_turns = itertools.count()


@contextlib.contextmanager
def first(group: GroupInfo, *, local: bool = False) -> Iterator[None]:
    """Rank 0 runs the block first; the others wait and run it when it is done (download once, then read).

    Args:
        group: the process group; all ranks enter.
        local: the first rank of every host runs it first, for what each host keeps for itself.

    Raises:
        RuntimeError: on the ranks that wait, where the first one raised, with its error.
    """
    number = next(_turns)
    if not dist.is_initialized() or group.world_size == 1:
        yield
        return
    store = process_groups.default_store()
    key = f"first/{number}/{rendezvous.host_name()}" if local else f"first/{number}"
    if (group.local_rank if local else group.rank) != 0:
        with phase("waiting for rank 0"):
            # Through the store: a download may outlast a collective's timeout.
            rendezvous.wait_for_keys(store, [key])
            error = bytes(store.get(key)).decode()
        if error:
            raise RuntimeError(f"rank {error.replace(' ', ' failed while this rank waited for it: ', 1)}")
        yield
        return
    try:
        yield
    # Also for SystemExit and Ctrl-C: the others would wait for ever.
    except BaseException as error:
        store.set(key, f"{group.rank} {type(error).__name__}: {error}")
        raise
    store.set(key, "")


def print_in_order(group: GroupInfo, *values: object, sep: str = " ") -> None:
    """Print what each rank has given, on rank 0 and in rank order, as `print` does, with the rank's number
    before it."""
    texts = gather_object(group, sep.join(str(value) for value in values), dst=0)
    if group.rank == 0 and texts is not None:
        for rank, text in enumerate(texts):
            print(f"[rank {rank}] {text}", flush=True)
