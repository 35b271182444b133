"""The end of a process group, on every path: at once, and never waiting for ranks that will not answer.

`destroy_process_group` on gloo joins its threads, and with them every collective still under way: after an
exception on one rank that would be the timeout, half an hour. torch 2.13 has no abort for gloo (its
`abort()` does nothing). So its connections are shut, which ends what is under way here and on the others,
and the groups are kept from being taken apart at the exit of the interpreter. NCCL has an abort of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.runtime.rest import gloo_rests


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
