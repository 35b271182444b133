"""The explicit way in: `ddptop.setup()` makes the process group, `group.wrap()` the watched DDP model."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as ddp_module

from ddptop.runtime import attach
from ddptop.runtime.guard import guard

Hook = Callable[[Any, Any], Any]

_HOOKS: dict[str, Hook] = {
    "allreduce": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


@dataclass(frozen=True)
class Group:
    """The process group of this run, as one rank sees it. Leaving the `with` block destroys it."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cleanup()

    def wrap(
        self,
        model: torch.nn.Module,
        *,
        comm_hook: str | Hook = "allreduce",
        hook_state: Any = None,
        **options: Any,
    ) -> DistributedDataParallel:
        """Move `model` to this rank's device and make it a DDP model with the timed communication hook.

        Args:
            model: the module; moved in place.
            comm_hook: `allreduce`, `fp16`, `bf16`, `powersgd`, or your own `(state, bucket) -> Future`.
            hook_state: state for a hook of your own; PowerSGD makes its own unless given.
            options: passed to DistributedDataParallel as they are.

        Raises:
            ValueError: for a hook's name that is not known.
        """
        return wrap(model, self.device, comm_hook=comm_hook, hook_state=hook_state, **options)


def setup(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    backend: str | None = None,
    seed: int | None = 0,
    timeout: timedelta | None = None,
) -> Group:
    """Make the default process group from torchrun's or Slurm's environment, or from `rank` and `world_size`.

    NCCL when this machine has a GPU for each of its ranks, gloo otherwise; the CUDA device is set before
    anything touches it. `seed` seeds Python and torch alike on every rank, so that replicas start equal;
    None leaves the generators alone.

    Raises:
        ValueError: when the environment is half set, naming what is missing.
    """
    place = _Place.read(rank, world_size)
    use_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= place.local_world_size
    chosen = backend or ("nccl" if use_cuda else "gloo")
    device = torch.device("cuda", place.local_rank) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    if seed is not None:
        random.seed(seed)
        torch.manual_seed(seed)
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    dist.init_process_group(chosen, rank=place.rank, world_size=place.world_size, **arguments)
    return Group(place.rank, place.world_size, place.local_rank, device, chosen)


def cleanup() -> None:
    """Destroy the default process group if there is one; may be called twice."""
    if dist.is_initialized():
        dist.destroy_process_group()


def wrap(
    model: torch.nn.Module,
    device: torch.device | None = None,
    *,
    comm_hook: str | Hook = "allreduce",
    hook_state: Any = None,
    **options: Any,
) -> DistributedDataParallel:
    """As `Group.wrap`, for a process group made elsewhere; `device` defaults to where the model is."""
    if attach.enabled():
        attach.patch(ddp_module)
    if device is not None:
        model = model.to(device)
        if device.type == "cuda":
            options.setdefault("device_ids", [device.index])
    ddp = DistributedDataParallel(model, **options)
    ddp.register_comm_hook(*_hook_and_state(comm_hook, hook_state))
    return ddp


def log(*, loss: float | torch.Tensor | None = None) -> None:
    """Give the loss of this step in your own words, instead of what `backward()` was called with.

    A tensor on a GPU is not read: that would wait for the device.
    """
    session = attach.current_session()
    if session is None or loss is None:
        return
    try:
        if isinstance(loss, torch.Tensor):
            if loss.device.type != "cpu":
                return
            loss = loss.detach()
        session.recorder.log_loss(float(loss))
    except Exception as error:  # noqa: BLE001 - the training boundary: what is no number is not logged
        guard.caught(error)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Declare what training does meanwhile (`evaluate`, `checkpoint`): its steps stand still on purpose."""
    session = attach.current_session()
    if session is None:
        yield
        return
    with session.declared(name):
        yield


def _hook_and_state(comm_hook: str | Hook, state: Any) -> tuple[Any, Hook]:
    if not isinstance(comm_hook, str):
        return state, comm_hook
    if comm_hook == "powersgd":
        made = powerSGD_hook.PowerSGDState(process_group=None) if state is None else state
        return made, powerSGD_hook.powerSGD_hook
    if comm_hook not in _HOOKS:
        raise ValueError(
            f"comm_hook must be one of {', '.join([*_HOOKS, 'powersgd'])} or a function, not {comm_hook!r}"
        )
    return state, _HOOKS[comm_hook]


@dataclass(frozen=True)
class _Place:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def read(cls, rank: int | None, world_size: int | None) -> _Place:
        """From the arguments, torchrun's variables, or Slurm's, in this order."""
        slurm = "SLURM_PROCID" in os.environ and "RANK" not in os.environ
        names = (
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
            if slurm
            else ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
        if rank is None:
            rank = _required(names[0])
        if world_size is None:
            world_size = _required(names[1])
        local_rank = _optional(names[2], rank)
        per_node = _optional("SLURM_NTASKS_PER_NODE" if slurm else "LOCAL_WORLD_SIZE", world_size)
        return cls(rank, world_size, local_rank, per_node)


def _required(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise ValueError(
            f"ddptop.setup() needs {name} (set by torchrun, ddptop-run or srun), "
            "or its arguments rank= and world_size="
        )
    return int(text)


def _optional(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default
