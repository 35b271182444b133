"""A run's folder: where its sockets are, how it is found, and how no second collector takes its place.

`<root>/<run id>/` holds the sockets `ingest` and `view`, the file `run.json` and the file `lock`, which the
collector keeps locked while it lives. The root is `$XDG_RUNTIME_DIR/ddptop`, else `/tmp/ddptop-$UID`.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ddptop.host.discovery import RunFile, is_alive, live_runs, read_run_file, write_run_file
from ddptop.host.folders import (
    RunDirectoryError,
    first_root,
    open_private,
    open_regular,
    roots,
    state_directory,
)

__all__ = [
    "RunDirectoryError",
    "RunFile",
    "create_run_directory",
    "ensure_run_directory",
    "flight_folder",
    "hold_lock",
    "ingest_endpoint",
    "live_runs",
    "remove_run_directory",
    "remove_stale",
    "roots",
    "state_directory",
    "view_endpoint",
    "write_run_file",
]

MAX_SOCKET_PATH = 107
"""Bytes of `sun_path` on Linux without the final zero; ZeroMQ refuses longer ones."""

LOCK_PATIENCE_S = 1.0
"""`ddptop ls` may hold the lock for a moment to see whether the run lives."""

REMOVALS = 3
"""Tries to remove a folder: a rank that is still there may just be making its crash file in it."""

HELD = ("agent", "members")
"""Locks beside the collector's own, where the ranks themselves see to it that there is one (`agents.py`)."""

_MADE_HERE = re.compile(
    r"lock|agent|members|ingest|view|collector\.log|(run|script)\.json(\.\d+)?|crash-\d+\.txt|steps-\d+|"
    r"flight|ddptop_\w+_rank_\d+(\.\d+)?"
)
"""What ddptop makes in a run's folder. Anything else there is not removed, nor is its folder."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def create_run_directory(run_id: str) -> Path:
    """Make the folder of a new run, mode 0700; remove those of dead runs. Raises RunDirectoryError."""
    if not _RUN_ID.fullmatch(run_id):
        raise RunDirectoryError(f"run id {run_id!r}: letters, digits, '.', '_' and '-' only, at most 64")
    root = first_root(room=MAX_SOCKET_PATH - len(f"/{run_id}/ingest"))
    remove_stale(root)
    try:
        with open_private(root, create=True) as descriptor:
            os.mkdir(run_id, 0o700, dir_fd=descriptor)
    except FileExistsError:
        raise RunDirectoryError(f"there is a run {run_id} already") from None
    except OSError as error:
        raise RunDirectoryError(f"cannot make a folder in {root}: {error.strerror}") from error
    return root / run_id


def ensure_run_directory(directory: Path) -> None:
    """Check a run's folder, and make it again if it is gone. Raises RunDirectoryError."""
    try:
        with (
            open_private(directory.parent, create=True) as root,
            open_private(directory.name, create=True, inside=root),
        ):
            pass
    except FileNotFoundError:
        raise RunDirectoryError(f"{directory.parent.parent} is not there") from None


def ingest_endpoint(directory: Path) -> str:
    """Where ranks connect."""
    return f"ipc://{directory}/ingest"


def view_endpoint(directory: Path) -> str:
    """Where viewers connect."""
    return f"ipc://{directory}/view"


def flight_folder(directory: Path) -> Path:
    """Where ranks write their flight recorder's dumps, at a stall."""
    return directory / "flight"


def hold_lock(directory: Path, *, patience_s: float = LOCK_PATIENCE_S) -> int:
    """Take the run's lock and return its descriptor; closing it, or dying, lets it go.

    Raises RunDirectoryError when another collector has it: binding would silently steal its sockets.
    """
    descriptor = open_regular(directory / "lock", os.O_RDWR | os.O_CREAT)
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(descriptor)
                raise RunDirectoryError(f"another collector already serves {directory}") from None
            time.sleep(0.02)
        else:
            return descriptor


def holds_folder(directory: Path, lock: int) -> bool:
    """Whether the lock that this process holds is still the one in the run's folder."""
    try:
        return os.path.samestat((directory / "lock").stat(follow_symlinks=False), os.fstat(lock))
    except OSError:
        return False


def remove_run_directory(directory: Path) -> None:
    """Remove a run's folder and what ddptop has made in it; nothing happens if it is gone or not ours."""
    for _ in range(REMOVALS):
        with suppress(OSError, RunDirectoryError), open_private(directory.parent) as root:
            with open_private(directory.name, inside=root) as descriptor:
                _empty(descriptor)
            os.rmdir(directory.name, dir_fd=root)
            return


def _empty(folder: int) -> None:
    for name in filter(_MADE_HERE.fullmatch, os.listdir(folder)):
        with suppress(OSError, RunDirectoryError):  # a rank has removed its own, or somebody else's is in it
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                with open_private(name, inside=folder) as inner:
                    _empty(inner)
                os.rmdir(name, dir_fd=folder)


def remove_stale(root: Path, *, but: str = "") -> None:
    """Remove folders whose collector's process is gone and whose locks nobody holds; `but`: not that run's.

    Ranks that hold one start a collector again, which goes on with what is in the folder.
    """
    try:
        with open_private(root) as descriptor:
            names = os.listdir(descriptor)  # noqa: PTH208 - pathlib takes no descriptor
    except (OSError, RunDirectoryError):
        return
    for name in names:
        folder = root / name
        run = read_run_file(folder)
        if folder.name == but or (run is not None and is_alive(run)):
            continue
        with suppress(RunDirectoryError, OSError):
            if run is None and not (folder / HELD[0]).exists():
                continue  # it is just being made
            with _all_locks(folder):
                remove_run_directory(folder)


@contextmanager
def _all_locks(folder: Path) -> Iterator[None]:
    """Hold every lock of a run. Raises OSError or RunDirectoryError where somebody has one."""
    with ExitStack() as stack:
        for name in HELD:
            with suppress(FileNotFoundError):
                descriptor = open_regular(folder / name, os.O_RDWR)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack.callback(os.close, hold_lock(folder, patience_s=0))
        yield
