"""`wrap`: from a module to a recorded DistributedDataParallel model, with all of DDP's options.

Communication hooks are given by name or as functions.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp_module

from ddptop.training import attach
from ddptop.training.ddp.group_info import GroupInfo, seed_generators, seed_of_rank
from ddptop.training.ddp.logging import note_on_card
from ddptop.training.torch_compat import ddp as torch_ddp

Hook = Callable[[Any, Any], Any]

HOOKS: dict[str, Hook] = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "powersgd": powerSGD_hook.powerSGD_hook,
    "noop": debugging_hooks.noop_hook,
}
"""`noop` leaves each rank its own gradients: for measuring what communication costs, not for training."""


def hook_and_state(comm_hook: str | Hook, state: Any, process_group: Any) -> tuple[Any, Hook]:
    """The arguments of `register_comm_hook`: the state that a named hook needs, and the hook.

    Raises:
        ValueError: for a name that is not known.
    """
    if not isinstance(comm_hook, str):
        return state, comm_hook
    if comm_hook not in HOOKS:
        raise ValueError(f"comm_hook must be one of {', '.join(HOOKS)} or a function, not {comm_hook!r}")
    if state is None:
        power = comm_hook == "powersgd"
        state = powerSGD_hook.PowerSGDState(process_group=process_group) if power else process_group
    return state, HOOKS[comm_hook]


def one_bucket(model: torch.nn.Module, process_group: Any) -> dict[str, float]:
    """DDP's options for a named PowerSGD hook: one bucket for all gradients, on gloo; none elsewhere.

    From the callbacks of one bucket torch's hook launches the next collectives and waits for them. On gloo
    callbacks of several buckets run side by side, in another order on each rank, and ranks then hang or
    abort (seen with torch 2.13 and two buckets, with and without ddptop).
    """
    parameters = list(model.parameters())
    on_cpu = any(parameter.device.type == "cpu" for parameter in parameters)
    if not on_cpu and dist.get_backend(process_group) != "gloo":
        return {}
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    # A little more than all gradients take, so that none begins a second bucket.
    return {"bucket_cap_mb": size / 2**20 + 1}


Batch = TypeVar("Batch")

_seeded: weakref.WeakSet[GroupInfo] = weakref.WeakSet()
"""Groups whose ranks draw their own random numbers already."""


def wrap_in_group(
    group: GroupInfo,
    model: torch.nn.Module,
    *,
    sync_batchnorm: bool = False,
    comm_hook: str | Hook | None = None,
    hook_state: Any = None,
    ignore: Iterable[str] = (),
    **options: Any,
) -> DistributedDataParallel:
    """Move `model` to this rank's device and make it a DDP model whose buckets are timed.

    With the first model of a group, each rank begins to draw random numbers of its own.

    Args:
        group: the process group, which has a device.
        model: the module; moved in place. One that is spread over several devices stays where it is.
        sync_batchnorm: make its BatchNorm layers SyncBatchNorm: statistics of the whole group's batch.
            On the CPU torch has none: they stay, with a warning.
        comm_hook: `allreduce`, `fp16`, `bf16`, `powersgd`, `noop`, or your own `(state, bucket) -> Future`.
            None: DDP's own all-reduce, whose result is that of plain DDP to the last bit. `powersgd` on
            gloo gets one bucket for all gradients unless you give `bucket_cap_mb`: with several it can hang.
        hook_state: state for the hook; PowerSGD makes its own unless given, which is torch's default: a plain
            all-reduce for the first thousand steps, then rank 1.
        ignore: names of parameters, buffers or submodules that DDP leaves alone: neither sent from rank 0
            nor averaged.
        options: passed to DistributedDataParallel as they are.

    Raises:
        ValueError: for a hook's name that is not known, or an ignored name that the model does not have.
        TypeError: torch's, for `bf16` where this torch has no NCCL.
    """
    ddp = wrap(
        model,
        group.device,
        sync_batchnorm=sync_batchnorm,
        comm_hook=comm_hook,
        hook_state=hook_state,
        ignore=ignore,
        **options,
    )
    if group.seed is not None:
        note_on_card("seed", group.seed)
        if group not in _seeded:
            _seeded.add(group)
            seed_generators(seed_of_rank(group.seed, group.rank))
    return ddp


def wrap(
    model: torch.nn.Module,
    device: torch.device | None = None,
    *,
    sync_batchnorm: bool = False,
    comm_hook: str | Hook | None = None,
    hook_state: Any = None,
    ignore: Iterable[str] = (),
    **options: Any,
) -> DistributedDataParallel:
    """Wrap a model as `Group.wrap` does, for a process group made elsewhere; without `device` the model stays
    where it is."""
    process_group = options.get("process_group")
    named_powersgd, named_bf16 = comm_hook == "powersgd", comm_hook == "bf16"
    if comm_hook is not None:
        hook_state, comm_hook = hook_and_state(comm_hook, hook_state, process_group)
    if attach.is_enabled():
        attach.patch_ddp(ddp_module)
    devices = devices_of(model)
    # Moved first: DDP makes its buckets of the parameters where they are then.
    if device is not None and len(devices) <= 1:
        model = model.to(device)
        devices = {device}
    if sync_batchnorm:
        model = _with_sync_batchnorm(model, devices, process_group)
    names = _all_below(model, ignore)
    if names:
        torch_ddp.ignore_parameters(model, names)
    if len(devices) == 1 and next(iter(devices)).type == "cuda":
        options.setdefault("device_ids", [next(iter(devices)).index])
    # What the user has given wins.
    if named_powersgd:
        options = one_bucket(model, process_group) | options
    ddp = DistributedDataParallel(model, **options)
    if comm_hook is not None:
        try:
            ddp.register_comm_hook(hook_state, comm_hook)
        except TypeError as error:
            if not named_bf16:
                raise
            raise TypeError(f"{error}. comm_hook='fp16' sends as few bytes and needs neither") from None
    return ddp


def devices_of(model: torch.nn.Module) -> set[torch.device]:
    """The devices on which a module has parameters or buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return {tensor.device for tensor in tensors}


