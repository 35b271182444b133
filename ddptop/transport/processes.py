"""Which process is meant: a pid alone is reused, and means nothing after a reboot or in another container."""

from __future__ import annotations

import os
from pathlib import Path


def boot_id() -> str:
    """Changes with every boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Where this process's pids are counted; empty where there is only one such place."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """When the process started, in a unit only meant for equality; None if there is none, or a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return _start_without_proc(pid)
    except OSError:
        return None
    fields = status[status.rindex(")") + 2 :].split()  # the command in parentheses may hold anything
    return None if fields[0] in "ZX" else int(fields[19])


def start_after(pid: int, unix_s: float) -> bool | None:
    """Whether the process started after that moment: then its pid was reused. None: no such process."""
    import psutil

    try:
        # One second of grace: the kernel counts starts in ticks since a boot time known to the second.
        return bool(psutil.Process(pid).create_time() > unix_s + 1.0)
    except psutil.Error:
        return None


def _start_without_proc(pid: int) -> int | None:
    if Path("/proc/self/stat").exists() or pid <= 0:
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time() * 1000)
    except psutil.Error:
        return None


def current_process() -> tuple[int, int, str, str]:
    """This process: pid, start, boot id, pid namespace."""
    pid = os.getpid()
    return pid, process_start(pid) or 0, boot_id(), pid_namespace()
