"""What the kernel shows of the ranks' processes from outside: CPU, memory and waits once a second; and of one
that does not answer itself where it waits, and the processes that it has started.

No ptrace, no signal: small files in /proc and /sys. A kernel may hide in which function a thread sleeps, and
a virtual machine mostly has no clock of its processors: then nothing is known.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil

from ddptop.host.cgroups import CpuQuota, quota_file
from ddptop.host.exits import RankProcess
from ddptop.host.processes import ProcessStatus, process_status, read_counter
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Usage

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

MAX_WORKERS = 8
"""Processes started by one rank that are read."""

_HELPERS = (b"resource_tracker", b"forkserver import main", b"compile_worker")
"""In command lines of processes of Python's and torch's own, which no script waits for."""


class KernelView(NamedTuple):
    """The main thread of a process."""

    pid: int
    state: str
    """One letter, as in `ProcessStatus`."""
    waits_in: str
    """Function of the kernel in which it sleeps, `hrtimer_nanosleep`; empty: it runs, or that is hidden."""
    cpu_s: float
    """CPU time of the process."""
    age_s: float
    """Since the process was started."""


def kernel_view(pid: int) -> KernelView | None:
    """None where there is no such process, or no /proc."""
    status = process_status(pid)
    # A zombie has neither a stack nor a wait any more; its parent will read its exit code.
    if status is None or status.state in "ZX":
        return None
    waits_in = ""
    with suppress(OSError):
        waits_in = Path(f"/proc/{pid}/wchan").read_text().strip()
    # CLOCK_BOOTTIME, by which the kernel counts starts: it goes on while the machine sleeps.
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - status.start / TICKS_PER_S
    waits_in = "" if waits_in == "0" else waits_in
    return KernelView(pid, status.state, waits_in, status.cpu_ticks / TICKS_PER_S, max(0.0, age_s))


def workers_of(pid: int) -> list[KernelView]:
    """Processes that this one has started by multiprocessing, the oldest first."""
    own_command = _read_command(pid)
    views = []
    for child in children_of(pid):
        command = _read_command(child)
        # A worker that was forked has its parent's command line; one that was spawned names multiprocessing.
        forked = command == own_command or b"multiprocessing" in command
        view = kernel_view(child) if forked and not any(word in command for word in _HELPERS) else None
        if view is not None:
            views.append(view)
    return views[:MAX_WORKERS]


def children_of(pid: int) -> list[int]:
    """Pids of the processes that a process has started."""
    children: list[int] = []
    # By thread: a child belongs to the thread that has forked it.
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has just exited
            children += map(int, task.read_text().split())
    return sorted(children)


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


READINGS = 10
"""Readings of a process, one a second, that shares and means are made of."""


def runnable_threads() -> int | None:
    """Threads of this host that run or wait for a CPU, without the one that asks; None: not known."""
    try:
        # Without the thread that asks: it runs, and nobody waits for it.
        return max(0, int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1)
    except (OSError, ValueError, IndexError):
        return None


class UsageSampler:
    """Reads the processes it is given. CPU is that since the reading before, so the first gives none."""

    def __init__(self) -> None:
        self._processes: dict[int, _SampledProcess] = {}
        """By session."""
        self._quotas: dict[Path | None, CpuQuota] = {}
        """By file. Ranks mostly share a cgroup, whose counts take the kernel long."""
        self._swap_ins = SwapIns()
        self._spent: tuple[int, int] | None = None
        """Time of the reading before, and CPU time of this process until then, in ns."""

    def sample_usage(self, living: Iterable[RankProcess], now_ns: int) -> list[tuple[RankProcess, Usage]]:
        """One reading of each process that can be read."""
        before, self._processes = self._processes, {}
        runnable, swap_ins_s = runnable_threads(), self._swap_ins.per_s(now_ns)
        watcher_pct, throttled_pct = self._own_pct(now_ns), dict[Path | None, float | None]()
        quotas, self._quotas = self._quotas, {}
        readings = []
        for rank in living:
            try:
                # Kept by session: a new process with the same pid must not be compared with the one before.
                process = before.get(rank.session) or _SampledProcess(rank.pid)
                usage = process.read_usage(now_ns, runnable, swap_ins_s)
            except (psutil.Error, OSError):
                continue
            if (file := process.quota_file) not in throttled_pct:
                quota = self._quotas[file] = quotas.get(file) or CpuQuota(file)
                throttled_pct[file] = quota.throttled_pct()
            usage = replace(usage, watcher_pct=watcher_pct, throttled_pct=throttled_pct[file])
            self._processes[rank.session] = process
            # CPU time is a difference of two readings: the first one has nothing to compare with.
            if rank.session in before:
                readings.append((rank, usage))
        return readings

    def _own_pct(self, now_ns: int) -> float | None:
        """CPU time of this process since the reading before, of one core; None: it is the first."""
        before, self._spent = self._spent, (now_ns, time.process_time_ns())
        if before is None or now_ns <= before[0]:
            return None
        return 100.0 * (self._spent[1] - before[1]) / (now_ns - before[0])


class _SampledProcess:
    """One process, with what was read of it before."""

    def __init__(self, pid: int) -> None:
        """Raises psutil.Error."""
        self._pid = pid
        self._process = psutil.Process(pid)
        self._spent: tuple[int, int] | None = None
        """Time of the reading before, and CPU time until then, in ticks."""
        self.quota_file = quota_file(pid)
        self._heat = HeatThrottling()
        self._faults: tuple[int, int] | None = None
        """Time of the reading before, and major faults until then."""
        self._blocked: deque[bool] = deque(maxlen=READINGS)
        """Whether the main thread was in state D, the newest readings."""
        self._clocks: deque[float] = deque(maxlen=READINGS)
        """Clock of its processor, the newest readings that found the main thread running."""

    def read_usage(self, now_ns: int, runnable: int | None, swap_ins_s: float | None) -> Usage:
        """A reading; the last two are of the host. Raises psutil.Error or OSError."""
        status = process_status(self._pid)
        if status is None:  # no /proc
            with self._process.oneshot():
                cpu_pct, rss_bytes = self._process.cpu_percent(None), self._process.memory_info().rss
        else:  # psutil would read the same file again, and another: 178 us more of 319 (load 6)
            cpu_pct, rss_bytes = self._cpu_pct(status, now_ns), status.resident_bytes
        allowed = os.sched_getaffinity(self._pid) if hasattr(os, "sched_getaffinity") else set()
        usage = Usage(
            now_ns,
            int(rss_bytes),
            float(cpu_pct),
            runnable=runnable,
            cores=len(allowed) or None,
            # Only where the process is bound: then it may share these processors with a rank that should have
            # others.
            first_core=min(allowed) if 0 < len(allowed) < (os.cpu_count() or 0) else None,
        )
        return usage if status is None else self._with_waits(usage, status, swap_ins_s)

    def _cpu_pct(self, status: ProcessStatus, now_ns: int) -> float:
        """CPU time of the process in % of one core, since the reading before; 0 at the first one."""
        before, self._spent = self._spent, (now_ns, status.cpu_ticks)
        if before is None or now_ns <= before[0]:
            return 0.0
        return round(100 * (status.cpu_ticks - before[1]) / TICKS_PER_S * NS / (now_ns - before[0]), 1)

    def _with_waits(self, usage: Usage, status: ProcessStatus, swap_ins_s: float | None) -> Usage:
        before, self._faults = self._faults, (usage.t_ns, status.major_faults)
        faults_s = None
        if before is not None and usage.t_ns > before[0]:
            faults_s = max(0, status.major_faults - before[1]) * NS / (usage.t_ns - before[0])
        self._blocked.append(status.state == "D")
        # Only while it runs: an idle processor lowers its clock by itself.
        if status.state == "R" and (clock := clock_pct(status.processor)) is not None:
            self._clocks.append(clock)
        return replace(
            usage,
            major_faults_s=faults_s,
            blocked_pct=_full_mean([100.0 * blocked for blocked in self._blocked]),
            # It explains faults only while pages come back, and takes a third of the reading.
            swapped_bytes=swapped_bytes(self._pid) if swap_ins_s else None,
            swap_ins_s=swap_ins_s,
            clock_pct=_full_mean(self._clocks),
            heat_pct=self._heat.throttled_pct(status.processor, usage.t_ns),
        )


def _full_mean(readings: Sequence[float]) -> float | None:
    """None before there are enough of them."""
    # Divided by READINGS, which are all there are by now.
    return sum(readings) / READINGS if len(readings) == READINGS else None


VMSTAT = Path("/proc/vmstat")
STATUS_FILE = "/proc/{}/status"


def swapped_bytes(pid: int) -> int | None:
    """`VmSwap` of proc(5); None: not known."""
    swapped_kib = read_counter(Path(STATUS_FILE.format(pid)), "VmSwap:")
    return None if swapped_kib is None else 1024 * swapped_kib


class SwapIns:
    """Pages that the host reads back from swap: `pswpin` of /proc/vmstat."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def per_s(self, now_ns: int) -> float | None:
        """Since the last call; None: not known, or no time has passed."""
        before, n_pages = self._before, read_counter(VMSTAT, "pswpin")
        self._before = None if n_pages is None else (now_ns, n_pages)
        if before is None or self._before is None or now_ns <= before[0]:
            return None
        return max(0, self._before[1] - before[1]) * NS / (now_ns - before[0])


