"""The collector of a run without a launcher of ours: one per host, started by the first process of the run.

There are two lock files in the run's folder. `agent` is locked by the collector while it runs; it inherits
the lock from the process that started it. `members` is locked, shared, by every process that the collector
serves: once no process has that lock, the run has ended. The kernel releases a lock when its process exits.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddptop.host.folders import first_root, open_log, open_regular
from ddptop.host.processes import boot_id
from ddptop.host.runs import HELD, MAX_SOCKET_PATH, ensure_run_directory, remove_stale

AGENT, MEMBERS = HELD

JOIN_S = 0.05
"""The collector checks for members once a second with an exclusive lock, for microseconds."""

SHELL_S = 1.0
"""The shell that puts the collector into the background exits after 2 ms on an idle machine."""

_END = b"end"

_IN_BACKGROUND = '"$@" &'
"""For a shell, which exits at once: a script that waits for all its children must not wait for ours."""


def run_id_of(*parts: object) -> str:
    """A run's id, 12 hexadecimal digits: the same for all processes that give the same parts, on this machine
    and boot."""
    import hashlib  # OpenSSL, which a collector does without

    text = "\0".join(map(str, (boot_id(), *parts)))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def folder_of(run_id: str) -> Path:
    """The folder of a run that several processes begin together, made if missing; stale ones are removed.

    Raises RunDirectoryError.
    """
    # The longest socket in the folder decides which root can be used.
    root = first_root(room=MAX_SOCKET_PATH - len(f"/{run_id}/ingest"))
    remove_stale(root, but=run_id)
    folder = root / run_id
    ensure_run_directory(folder)
    return folder


def become_member(folder: Path) -> int | None:
    """Be a member of the run while the returned descriptor is open. None: the lock was not free in time."""
    return _wait_for_lock(folder / MEMBERS, fcntl.LOCK_SH, JOIN_S)


def request_end(member: int) -> bool:
    """Request the end of the run, as its last member: no other process will join. True for one process only.

    A failed attempt at the exclusive lock releases the shared one (flock(2)). So of two members that leave at
    the same time the first may get the lock after the second, which has requested the end, has closed it.
    """
    if not _is_last_member(member):
        return False
    # Read and written under the exclusive lock, so that exactly one member asks.
    with suppress(OSError):
        if os.pread(member, len(_END) + 1, 0) == _END:
            return False
        os.pwrite(member, _END, 0)
    return True


def _is_last_member(member: int) -> bool:
    """Whether no other process is a member."""
    if _try_lock(member, fcntl.LOCK_EX):
        return True
    time.sleep(0.002)  # the collector may just have checked
    return _try_lock(member, fcntl.LOCK_EX)


def end_requested(folder: Path) -> bool:
    """Whether the last member has done so."""
    try:
        descriptor = open_regular(folder / MEMBERS)
    except OSError:
        return True
    try:
        return os.pread(descriptor, len(_END) + 1, 0) == _END
    finally:
        os.close(descriptor)


def has_members(folder: Path) -> bool:
    """Whether any process is a member."""
    try:
        descriptor = open_regular(folder / MEMBERS, os.O_RDWR)
    except OSError:
        return False  # none has ever been, or the folder is gone
    try:
        return not _is_last_member(descriptor)
    finally:
        os.close(descriptor)


def open_agent_lock(folder: Path) -> int:
    """A descriptor of the file `agent`, for `read_summary`. Raises OSError."""
    return _open_lock(folder / AGENT)


def read_summary(agent: int, patience_s: float) -> bytes | None:
    """What the collector has written at its end; None: it has not ended within `patience_s`."""
    end = time.monotonic() + patience_s
    # The collector holds the lock exclusively as long as it lives.
    while not _try_lock(agent, fcntl.LOCK_SH):
        if time.monotonic() > end:
            return None
        time.sleep(0.02)
    return os.pread(agent, 1 << 16, 0)


def start_collector(folder: Path, command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Start the collector by this command unless there is one; whether it was started.

    It gets the lock as standard input and its errors go to a file in the folder; it is no child of this
    process, has a session of its own, and inherits no other file. Takes some 5 ms. Raises OSError.
    """
    lock = _open_lock(folder / AGENT)
    try:
        # Another process has started it, or is just doing so.
        if not _try_lock(lock, fcntl.LOCK_EX):
            return False
        with open_log(folder / "collector.log") as log:
            # A shell gives a command in the background /dev/null as input: the lock comes as number 3.
            shell = ["/bin/sh", "-c", f"exec 3<&0; {_IN_BACKGROUND}", "sh", *command]
            process = subprocess.Popen(
                shell,
                # Inherited, the lock lasts until the collector ends, whatever ends it.
                stdin=lock,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=dict(env),
            )
        with suppress(subprocess.TimeoutExpired):
            # The shell, not the collector, which is no child any more then.
            process.wait(SHELL_S)
    finally:
        os.close(lock)
    return True


LOCK_NUMBER = 3
"""The collector's descriptor of the file `agent`, whose lock it holds."""


def write_summary(text: str) -> None:
    """In the collector, at its end: write what `read_summary` is to return, and let it return."""
    with suppress(OSError):
        os.ftruncate(LOCK_NUMBER, 0)
        os.pwrite(LOCK_NUMBER, text.encode(), 0)
        # Unlocked, not closed: `read_summary` returns now, before this process has ended.
        fcntl.flock(LOCK_NUMBER, fcntl.LOCK_UN)


def _open_lock(path: Path) -> int:
    return open_regular(path, os.O_RDWR | os.O_CREAT)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(path: Path, kind: int, patience_s: float) -> int | None:
    descriptor = _open_lock(path)
    end = time.monotonic() + patience_s
    while not _try_lock(descriptor, kind):
        if time.monotonic() > end:
            os.close(descriptor)
            return None
        time.sleep(0.001)
    return descriptor
