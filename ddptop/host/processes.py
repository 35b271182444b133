"""Processes of this machine: which one a pid means, and how ddptop starts its own.

A pid alone is reused, and means nothing after a reboot or in another container; with the start time, the boot
and the pid namespace it names one process.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessStatus(NamedTuple):
    """A process as the kernel reports it."""

    state: str
    """One letter: `R`, `S` and `D` run, `T` and `t` are stopped, `Z` is a zombie."""
    start: int
    """When it started; only to be compared for equality."""
    exit_status: int
    """Wait status of a zombie, as `os.waitstatus_to_exitcode` takes it; 0 without permission to read it."""
    parent: int = 0
    """Pid of its parent; 0: that is outside this pid namespace."""
    cpu_ticks: int = 0
    """CPU time of all its threads, in ticks of SC_CLK_TCK."""
    major_faults: int = 0
    """Pages that had to be read from disk, of all its threads."""
    processor: int = 0
    """Where its main thread runs, or ran last."""
    resident_bytes: int = 0
    """The part of its memory that is in RAM."""


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the system has no such file."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Where this process's pids are counted; empty where the system has no namespaces."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def boot_and_namespace() -> str:
    """Differs between machines, and between containers on one machine."""
    return f"{boot_id()} {pid_namespace()}"


def process_start(pid: int) -> int | None:
    """When the process started, only to be compared for equality; None if there is none, or a zombie."""
    status = process_status(pid)
    if status is None:
        return _start_without_proc(pid)
    # Without /proc, as on macOS, psutil tells the same.
    return None if status.state in "ZX" else status.start


def process_status(pid: int) -> ProcessStatus | None:
    """State of a process, a zombie's included; None if there is none, or no /proc.

    Fields 3, 4, 12, 14, 15, 22, 24, 39 and 52 of /proc/PID/stat, proc(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:  # also ProcessLookupError, where it ends while it is read
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # the command in parentheses may hold anything
    cpu_ticks, exit_status = int(fields[11]) + int(fields[12]), int(fields[49])
    started, parent, major_faults = int(fields[19]), int(fields[1]), int(fields[9])
    state, processor, resident_bytes = fields[0].decode(), int(fields[36]), int(fields[21]) * PAGE_BYTES
    return ProcessStatus(
        state, started, exit_status, parent, cpu_ticks, major_faults, processor, resident_bytes
    )


MAX_ANCESTORS = 64
"""Ancestors that are looked at: more than a rank has, with its launcher and shells."""


def belongs_to(pid: int, other: int) -> bool:
    """Whether a process is this other one, of the process group that it leads, or descends from it."""
    return other in (pid, _process_group(pid)) or other in ancestor_pids(pid)


def ancestor_pids(pid: int) -> set[int]:
    """The pids of the processes from which this one descends, up to the one that init has started."""
    above: set[int] = set()
    while len(above) < MAX_ANCESTORS:
        status = process_status(pid)
        if status is None or status.parent <= 1:
            break
        pid = status.parent
        above.add(pid)
    return above


def is_own_process(pid: int) -> bool:
    """Whether there is a process of this pid that runs as this user."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except OSError:
        return False


def read_counter(file: Path, name: str) -> int | None:
    """The number behind `name` in a file of the kernel, such as /proc/vmstat; None: not known."""
    try:
        words = file.read_bytes().split()
        return int(words[words.index(name.encode()) + 1])
    except (OSError, ValueError, IndexError):
        return None


def innermost_pid(pid: int) -> int:
    """The pid of a process in its own pid namespace, which is another in a container. `NSpid` of proc(5)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_bytes().splitlines()
    except OSError:
        return pid
    return next((int(line.split()[-1]) for line in lines if line.startswith(b"NSpid:")), pid)


def _process_group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def start_after(pid: int, unix_s: float) -> bool | None:
    """Whether the process started after that moment: then its pid was reused. None: no such process."""
    import psutil

    try:
        # One second of grace: the kernel counts starts in ticks since a boot time known to the second.
        return bool(psutil.Process(pid).create_time() > unix_s + 1.0)
    except psutil.Error:
        return None


def _start_without_proc(pid: int) -> int | None:
    # There is a /proc, and the process is not in it: it has ended.
    if Path("/proc/self/stat").exists() or pid <= 0:
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except psutil.Error:
        return None


FREE_THREADS = 32
"""Threads that must be free for a run to be recorded: the launcher takes 1, the collector 4, a rank 1, and
those that training takes, 13 with two ranks on the CPU, must not be missing because of them."""


EXIT_S = 5.0
"""A thread that has run to its end is counted by the kernel until it has exited: some microseconds, or longer
on a machine under load."""


def need_threads(count: int = FREE_THREADS) -> None:
    """Start so many threads, all at once, and end them. Raises OSError where they cannot be had.

    When it returns the kernel counts none of them any more: as many can be started at once.
    """
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        # All at once, since it is the number that may be limited.
        for _ in range(count):
            thread = threading.Thread(target=end.wait, name="ddptop-probe", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        text = f"fewer than {count} more threads can be started (ulimit -u, or a container's limit)"
        raise OSError(errno.EAGAIN, text) from None
    # Also after a failure: the threads that could be started must not stay.
    finally:
        end.set()
        for thread in started:
            thread.join()
    deadline = time.monotonic() + EXIT_S
    while any(Path(f"/proc/self/task/{thread.native_id}").exists() for thread in started):
        if time.monotonic() > deadline:
            raise OSError(errno.EAGAIN, "threads that have ended are not gone")
        time.sleep(0.0005)


def current_process() -> tuple[int, int, str, str]:
    """This process: pid, start, boot id, pid namespace."""
    pid = os.getpid()
    return pid, process_start(pid) or 0, boot_id(), pid_namespace()


_PACKAGE = Path(__file__).parents[1]

_INSTALLED = ("site-packages", "dist-packages")

_RANK_VARIABLES = ("DDPTOP_RUN_", "DDPTOP_AGENT", "DDPTOP_STARTED_BY", "DDPTOP_RANK_PROCESS")


def child_environment() -> dict[str, str]:
    """For a child: this process's own, without the variables that make a process a rank.

    The current folder is not searched for modules (Python 3.11 and later): `python -m` would import a
    `queue.py` or `secrets.py` that lies beside the script instead of Python's own.
    """
    # A process of ours must not take itself for a rank, nor load the recorder.
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_RANK_VARIABLES)}
    inject = str(_PACKAGE / "training" / "inject")
    # Without the inject folder, whose `sitecustomize` is for ranks.
    path = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != inject]
    package_root = str(_PACKAGE.parent)
    # A checkout may be on this process's path alone; installed packages are found by every process.
    if package_root in sys.path and package_root not in path and _PACKAGE.parent.name not in _INSTALLED:
        path.append(package_root)
    variables["PYTHONPATH"] = os.pathsep.join(path)
    variables["PYTHONSAFEPATH"] = "1"
    # One thread works at a time; OpenBLAS would reserve memory for each core.
    variables["OMP_NUM_THREADS"] = variables["OPENBLAS_NUM_THREADS"] = "1"
    return variables


def fill_standard_streams() -> None:
    """Open /dev/null, not for children, in place of the standard streams that are closed.

    Otherwise a file, pipe or socket of ours could get the number of one, and receive what C code writes to
    stderr: libzmq aborts the process where that is one of its own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


class InputEnd(threading.Event):
    """Set when standard input ends, in a process that is to end then.

    Standard input is a pipe that nothing is written to. It ends when the process at its other end closes it
    or exits, also by SIGKILL, on every system.
    """

    def __init__(self, end: Callable[[], object], grace_s: float = 0.0) -> None:
        """`end()` is called `grace_s` seconds later, if the process is still there."""
        super().__init__()
        self._end = end
        self.grace_s = grace_s
        threading.Thread(target=self._wait_for_end, name="ddptop-input", daemon=True).start()

    def _wait_for_end(self) -> None:
        # What is read is of no interest: only the end is.
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        self.set()
        time.sleep(self.grace_s)
        self._end()
