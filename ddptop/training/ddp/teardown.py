"""The end of a process group, on every path: at once, without waiting for ranks that will not answer.

When a rank raises, its connections break and the others raise as well, moments later. The failure is
written down where the exception is seen first, so that `spawn` and torchrun can name the rank that failed
first.

`destroy_process_group` on gloo joins its threads, and with them every collective still under way: after an
exception on one rank that would be the timeout, half an hour. torch 2.13 has no abort for gloo (its
`abort()` does nothing). So its connections are shut, which ends what is under way here and on the others,
and the groups are kept from being destroyed at the exit of the interpreter. NCCL has an abort of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ddptop.training import join_run
from ddptop.training.exit import wait_for_gloo
from ddptop.training.torch_compat import process_groups


class RankFailure(NamedTuple):
    """How one rank has failed."""

    moment_ns: int
    traceback: str
    exit_code: int | None
    """Exit code given to `sys.exit`; None for an exception."""


STAY_S = 2.0
"""How much longer a rank that failed after another one stays: launchers take the first process that exits
for the cause. torchrun checks every 0.1 s, and then ends the others."""

ANSWER_S = 1.0
"""How long a failing rank waits for the store to answer whether it is the first: rank 0 may be stopped."""

_path: Path | None = None
_noted = False


def write_failure_to(path: Path) -> None:
    """Set the file for this process's failure; without this call none is written."""
    global _path
    _path = path


def note_failure(error: BaseException) -> None:
    """Write the error to the file, once, with its time (CLOCK_MONOTONIC: one for all processes of a host)."""
    global _noted
    if _noted or isinstance(error, KeyboardInterrupt):
        return
    _noted = True
    # torchrun's report takes its tracebacks from there; an exit code it reports by itself.
    if os.environ.get("TORCHELASTIC_ERROR_FILE") and isinstance(error, Exception):
        with contextlib.suppress(OSError):
            get_error_handler().record_exception(error)
    if _path is None:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    with contextlib.suppress(OSError):
        _path.write_bytes(pickle.dumps(RankFailure(time.monotonic_ns(), text, exit_code(error))))


def read_failure(path: Path) -> RankFailure | None:
    """How a process has failed; None if it has not."""
    with contextlib.suppress(OSError, pickle.UnpicklingError, EOFError):
        failure = pickle.loads(path.read_bytes())
        return failure if isinstance(failure, RankFailure) else None
    return None


def is_first_failure() -> bool:
    """Whether no other rank of the default group has called this before; False where that is not known."""
    answers: list[int] = []

    def add_one() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # rank 0, which serves the store, may have exited
            answers.append(process_groups.default_store().add("failed", 1))

    thread = threading.Thread(target=add_one, name="ddptop-failure", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started
        thread.start()
        thread.join(ANSWER_S)
    return answers == [1]


def exit_code(error: BaseException) -> int | None:
    """What `sys.exit` was given, as the number that it becomes; None for anything else."""
    if not isinstance(error, SystemExit):
        return None
    return error.code if isinstance(error.code, int) else int(error.code is not None)


class Connections:
    """The TCP connections that a block of code has opened in this process, where the system lists them."""

    def __init__(self) -> None:
        self._sockets: dict[int, str] = {}

    @contextlib.contextmanager
    def opened_here(self) -> Iterator[None]:
        """Note what is opened inside the block and still open at its end."""
        before = _open_sockets()
        yield
        self._sockets = {fd: name for fd, name in _open_sockets().items() if before.get(fd) != name}

    def shut_connections(self) -> None:
        """Shut those that are still the same connections; listening sockets stay (gloo aborts otherwise)."""
        sockets_now = _open_sockets()
        for fd, name in self._sockets.items():
            # A number that stands for another socket by now is not ours to shut.
            if sockets_now.get(fd) != name:
                continue
            # A copy of the descriptor: closing this object must not close gloo's.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # raises where it is not connected
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets = {}


def _open_sockets() -> dict[int, str]:
    """File descriptor -> the kernel's name of the socket; empty where there is no /proc."""
    sockets: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if name.startswith("socket:"):
                    sockets[int(entry.name)] = name
    return sockets


connections = Connections()
"""Connections of the default process group, as `setup` made it."""


def destroy_groups(*, failed: bool) -> None:
    """Destroy all process groups; `failed`: without waiting for collectives that will not complete."""
    if not dist.is_initialized():
        return
    if not failed:
        # Freeing a group joins its threads, possibly while holding the GIL: a model that outlives its group
        # does. A thread that still needs the GIL must have had it before.
        wait_for_gloo()
        dist.destroy_process_group()
        return
    for group in process_groups.all_groups():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # a destructor at exit would wait
    # Before the groups are destroyed: gloo joins its threads, which wait for these connections.
    connections.shut_connections()
    if "nccl" in str(dist.get_backend_config()):
        process_groups.abort_groups()
    if dist.is_initialized():
        dist.destroy_process_group()


variables_set: list[str] = []
"""Environment variables that `setup` has set, to be removed with the group."""


def end_group(*, failed: bool) -> None:
    """Destroy the process group; `failed`: without waiting for collectives under way."""
    atexit.unregister(_clean_up_at_exit)
    destroy_groups(failed=failed)
    while variables_set:
        os.environ.pop(variables_set.pop(), None)
    join_run.leave_run()


def _clean_up_at_exit() -> None:
    """For a script that ended without `cleanup()`; after an exception Python keeps its type in `sys`."""
    end_group(failed=getattr(sys, "last_type", None) is not None)


def end_at_exit() -> None:
    """Destroy the group when the interpreter exits, if nothing has done so before."""
    atexit.register(_clean_up_at_exit)