PROCESSORS = Path("/sys/devices/system/cpu")

_THROTTLED = ("core_throttle_total_time_ms", "package_throttle_total_time_ms")


def clock_pct(processor: int) -> float | None:
    """Clock of a processor now, of the highest that it has; None: not known."""
    folder = PROCESSORS / f"cpu{processor}" / "cpufreq"
    khz, max_khz = (_read_number(folder / name) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
    return 100.0 * khz / max_khz if khz is not None and max_khz else None


class HeatThrottling:
    """The time for which processors were throttled because they, or their package, were too hot."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}
        """By processor: time of the last reading in ns, and milliseconds throttled until then."""
        self._is_counted = True
        """False: no file tells it, as in most virtual machines. To look for them in vain takes a sixth of the
        reading of a process."""

    def throttled_pct(self, processor: int, now_ns: int) -> float | None:
        """Share of the time since the last reading of this processor; None: not known."""
        if not self._is_counted:
            return None
        folder = PROCESSORS / f"cpu{processor}" / "thermal_throttle"
        throttled_ms = [ms for name in _THROTTLED if (ms := _read_number(folder / name)) is not None]
        if not throttled_ms:
            self._is_counted = bool(self._before)  # a processor that is taken out has no folder any more
            return None
        # Another processor than before has a counter of its own: nothing to compare with.
        then_ns, then_ms = self._before.get(processor, (now_ns, 0))
        # The larger of both: the core may be throttled for itself or with its package.
        self._before[processor] = now_ns, max(throttled_ms)
        if now_ns <= then_ns:
            return None
        return min(100.0, 100.0 * max(0, max(throttled_ms) - then_ms) * 1e6 / (now_ns - then_ns))


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


DISKS_NS = 10 * NS
"""Time between two readings of the file systems."""

REPEAT_NS = 60 * NS
"""A file system that stays full is reported again so often: a report about a rank that is gone is lost."""

FULL_BYTES, FULL_SHARE = 1 << 20, 0.01
"""A file system is full with less than both."""

SHARED_MEMORY = "/dev/shm"


def folders_of(pid: int) -> dict[str, str]:
    """What a rank writes to, as its process sees it: in words, and by which path this process gets there."""
    with suppress(OSError):
        working, root = Path(f"/proc/{pid}/cwd"), Path(f"/proc/{pid}/root")
        shared = "shared memory of DataLoader workers"
        return {
            f"{working.readlink()} (working folder)": str(working),
            f"{SHARED_MEMORY} ({shared})": f"{root}{SHARED_MEMORY}",
        }
    return {}


def is_full(path: str) -> bool:
    """Whether nothing can be written there for want of space or of inodes; False where that is not known, and
    on a read-only file system, which has nothing free (squashfs, iso9660)."""
    try:
        file_system = os.statvfs(path)
    except OSError:
        return False
    if file_system.f_flag & os.ST_RDONLY:
        return False
    # What only root may use is full for everybody else.
    blocks = file_system.f_bavail if os.geteuid() else file_system.f_bfree
    is_small = blocks * file_system.f_frsize < FULL_BYTES and blocks < FULL_SHARE * file_system.f_blocks
    return bool(file_system.f_blocks) and (is_small or bool(file_system.f_files and not file_system.f_favail))


class FullDisks:
    """Notices file systems that are full, and that are no longer.

    In a thread: one of a server that does not answer blocks whoever asks for it.
    """

    def __init__(self) -> None:
        self._due_ns = 0
        self._thread: threading.Thread | None = None
        self._readings: dict[str, bool] = {}
        """Folders, in words, and whether they are full, as the thread found them last."""
        self._full: dict[str, int] = {}
        """Folders that were reported as full, and when that is to be reported again."""

    def check_folders(self, folders: Callable[[], Mapping[str, str]], now_ns: int) -> list[tuple[str, bool]]:
        """Folders, in words, that are full (True), once a minute, or no longer. `folders` (words, paths) is
        called in the thread; one that it no longer has is not reported as free."""
        if now_ns >= self._due_ns and (self._thread is None or not self._thread.is_alive()):
            self._due_ns = now_ns + DISKS_NS
            with suppress(RuntimeError):  # no thread can be started
                self._thread = threading.Thread(target=self._read_folders, args=(folders,), daemon=True)
                self._thread.start()
        # Replaced as a whole by the thread, so that this one sees one state of it.
        readings, before = self._readings, self._full
        full = [name for name in sorted(readings) if readings[name] and before.get(name, now_ns) <= now_ns]
        # `is False`: a folder that is not looked at any more is not known to be free.
        free = [name for name in sorted(before) if readings.get(name) is False]
        still_full = {name: due_ns for name, due_ns in before.items() if readings.get(name)}
        self._full = still_full | dict.fromkeys(full, now_ns + REPEAT_NS)
        return [(name, True) for name in full] + [(name, False) for name in free]

    def _read_folders(self, folders: Callable[[], Mapping[str, str]]) -> None:
        self._readings = {name: is_full(path) for name, path in folders().items()}