def accumulate(
    group: GroupInfo, model: DistributedDataParallel, batches: Iterable[Batch], *, every: int
) -> Iterator[tuple[Batch, bool]]:
    """Yield (batch, steps): gradients are summed over `every` batches and only then all-reduced.

    `steps` is True for each `every`-th batch and for the last one: the backward of such a batch is
    all-reduced (those before it run under `model.no_sync()`), and the optimizer steps next. Divide the
    loss by `every`; the last gradients of an epoch may come from fewer batches.

    Raises:
        ValueError: for `every` below 1.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    return _accumulate(model, iter(batches), every)


def _accumulate(
    model: DistributedDataParallel, batches: Iterator[Batch], every: int
) -> Iterator[tuple[Batch, bool]]:
    end: Any = object()
    batch: Any = next(batches, end)
    number = 0
    while batch is not end:
        number += 1
        following = next(batches, end)  # one ahead, to know which batch is the last
        steps = number % every == 0 or following is end
        with contextlib.nullcontext() if steps else model.no_sync():
            yield batch, steps
        batch = following


def join(
    group: GroupInfo,
    model: DistributedDataParallel,
    *,
    divide_by_initial_world_size: bool = True,
    enable: bool = True,
    throw_on_early_termination: bool = False,
) -> contextlib.AbstractContextManager[Any]:
    """torch's `model.join()`: ranks that run out of batches first answer the collectives of the others.

    Raises:
        ValueError: for `divide_by_initial_world_size=False` with a communication hook: hooks divide by the
            world size, so the gradients would be too small by the share of ranks that have joined.
    """
    if not divide_by_initial_world_size and torch_ddp.has_comm_hook(model):
        raise ValueError(
            "a communication hook divides by the whole world size: with one, "
            "join(divide_by_initial_world_size=False) would be wrong; wrap the model without comm_hook"
        )
    context: contextlib.AbstractContextManager[Any] = model.join(
        divide_by_initial_world_size=divide_by_initial_world_size,
        enable=enable,
        throw_on_early_termination=throw_on_early_termination,
    )
    return context


def _with_sync_batchnorm(
    model: torch.nn.Module, devices: set[torch.device], process_group: Any
) -> torch.nn.Module:
    if any(device.type == "cpu" for device in devices):
        if _is_rank_0() and torch_ddp.has_batchnorm(model):
            warnings.warn(
                "torch has no SyncBatchNorm on the CPU: BatchNorm layers stay as they are, "
                "and each rank's statistics are of its own batch",
                stacklevel=4,
            )
        return model
    converted: torch.nn.Module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model, process_group)
    return converted


def _is_rank_0() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _all_below(model: torch.nn.Module, ignored: Iterable[str]) -> list[str]:
    """Full names of the parameters and buffers that are named, or in a submodule that is."""
    model_names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    names: list[str] = []
    for ignored_name in ignored:
        matching = [
            name for name in model_names if name == ignored_name or name.startswith(ignored_name + ".")
        ]
        if not matching:
            raise ValueError(f"ignore: the model has no parameter, buffer or submodule {ignored_name!r}")
        names += matching
    return names
