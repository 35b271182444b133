"""From the cgroup of a process: how often its CPU quota was used up, and out-of-memory kills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddptop.host.processes import read_counter

CGROUPS = Path("/sys/fs/cgroup")


def quota_file(pid: int) -> Path | None:
    """Where the kernel counts how the CPU quota of the cgroup that a process is in, version 1 or 2, is used;
    None: nowhere."""
    return cgroup_file(pid, "cpu", ("cpu.stat",))


class CpuQuota:
    """The CPU quota of a cgroup."""

    def __init__(self, file: Path | None) -> None:
        """`file`: as `quota_file` gives it."""
        self._path = file
        self._before: tuple[int, int] | None = None

    def throttled_pct(self) -> float | None:
        """Share of the periods since the last call in which it was used up; None: not known."""
        before, self._before = self._before, self._read_counts()
        # No period has ended since then: there is nothing to take a share of.
        if before is None or self._before is None or self._before[0] <= before[0]:
            return None
        return 100.0 * max(0, self._before[1] - before[1]) / (self._before[0] - before[0])

    def _read_counts(self) -> tuple[int, int] | None:
        """Periods so far, and those in which it was throttled."""
        if self._path is None:
            return None
        try:
            values = dict(line.split() for line in self._path.read_text().splitlines())
            return int(values["nr_periods"]), int(values["nr_throttled"])
        except (OSError, ValueError, KeyError):
            return None


def cgroup_file(pid: int, controller: str, names: Sequence[str]) -> Path | None:
    """The first of these files that the cgroup of a process has for this controller; None: there is none."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # Two colons at most: the path may have some of its own.
        _, controllers, path = line.split(":", 2)
        # Version 2 has one line without controllers, version 1 a line for each; a host may have both.
        is_named = controller in controllers.split(",")
        root = CGROUPS / controller if is_named else CGROUPS
        files = [root / path.lstrip("/") / name for name in names] if is_named or not controllers else []
        if (file := next((file for file in files if file.exists()), None)) is not None:
            return file
    return None


KILLED_NS = 10_000_000_000
"""Time between the kernel's kill for want of memory and the exit: the process's memory is freed first."""


class OutOfMemoryKills:
    """The kernel's out-of-memory kills, in the cgroups of processes; of this host where there is none.

    `oom_kill` in memory.events, memory.oom_control (version 1) or /proc/vmstat, cgroup-v2(7).
    """

    def __init__(self) -> None:
        self._file_of: dict[int, Path] = {}
        """By pid."""
        self._seen: dict[Path, tuple[int, int | None]] = {}
        """By file: the count, and when it was last found to have grown; None: never."""

    def watch_process(self, pid: int, now_ns: int) -> None:
        """Watch the cgroup of this process, which runs."""
        # Now, while the process runs: /proc/PID/cgroup is gone with it.
        file = cgroup_file(pid, "memory", ("memory.events", "memory.oom_control")) or Path("/proc/vmstat")
        self._file_of[pid] = file
        if file not in self._seen:
            self._read_count(file, now_ns)

    def forget_process(self, pid: int) -> None:
        """Its exit was reported."""
        # Others of the same cgroup still need the count.
        file = self._file_of.pop(pid, None)
        if file is not None and file not in self._file_of.values():
            self._seen.pop(file, None)

    def read_all(self, now_ns: int) -> None:
        """Read the counts of all cgroups, once a second."""
        for file in list(self._seen):
            self._read_count(file, now_ns)

    def was_killed(self, pid: int, now_ns: int) -> bool | None:
        """Whether the kernel has just killed a process of its cgroup because memory ran out.

        None: not known, as there is no count.
        """
        file = self._file_of.get(pid)
        if file is None or not self._read_count(file, now_ns):
            return None
        _, grown_ns = self._seen[file]
        return grown_ns is not None and now_ns - grown_ns < KILLED_NS

    def _read_count(self, file: Path, now_ns: int) -> bool:
        """Read one count; returns whether it could be read."""
        count = read_counter(file, "oom_kill")
        if count is None:
            return False
        before, grown_ns = self._seen.get(file, (count, None))
        # Kills before the process was watched are not its own: the first count only sets the begin.
        self._seen[file] = count, now_ns if count > before else grown_ns
        return True
