"""`ddptop.setup()` and `ddptop.cleanup()`: from an environment to a process group, and out of it again.

torch has gloo listen on the address that this host's name resolves to. On many machines that is 127.0.0.1
or 127.0.1.1 (Debian's /etc/hosts), where ranks on other hosts cannot connect; `for_gloo` then chooses another
network interface.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ddptop.host.addresses import is_loopback, source_address
from ddptop.training import attach, exit, join_run
from ddptop.training.ddp import rendezvous, teardown
from ddptop.training.ddp.group import Group
from ddptop.training.ddp.group_info import seed_generators
from ddptop.training.ddp.placement import Placement, refuse_while_importing


def for_gloo(addresses: Sequence[str]) -> str | None:
    """The interface for GLOO_SOCKET_IFNAME; None where torch's own choice will do.

    Args:
        addresses: of the ranks' hosts, as used to connect to rank 0.
    """
    if len(set(addresses)) < 2 or "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    # Only where the host's own name is a loopback address: otherwise gloo's own choice is right.
    if not is_loopback(address_of_own_name()):
        return None
    for target in addresses:
        source = source_address(target) if target and not is_loopback(target) else ""
        if source and not is_loopback(source):
            return _interface_with(source)
    return None


def address_of_own_name() -> str:
    """The address that this host's name resolves to; empty: to none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _interface_with(address: str) -> str | None:
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return str(name)
    return None


START_TIMEOUT = timedelta(minutes=5)
"""How long ranks wait for one another at the start: a large job's tasks come within a minute or two."""


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
            MASTER_PORT are the address of rank 0 (default: this machine, port 29500).
        world_size: number of ranks.
        backend: `nccl`, `gloo` or what else `init_process_group` takes; the same on all ranks.
        device: where this rank's model is, if not on the GPU of its local rank, or the CPU under gloo.
        seed: the same on all ranks, and shown with the run; None leaves the generators alone.
        timeout: of collectives; torch's own unless given.
        start_timeout: how long to wait for ranks that have not started yet.

    Raises:
        ValueError: for a half-set environment, ranks that do not fit together, two ranks on one GPU under
            NCCL.
        RuntimeError: for a port in use, ranks that do not start (naming them), a group that exists already.
    """
    _refuse_where_impossible()
    placement = Placement.from_environment(rank, world_size)
    target = device_of_rank(backend, device, placement.local_rank)
    store = rendezvous.store_of(placement, start_timeout)
    card = _own_card(placement, target, device, backend, seed)
    # Only here is the backend decided: one rank without a GPU makes all of them take gloo.
    chosen, addresses, number, collector = rendezvous.meet_ranks(store, card, start_timeout)
    if "nccl" not in chosen and device is None:
        target = torch.device("cpu")
    if target.type == "cuda":  # before anything else makes a context on GPU 0
        torch.cuda.set_device(target)
    if seed is not None:
        seed_generators(seed)
    _set_variables(placement, addresses)
    # Under the number of this meeting: torchrun keeps its store over restarts, with the keys of the group
    # before.
    begin_process_group(chosen, dist.PrefixStore(number, store), placement, target, timeout)
    exit.wait_for_gloo_at_exit()
    teardown.end_at_exit()
    join_run.join_run(
        number,
        attach.attach_when_imported,
        several_hosts=len(addresses) > 1,
        collects=collector == card.address if collector else None,
    )
    return Group(
        placement.rank,
        placement.world_size,
        placement.local_rank,
        target,
        chosen,
        local_world_size=placement.local_world_size,
        seed=seed,
    )


def cleanup() -> None:
    """Destroy the process group if there is one; may be called twice.

    In an `except` or `finally` that an exception has led to, it does not wait for collectives under way.
    """
    teardown.end_group(failed=sys.exc_info()[0] is not None)


def _refuse_where_impossible() -> None:
    if dist.is_initialized():
        raise RuntimeError("there is a process group already: call ddptop.cleanup() first, or use that one")
    refuse_while_importing("ddptop.setup()")


def _own_card(
    placement: Placement,
    target: torch.device,
    device: str | torch.device | None,
    backend: str | None,
    seed: int | None,
) -> rendezvous.RankCard:
    """The card of this rank for the others."""
    return rendezvous.RankCard(
        placement.rank,
        placement.world_size,
        rendezvous.host_name(),
        os.getpid(),
        _gpu_uuid(target),
        backend,
        seed,
        source_address(placement.master_addr),
        secrets.token_hex(8),
        None if device is None else target.type,
        join_run.has_collector(),
    )


def begin_process_group(
    backend: str, store: Any, placement: Placement, target: torch.device, timeout: timedelta | None
) -> None:
    """Make the default group. NCCL is given its device: it connects at once, so that an error in that is
    raised here, and no GPU is guessed from a rank later."""
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if "nccl" in backend:
        arguments["device_id"] = target
    with teardown.connections.opened_here():
        dist.init_process_group(
            backend, store=store, rank=placement.rank, world_size=placement.world_size, **arguments
        )


def device_of_rank(backend: str | None, device: str | torch.device | None, local_rank: int) -> torch.device:
    """The device that this rank would take; the ranks together may still decide for gloo and the CPU.

    Raises ValueError for a GPU that is not there.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # Where a launcher shows each rank one device only, it is number 0 on all of them.
    rank_device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device is not None:
        return _chosen_device(torch.device(device), rank_device, gpus)
    return torch.device("cpu") if backend is not None and "nccl" not in backend else rank_device


def _chosen_device(device: torch.device, rank_device: torch.device, gpus: int) -> torch.device:
    """The user's own choice; without a number, of its kind the one of this rank."""
    if device.type != "cuda":
        return device
    if (device.index or 0) >= gpus:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if shown is None else f" (CUDA_VISIBLE_DEVICES={shown})"
        count = f"{gpus} GPU" if gpus == 1 else f"{gpus or 'no'} GPUs"
        raise ValueError(f"there is no {device} here: this process sees {count}{why}")
    return rank_device if device.index is None else device


def _gpu_uuid(device: torch.device) -> str | None:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _set_variables(placement: Placement, addresses: tuple[str, ...]) -> None:
    """Set the variables that torchrun would have set, and gloo's; `cleanup` removes them."""
    if placement.launcher == "alone":
        return
    variables = placement.launcher_variables()
    name_for_gloo = for_gloo(addresses)
    if name_for_gloo is not None:
        variables["GLOO_SOCKET_IFNAME"] = name_for_gloo
    for name, value in variables.items():
        # What the user has set stays.
        if name not in os.environ:
            os.environ[name] = value
            teardown.variables_set.append(name)
