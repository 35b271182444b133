"""Has a Python process that is running execute a file: `sys.remote_exec` from Python 3.14 on, gdb below it.

With gdb the process is stopped while gdb reads the symbols of two libraries and makes two calls of
microseconds: `mmap` for a page, and `Py_AddPendingCall`, which only notes what the main thread calls at its
next safe point. The page holds the line of Python to be called; it stays, 4 KiB. Nothing is allocated by
malloc: the main thread may have been stopped inside it.

Before the first call gdb changes a register and changes it back: a gdb that does not know the CPU (13 and
AMX) cannot write all of its registers, and the process would die of a call that fails for that, in the middle
of a system call that was interrupted.

A gdb that is killed with SIGKILL during one of these calls leaves its breakpoint behind, and the process
dies of it, as with memray attach and debugpy. So gdb has a session of its own, no terminal and no pipe, and
is never killed from here.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

GDB_S = 60.0
"""How long gdb is waited for: it takes under a second on an idle machine."""

_CALLED = "ddptop: noted"

_HARMLESS = "set $mxcsr = $mxcsr ^ 0x20"
"""Flips the flag of x86 that a result was rounded, which nothing in torch or Python reads."""


class InjectionError(Exception):
    """Why a process cannot be made to execute a file: one line for the user."""


def inject_file(pid: int, file: Path) -> None:
    """Have a Python process start a thread that executes `file`. Raises InjectionError."""
    remote: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    # The protocol of remote_exec is that of one version of Python.
    if remote is not None and _python_of(pid) == f"{sys.version_info[0]}.{sys.version_info[1]}":
        stub = file.with_name(f"{file.name}.begin")
        # `sys.remote_exec` runs its file on the main thread: this one only starts a thread for the other.
        stub.write_text(python_line(file))
        try:
            remote(pid, str(stub))
        except (OSError, RuntimeError) as error:
            raise InjectionError(f"process {pid} does not take sys.remote_exec: {error}") from None
        return
    gdb = shutil.which("gdb")
    if gdb is None:
        raise InjectionError("gdb is not installed (apt install gdb): it is needed below Python 3.14")
    _refuse_where_traced(pid)
    _run_gdb(gdb, pid, python_line(file))


def why_not(pid: int) -> str | None:
    """Why this process cannot be attached to, as a line; None where nothing speaks against it."""
    folder = Path(f"/proc/{pid}")
    try:
        owner = folder.stat().st_uid
        # A process in a container has other paths: it could not open the file.
        elsewhere = (folder / "ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
        maps = (folder / "maps").read_text(errors="replace")
    except FileNotFoundError:
        return f"there is no process {pid}"
    except PermissionError:
        return (
            f"process {pid} belongs to another user, or may not be traced (container: --cap-add SYS_PTRACE)"
        )
    if owner != os.geteuid():
        return f"process {pid} belongs to another user (uid {owner}): run ddptop attach as that user"
    if elsewhere:
        return f"process {pid} is in a container: run ddptop attach there"
    if _python_of(pid) is None:
        return f"process {pid} is not a Python process"
    if "libtorch" not in maps:
        return f"process {pid} has not loaded torch"
    return None


def _python_of(pid: int) -> str | None:
    """The version of Python in a process, `3.11`, by its executable or its libpython; None: no Python."""
    try:
        names = {Path(f"/proc/{pid}/exe").readlink().name}
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            names.add(line.rpartition("/")[2])
    except OSError:
        return None
    for name in names:
        stem = name.partition(".so")[0].removeprefix("lib")
        version = stem.removeprefix("python").rstrip("t")
        if stem.startswith("python3.") and version[2:].isdecimal():
            return version
    return None


def _refuse_where_traced(pid: int) -> None:
    status = Path(f"/proc/{pid}/status").read_text()
    # Only one process may trace another: a debugger or strace is there first.
    tracer = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    if tracer != "0":
        raise InjectionError(f"process {pid} is being traced already, by process {tracer}")


def python_line(file: Path) -> str:
    """A line of Python that runs a file in a thread of its own."""
    # An exception must not leave it: a pending call that fails raises SystemError in the training.
    # A thread of `_thread`: those of `threading` take locks, which the main thread may hold.
    run = f"__import__('_thread').start_new_thread(exec, (open({str(file)!r}).read(), {{}}))"
    return f"try:\n {run}\nexcept BaseException:\n pass\n"


def gdb_commands(pid: int, line: str) -> str:
    """The commands with which gdb has a process run a line of Python."""
    literal = line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    size = len(line.encode()) + 1
    # One page was mapped for it.
    assert size <= 4096
    return "\n".join(
        (
            # A signal during a call then takes the call back, instead of leaving the process in the middle of
            # it.
            "set unwindonsignal on",
            "set auto-solib-add off",  # reading all of torch's symbols takes seconds
            f"attach {pid}",
            # Twice, so that the bit is as it was: only the writing matters.
            *([_HARMLESS] * 2 if platform.machine() == "x86_64" else ()),
            "sharedlibrary libpython",
            "sharedlibrary libc\\.",
            "set $page = ((long (*)(long, long, int, int, int, long)) mmap)(0, 4096, 3, 0x22, -1, 0)",
            f'set {{char[{size}]}} $page = "{literal}"',
            "set $noted = ((int (*)(void *, long)) Py_AddPendingCall)((void *) &PyRun_SimpleString, $page)",
            # Before the result is printed: the process goes on even if gdb fails at that.
            "detach",
            f'printf "{_CALLED} %d\\n", $noted',
            "",
        )
    )


def _run_gdb(gdb: str, pid: int, line: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ddptop-gdb-") as folder:
        script, output = Path(folder, "commands"), Path(folder, "output")
        script.write_text(gdb_commands(pid, line))
        with output.open("wb") as out:
            process = subprocess.Popen(
                # No files of the user's and no symbols from the network: both could take long, or do
                # anything.
                [gdb, "-nx", "-batch", "-iex", "set debuginfod enabled off", "-x", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C in this terminal must not reach gdb while it has stopped the process.
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        _wait_for_gdb(process)
        text = output.read_text(errors="replace")
    # Py_AddPendingCall returns 0 where it has taken the call.
    if f"{_CALLED} 0" not in text:
        raise InjectionError(failure_reason(pid, text))


def _wait_for_gdb(process: subprocess.Popen[bytes]) -> None:
    """Wait for gdb; Ctrl-C has to wait, too, and nothing kills gdb."""
    end = time.monotonic() + GDB_S
    interrupted = False
    while process.poll() is None:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupted = True
        if time.monotonic() > end:
            raise InjectionError(
                f"gdb (process {process.pid}) has not ended after {GDB_S:g} s; it is left alone"
            )
    # Raised only now: gdb has left the process.
    if interrupted:
        raise KeyboardInterrupt


def failure_reason(pid: int, text: str) -> str:
    """Why gdb has failed, by what it has printed, and what helps."""
    if "ptrace: " in text or "Could not attach" in text:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        with_yama = scope.exists() and scope.read_text().strip() != "0"
        how = (
            "as root, or after: echo 0 > /proc/sys/kernel/yama/ptrace_scope"
            if with_yama
            else "in a container: --cap-add SYS_PTRACE"
        )
        return f"process {pid} may not be traced ({how})"
    if "No symbol" in text:
        return f"gdb finds no interpreter in process {pid}: is its Python stripped?"
    if "Couldn't write" in text:
        return f"this gdb cannot write the registers of this CPU, so process {pid} was left alone: try gdb 14"
    last = text.strip().splitlines()[-1:] or ["no output"]
    return f"gdb could not reach process {pid}: {last[0]}"
