"""`ddptop.setup()` and `ddptop.cleanup()`: from an environment to a process group, and out of it again.

The end of a process group, on every path: at once, and never waiting for ranks that will not answer.

`destroy_process_group` on gloo joins its threads, and with them every collective still under way: after an
exception on one rank that would be the timeout, half an hour. torch 2.13 has no abort for gloo (its
`abort()` does nothing). So its connections are shut, which ends what is under way here and on the others,
and the groups are kept from being taken apart at the exit of the interpreter. NCCL has an abort of its own.

Which network interface gloo should use, where torch would take the loopback.

torch has gloo listen on the address that this host's name stands for. On many machines that is 127.0.0.1 or
127.0.1.1 (Debian's /etc/hosts): ranks on other hosts then find nobody there.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import ipaddress
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.training import collector_start, exit
from ddptop.training.ddp import bootstrap, meeting, seeding, stores
from ddptop.training.ddp.group import Group
from ddptop.training.ddp.place import Place
from ddptop.training.exit import gloo_rests


class Connections:
    """The TCP connections that a block of code has opened in this process, where the system tells them."""

    def __init__(self) -> None:
        self._sockets: dict[int, str] = {}

    @contextlib.contextmanager
    def opened_here(self) -> Iterator[None]:
        """Remember what is opened inside the block and still open at its end."""
        before = _open_sockets()
        yield
        self._sockets = {fd: name for fd, name in _open_sockets().items() if before.get(fd) != name}

    def shut(self) -> None:
        """Shut those that are still the same connections; listening sockets stay (gloo dies of it)."""
        now = _open_sockets()
        for fd, name in self._sockets.items():
            if now.get(fd) != name:
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # raises where it is not connected
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets = {}


def _open_sockets() -> dict[int, str]:
    """File descriptor -> the kernel's name of the socket; empty where there is no /proc."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if name.startswith("socket:"):
                    found[int(entry.name)] = name
    return found


connections = Connections()
"""Of the default process group, as `setup` made it."""


def destroy(*, failed: bool) -> None:
    """Destroy all process groups; `failed`: without waiting for collectives that will not complete."""
    if not dist.is_initialized():
        return
    if not failed:
        # Who frees a group joins its threads, and may hold the interpreter's lock meanwhile: a model that
        # outlives its group does. A thread that still wants that lock must have had it before.
        gloo_rests()
        dist.destroy_process_group()
        return
    for group in list(distributed_c10d._world.pg_map):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # a destructor at exit would wait
    connections.shut()
    if "nccl" in str(dist.get_backend_config()):
        distributed_c10d._abort_process_group()
    if dist.is_initialized():
        dist.destroy_process_group()


DISCARD_PORT = 9
"""Any would do: nothing is sent."""


def source_address(target: str) -> str:
    """The address of this host from which packets to `target` leave; "" where there is no way."""
    with contextlib.suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(target, DISCARD_PORT, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # for a datagram socket: chooses the route, sends nothing
            return str(probe.getsockname()[0])
    return ""


def for_gloo(addresses: Sequence[str]) -> str | None:
    """The interface for GLOO_SOCKET_IFNAME; None where torch's own choice will do.

    Args:
        addresses: of the ranks' hosts, as each sees itself on the way to rank 0.
    """
    if len(set(addresses)) < 2 or "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    if not is_loopback(_address_of_own_name()):
        return None
    for target in addresses:
        source = source_address(target) if target and not is_loopback(target) else ""
        if source and not is_loopback(source):
            return _interface_with(source)
    return None


def is_loopback(address: str) -> bool:
    """Whether an address stays on its host; also where it is none."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def _address_of_own_name() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _interface_with(address: str) -> str | None:
    for name, known in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in known):
            return str(name)
    return None


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
    store = stores.store_of(place, start_timeout)
    card = _card(place, target, device, backend, seed)
    chosen, addresses, number = meeting.meet(store, card, start_timeout)
    if "nccl" not in chosen and device is None:
        target = torch.device("cpu")
    if target.type == "cuda":  # before anything else makes a context on GPU 0
        torch.cuda.set_device(target)
    if seed is not None:
        seeding.seed_alike(seed)
    _tell_others(place, addresses)
    _begin_group(chosen, dist.PrefixStore(number, store), place, target, timeout)
    exit.at_exit()
    atexit.register(_at_exit)
    collector_start.join_run(number)
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
    destroy(failed=failed)
    while _variables_set:
        os.environ.pop(_variables_set.pop(), None)
    collector_start.leave_run()


def _at_exit() -> None:
    """A script that ended without `cleanup()`, perhaps by an exception: Python has left its type here."""
    end(failed=getattr(sys, "last_type", None) is not None)


def _refuse_where_it_cannot_work() -> None:
    if dist.is_initialized():
        raise RuntimeError("there is a process group already: call ddptop.cleanup() first, or use that one")
    bootstrap.refuse("ddptop.setup()")


def _card(
    place: Place,
    target: torch.device,
    device: str | torch.device | None,
    backend: str | None,
    seed: int | None,
) -> meeting.Card:
    """What this rank says of itself to the others."""
    return meeting.Card(
        place.rank,
        place.world_size,
        meeting.host(),
        os.getpid(),
        _gpu(target),
        backend,
        seed,
        source_address(place.master_addr),
        secrets.token_hex(8),
        None if device is None else target.type,
    )


def _begin_group(
    backend: str, store: Any, place: Place, target: torch.device, timeout: timedelta | None
) -> None:
    """Make the default group. NCCL is told its device: it connects at once, so that what keeps it from that
    is told here, and nothing guesses a GPU from a rank later."""
    arguments: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if "nccl" in backend:
        arguments["device_id"] = target
    with connections.opened_here():
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world_size, **arguments
        )


def _device_wanted(backend: str | None, device: str | torch.device | None, local_rank: int) -> torch.device:
    """The device that this rank would take; the ranks together may still decide for gloo and the CPU.

    Raises ValueError for a GPU that is not there.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # Where a launcher shows each rank one device only, it is number 0 on all of them.
    own = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device is not None:
        return _given(torch.device(device), own, gpus)
    return torch.device("cpu") if backend is not None and "nccl" not in backend else own


def _given(device: torch.device, own: torch.device, gpus: int) -> torch.device:
    """The user's own choice; without a number, of its kind the one of this rank."""
    if device.type != "cuda":
        return device
    if (device.index or 0) >= gpus:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if shown is None else f" (CUDA_VISIBLE_DEVICES={shown})"
        count = f"{gpus} GPU" if gpus == 1 else f"{gpus or 'no'} GPUs"
        raise ValueError(f"there is no {device} here: this process sees {count}{why}")
    return own if device.index is None else device


def _gpu(device: torch.device) -> str | None:
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _tell_others(place: Place, addresses: tuple[str, ...]) -> None:
    """Set what torchrun would have set, and what gloo needs; `cleanup` takes it away again."""
    if place.launcher == "alone":
        return
    variables = place.variables()
    name_for_gloo = for_gloo(addresses)
    if name_for_gloo is not None:
        variables["GLOO_SOCKET_IFNAME"] = name_for_gloo
    for name, value in variables.items():
        if name not in os.environ:
            os.environ[name] = value
            _variables_set.append(name)
