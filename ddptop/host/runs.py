"""The runs of this machine: their folders, the run files in them, and how viewers find those that are live.

`<root>/<run id>/` holds the sockets `ingest` and `view`, the file `run.json` and the file `lock`, which the
collector keeps locked while it runs. The root is `$XDG_RUNTIME_DIR/ddptop`, else `/tmp/ddptop-$UID`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddptop.host.folders import (
    RunDirectoryError,
    first_root,
    open_private,
    open_regular,
    read_private,
    run_roots,
    write_private,
)
from ddptop.host.processes import boot_id, pid_namespace, process_start
from ddptop.protocol.redaction import redact_words

RUN_FILE = "run.json"

COMMAND = "script.json"
"""The script of the run and its arguments, as a list."""

MAX_RUN_FILE_BYTES = 64 * 1024

STARTING = "starting."
"""Prefix of the file that a launcher keeps locked until its run has a folder: it loads torch first."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """The run file: what viewers know of a run."""

    name: str
    run_id: str
    pid: int
    """Process of the collector, or of the agent of this host."""
    process_start: int
    """When that process started (`processes.process_start`): pids are reused."""
    boot_id: str
    pid_namespace: str
    started_at: float
    """Unix seconds."""
    script: str
    world_size: int
    """0: not known yet."""
    recording: str | None
    """Path; of an agent's run file: what the agent records itself while it does not reach the collector."""
    directory: Path
    collector_host: str | None = None
    """Where the collector of the run is, in the run file of an agent: viewers connect there. Empty: not known
    yet; None: the process is the collector."""
    collector_reached: bool = True
    """Whether the agent is connected with it."""


def write_run_file(directory: Path, run: RunFile) -> None:
    """Put the run file in place, whole or not at all, mode 0600. Raises RunDirectoryError."""
    fields = asdict(run)
    del fields["directory"]  # it is where the file is
    try:
        with open_private(directory) as folder:
            write_private(folder, RUN_FILE, json.dumps(fields).encode())
    except OSError as error:
        raise RunDirectoryError(f"cannot write {directory / RUN_FILE}: {error.strerror}") from error


def read_run_file(directory: Path) -> RunFile | None:
    """The run file of a folder; None if there is none, it is not ours, or it is no run file."""
    try:
        data = read_private(directory, RUN_FILE, MAX_RUN_FILE_BYTES)
        return _parse_run_file(json.loads(data), directory)
    except (OSError, RunDirectoryError, ValueError):
        return None


def live_runs() -> list[RunFile]:
    """The runs of this user whose collector lives, newest first.

    Raises RunDirectoryError only when there is no such run and a folder was refused: that may be why.
    """
    runs: list[RunFile] = []
    refused: RunDirectoryError | None = None
    for root in run_roots():
        try:
            with open_private(root) as folder:
                names = os.listdir(folder)  # noqa: PTH208 - pathlib takes no descriptor
        except FileNotFoundError:
            continue
        except RunDirectoryError as error:
            refused = refused or error
            continue
        run_files = (read_run_file(root / name) for name in names)
        runs += [run for run in run_files if run is not None and is_alive(run)]
    # Another folder may hold the user's runs: only where there are none is the refusal the answer.
    if refused is not None and not runs:
        raise refused
    return sorted(runs, key=lambda run: run.started_at, reverse=True)


def write_command(directory: Path, words: Sequence[str], *, arguments: bool = True) -> None:
    """Write the script and its arguments, without secrets, for the collector.

    Not on its command line, which every user of the machine may read. `arguments`: False: the script alone.
    Raises RunDirectoryError.
    """
    shown = redact_words(words) if arguments else list(words[:1])
    try:
        with open_private(directory) as folder:
            write_private(folder, COMMAND, json.dumps(shown).encode())
    except OSError as error:
        raise RunDirectoryError(f"cannot write {directory / COMMAND}: {error.strerror}") from error


def read_command(directory: Path) -> tuple[str, ...]:
    """What `write_command` has written there; empty where there is none."""
    try:
        words = json.loads(read_private(directory, COMMAND))
    except (OSError, RunDirectoryError, ValueError):
        return ()
    return tuple(map(str, words)) if isinstance(words, list) else ()


@contextmanager
def starting_run() -> Iterator[ExitStack]:
    """Until the context, or what it yields, is closed, `launcher_is_starting` is true for viewers.

    Where that fails nothing happens: the run starts all the same.
    """
    with ExitStack() as stack:
        with suppress(Exception):  # whatever it is, the training must start
            root = run_roots()[0]
            with open_private(root, create=True):
                pass
            # With the pid, so that several launchers may start at a time.
            path = root / f"{STARTING}{os.getpid()}"
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, descriptor)
            stack.callback(_unlink_quietly, path)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield stack


