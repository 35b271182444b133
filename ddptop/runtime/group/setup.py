"""`ddptop.setup()` and `ddptop.cleanup()`: from an environment to a process group, and out of it again."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import secrets
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ddptop.runtime import rest
from ddptop.runtime.group import ending, interface, meeting, seeding, stores
from ddptop.runtime.group.handle import Group
from ddptop.runtime.group.place import Place

START_TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for one another at the start: a large job's tasks come within a minute or two."""

_variables_set: list[str] = []


def setup(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    backend: str | None = None,
    device: str | torch.device | None = None,
    seed: int | None = 0,
    timeout: timedelta | None = None,
    start_timeout: timedelta = START_TIMEOUT,
) -> Group:
    """Make the default process group from torchrun's or Slurm's environment, or from `rank` and `world_size`.

    Use it as a context manager, or call `cleanup()` at the end. With no launcher at all it is a group of one.
    NCCL when every rank has a GPU of its own, gloo on the CPU otherwise; the CUDA device is set before
    anything touches it. Python, numpy and torch are seeded alike on all ranks, so that models are built
    equal; from the first `wrap` on, each rank draws its own numbers (from seed + 1 + rank).

    Args:
        rank: this process's rank; without a launcher, together with `world_size`. MASTER_ADDR and
            MASTER_PORT tell where rank 0 is (default: this machine, port 29500).
        world_size: number of ranks.
        backend: `nccl`, `gloo` or what else `init_process_group` takes; the same on all ranks.
        device: where this rank's model goes, if not to the GPU of its local rank, or the CPU under gloo.
        seed: the same on all ranks, and written on the run's card; None leaves the generators alone.
        timeout: of collectives; torch's own unless given.
        start_timeout: how long to wait for ranks that have not come yet.

    Raises:
        ValueError: for a half-set environment, ranks that do not fit together, two ranks on one GPU under
            NCCL.
        RuntimeError: for a port in use, ranks that never come (naming them), a group that exists already.
    """
    _refuse_where_it_cannot_work()
    place = Place.read(rank, world_size)
    target = _device_wanted(backend, device, place.local_rank)
    if target.type == "cuda":
        torch.cuda.set_device(target)
    store = stores.store_of(place, start_timeout)
    card = meeting.Card(
        place.rank,
        place.world_size,
        meeting.host(),
        os.getpid(),
        _gpu(target),
        backend,
        seed,
        interface.source_address(place.master_addr),
        secrets.token_hex(8),
    )
    chosen, addresses, number = meeting.meet(store, card, start_timeout)
    if "nccl" not in chosen and device is None:
        target = torch.device("cpu")
    if seed is not None:
        seeding.seed_alike(seed)
    _tell_others(place, addresses)
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if chosen == "nccl":
        arguments["device_id"] = target
    with ending.connections.opened_here():
        dist.init_process_group(
            chosen,
            store=dist.PrefixStore(number, store),
            rank=place.rank,
            world_size=place.world_size,
            **arguments,
        )
    rest.at_exit()
    atexit.register(_at_exit)
    return Group(
        place.rank,
        place.world_size,
        place.local_rank,
        target,
        chosen,
        local_world_size=place.local_world_size,
        seed=seed,
    )


def cleanup() -> None:
    """Destroy the process group if there is one; may be called twice.

    In an `except` or `finally` that an exception has led to, it does not wait for collectives under way.
    """
    end(failed=sys.exc_info()[0] is not None)


def end(*, failed: bool) -> None:
    """Destroy the process group; `failed`: without waiting for collectives under way."""
    atexit.unregister(_at_exit)
    ending.destroy(failed=failed)
    while _variables_set:
        os.environ.pop(_variables_set.pop(), None)


def _at_exit() -> None:
    """A script that ended without `cleanup()`, perhaps by an exception: Python has left its type here."""
    end(failed=getattr(sys, "last_type", None) is not None)


def _refuse_where_it_cannot_work() -> None:
    if dist.is_initialized():
        raise RuntimeError("there is a process group already: call ddptop.cleanup() first, or use that one")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "ddptop.setup() was reached while a worker process imports the script: "
            "put what the script does below `if __name__ == '__main__':`"
        )


def _device_wanted(backend: str | None, device: str | torch.device | None, local_rank: int) -> torch.device:
    """The device that this rank would take; the ranks together may still decide for gloo and the CPU."""
    if device is not None:
        target = torch.device(device)
        return torch.device("cuda", local_rank) if target == torch.device("cuda") else target
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus == 0 or (backend is not None and "nccl" not in backend):
        return torch.device("cpu")
    # Where a launcher shows each rank one device only, it is number 0 on all of them.
    return torch.device("cuda", local_rank % gpus)


def _gpu(device: torch.device) -> str | None:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _tell_others(place: Place, addresses: tuple[str, ...]) -> None:
    """Set what torchrun would have set, and what gloo needs; `cleanup` takes it away again."""
    if place.launcher == "alone":
        return
    variables = place.variables()
    name_for_gloo = interface.for_gloo(addresses)
    if name_for_gloo is not None:
        variables["GLOO_SOCKET_IFNAME"] = name_for_gloo
    for name, value in variables.items():
        if name not in os.environ:
            os.environ[name] = value
            _variables_set.append(name)