def _unlink_quietly(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def launcher_is_starting() -> bool:
    """Whether a launcher of this user has been started whose run has no folder yet.

    Files that launchers left behind when they were killed are removed.
    """
    starting = False
    for root in run_roots():
        with suppress(OSError, RunDirectoryError), open_private(root):
            for path in root.glob(f"{STARTING}*"):
                starting = _is_starting(path) or starting
    return starting


def _is_starting(path: Path) -> bool:
    """Whether the launcher that made this file is about to begin its run; otherwise the file is removed."""
    # By the lock, not by the pid: a launcher that was killed has left its file, and pids come again.
    if _is_locked(path):
        return True
    _unlink_quietly(path)
    return False


def is_alive(run: RunFile) -> bool:
    """Whether the run's collector runs."""
    # After a reboot no process of before lives, whatever has its pid.
    if run.boot_id != boot_id():
        return False
    if run.pid_namespace == pid_namespace():
        return process_start(run.pid) == run.process_start
    return _is_locked(run.directory / "lock")  # another pid namespace: its pid means nothing here


def _is_locked(path: Path) -> bool:
    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    # A shared lock: several that look do not hinder each other.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _parse_run_file(data: object, directory: Path) -> RunFile:
    if not isinstance(data, dict):
        raise ValueError("no run file")
    kinds: dict[str, type | tuple[type, ...]] = {
        "name": str,
        "run_id": str,
        "pid": int,
        "process_start": int,
        "boot_id": str,
        "pid_namespace": str,
        "started_at": (int, float),
        "script": str,
        "world_size": int,
        "recording": (str, type(None)),
    }
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            raise ValueError(f"run file without a proper {key}")
    # An earlier version has written no collector_host.
    run = RunFile(**{key: data[key] for key in kinds}, directory=directory)
    host, reached = data.get("collector_host"), data.get("collector_reached", True)
    if not isinstance(host, (str, type(None))) or not isinstance(reached, bool):
        raise ValueError("run file without a proper collector")
    return replace(run, collector_host=host, collector_reached=reached)


MAX_SOCKET_PATH = 107
"""Bytes of `sun_path` on Linux without the final zero; ZeroMQ refuses longer ones."""

LOCK_PATIENCE_S = 1.0
"""`ddptop ls` may hold the lock for a moment to check whether the run is live."""

REMOVALS = 3
"""Tries to remove a folder: a rank that is still there may just be making its crash file in it."""

HELD = ("agent", "members")
"""Locks beside the collector's own, where the ranks start a collector themselves (`collector_start`)."""

_MADE_HERE = re.compile(
    r"lock|alone|agent|launcher-(signal|failed)|agent-ranks(\.\d+)?|members|ingest|view|collector\.log|"
    r"(run|script|collector|keys)\.json(\.\d+)?|(role|meeting)(\.\d+)?|exchange|end-[0-9a-f]{8}|"
    r"crash-\d+\.txt|ddptop-(steps|init|met)-\d+|\.?ddptop-failed-\d+|ddptop-numbered-[\w-]+|flight|"
    r"ddptop_\w+_rank_\d+(\.\d+)?"
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
    """Take the run's lock and return its descriptor; closing it, or the end of the process, releases it.

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


def hold_folder_again(directory: Path, lock: int) -> bool:
    """Make a run's folder again, which was removed, and hold its lock with the same descriptor.

    Returns False where it cannot be made now. Raises RunDirectoryError where another process serves it.
    """
    try:
        ensure_run_directory(directory)
        new_lock = open_regular(directory / "lock", os.O_RDWR | os.O_CREAT)
    except (OSError, RunDirectoryError):
        return False
    try:
        fcntl.flock(new_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Under the number by which the rest of this process knows the lock.
        os.dup2(new_lock, lock, inheritable=False)
    except BlockingIOError:
        raise RunDirectoryError(f"another process serves {directory}") from None
    finally:
        os.close(new_lock)
    return True


def remove_run_directory(directory: Path) -> None:
    """Remove a run's folder and what ddptop has made in it; nothing happens if it is gone or not ours."""
    for _ in range(REMOVALS):
        # The parent's descriptor is held, so that nobody can put another folder there between check and
        # removal.
        with suppress(OSError, RunDirectoryError), open_private(directory.parent) as root:
            with open_private(directory.name, inside=root) as descriptor:
                _empty_folder(descriptor)
            os.rmdir(directory.name, dir_fd=root)
            return


def _empty_folder(folder: int) -> None:
    for name in filter(_MADE_HERE.fullmatch, os.listdir(folder)):
        with suppress(OSError, RunDirectoryError):  # a rank has removed its file, or a foreign file is in it
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                with open_private(name, inside=folder) as inner:
                    _empty_folder(inner)
                os.rmdir(name, dir_fd=folder)


NEW_S = 60.0
"""A process that makes a run's folder locks it within milliseconds, on a loaded machine later."""


def remove_stale(root: Path, *, but: str = "") -> None:
    """Remove folders whose collector has exited and whose locks are free; `but`: except that run's.

    Ranks that hold one restart the collector, which continues with what is in the folder. Folders that never
    had a collector are of launchers that were killed before: while they waited for other hosts, say.
    """
    try:
        with open_private(root) as descriptor:
            names = os.listdir(descriptor)  # noqa: PTH208 - pathlib takes no descriptor
    except (OSError, RunDirectoryError):
        return
    for name in names:
        folder = root / name
        if name.startswith(STARTING):
            with suppress(RunDirectoryError, OSError):
                _is_starting(folder)
            continue
        run = read_run_file(folder)
        if folder.name == but or (run is not None and is_alive(run)):
            continue
        with suppress(RunDirectoryError, OSError):
            # It may just be being made, unless ranks that start their collector themselves have been in it.
            if run is None and not (folder / HELD[0]).exists() and _is_new(folder):
                continue
            # A process that holds a lock in it still serves it, or is about to.
            with _all_locks(folder):
                remove_run_directory(folder)


def _is_new(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime < NEW_S


@contextmanager
def _all_locks(folder: Path) -> Iterator[None]:
    """Hold every lock of a run. Raises OSError or RunDirectoryError where a process has one."""
    with ExitStack() as stack:
        for name in HELD:
            with suppress(FileNotFoundError):
                descriptor = open_regular(folder / name, os.O_RDWR)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stack.callback(os.close, hold_lock(folder, patience_s=0))
        yield
