"""How the processes of ranks exit: who notices what, and the one record of it.

- That a process is gone: `rank_processes.ProcessWatch`, as its pidfd becomes readable, or by /proc.
- Its exit code or signal: `exit_code_of`, until its parent reaps it; and its parent `ddptop-run`
  (`cli.launch`), which writes it to the collector's standard input (`agent.launcher`).
- Why: the rank itself (`training.exit`), in an EVIDENCE 0 with the traceback and in its BYE.
- Where a fatal signal hit it: faulthandler in the rank (`training.exit`), in a file.
- How many steps it finished: the rank, in memory or a file that outlives it (`step_counters`).

`RankExit` holds what is known; `agent.host_watch` reports it as the events `lost_rank` (no BYE came),
`exit` (its exit code, also when that is known only later) and `unsent` (steps that never arrived). From these
`analysis.health.exits` decides which exit was the cause.
"""

from __future__ import annotations

import linecache
import os
import re
import signal
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ddptop.host.folders import open_regular
from ddptop.host.processes import process_status
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.protocol.limits import MAX_DEPTH, MAX_STACKS, MAX_STEP, MAX_TEXT
from ddptop.protocol.messages import Event, Phase, Progress, Scalar


class RankProcess(NamedTuple):
    """The process behind one session."""

    session: int
    rank: int
    pid: int


class RankExit(NamedTuple):
    """How the process of a rank exited, as far as is known."""

    process: RankProcess
    noticed_ns: int
    exit_code: int | None
    """As `subprocess` gives it, negative for a signal; None: not known."""
    said_bye: bool = False
    reported: bool = False
    """It was reported before; only the exit code is new."""
    left_group: bool = False
    """Its BYE says that it has left its process group, after which it may be killed."""
    steps: int | None = None
    """Steps that it had finished, by its own counter; None: that could not be read."""
    out_of_memory: bool | None = None
    """Whether the kernel killed it, or a process of its cgroup, for want of memory; None: not known."""

    def to_event(self, kind: str) -> Event:
        """EVENT `lost_rank` or `exit` for this exit."""
        code = self.exit_code
        fields: dict[str, Scalar] = {
            "pid": self.process.pid,
            "session": self.process.session,
            "exit_code": None if code is None or code < 0 else code,
            "signal": None if code is None or code >= 0 else signal_name(-code),
        }
        if self.left_group:
            fields["left"] = True
        if self.out_of_memory is not None:
            fields["out_of_memory"] = self.out_of_memory
        return Event(kind, self.noticed_ns, self.process.rank, -1, fields)


def signal_name(number: int) -> str:
    """`SIGKILL`; `signal 40` for a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` of linux/pidfd.h, first version: mask, cgroup, pids and ids, exit status."""

GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO; the exit status is in it since Linux 6.15, once the parent has reaped the process."""

_INFO_EXIT = 1 << 3


def exit_code_of(pid: int, start: int | None, pidfd: int | None) -> int | None:
    """Exit code (negative: signal) of a process that is no child of ours.

    A zombie shows it in /proc until its parent reaps it; a pidfd, on a recent kernel, from then on. None: it
    cannot be read, or not any more.
    """
    for _ in range(2):  # it may be reaped between the two readings
        status = process_status(pid)
        if status is not None and status.start == start and status.state == "Z":
            return _code_of_status(status.exit_status)
        exit_status = _pidfd_exit_status(pidfd) if pidfd is not None else None
        if exit_status is not None:
            return _code_of_status(exit_status)
    return None


def _code_of_status(status: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(status)
    except ValueError:  # that of a process which has not ended
        return None


def _pidfd_exit_status(pidfd: int) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    # The kernel fills in what it knows of what the mask asks for.
    info = bytearray(_PIDFD_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, GET_INFO, info)
    except OSError:  # an older kernel
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return int(status) if mask & _INFO_EXIT else None


MAX_CRASH_BYTES = 256 * 1024
"""faulthandler writes at most 100 threads of 100 calls."""

MAX_MESSAGE_BYTES = 60 * 1024
"""A record must stay below what a reader takes from a rank."""

MAX_SOURCE_BYTES = 4 << 20
"""A longer source file is no source file."""

_FATAL = re.compile(r"(Fatal Python error: .*)")
_THREAD = re.compile(
    r"(?P<current>Current thread|Thread|Stack)(?: (?P<id>0x[0-9a-f]+))?(?: \[(?P<name>.*)\])?"
    r" \(most recent call first\):"
)
_CALL = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')


def crash_file(directory: Path, session: int) -> Path:
    """Where the process of a session writes its crash."""
    return directory / f"crash-{session}.txt"


def take_crash(path: Path) -> str:
    """The text of a crash file, which is removed; empty where there is none, or nothing in it."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(MAX_CRASH_BYTES)
    except OSError:
        return ""
    with suppress(OSError):
        path.unlink()
    return data.decode("utf-8", "replace")


def crash_evidence(text: str, t_ns: int, step: int, progress: Progress | None) -> Evidence | None:
    """A crash file as EVIDENCE number 0 that fits a message; None where it holds no stack and no reason.

    `step` and `progress`: where the rank was by its last messages.
    """
    reason = next((match[1] for line in text.splitlines() if (match := _FATAL.match(line))), "")
    stacks = _in_order(list(_parse_stacks(text)))
    if not reason and not stacks:
        return None
    evidence = Evidence(
        t_ns=t_ns,
        number=0,
        step=min(step, MAX_STEP),
        phase=progress.phase if progress else Phase.OTHER,
        bucket=progress.bucket if progress else -1,
        reason=reason[:MAX_TEXT],
        groups=(),
        stacks=tuple(stacks[:MAX_STACKS]),
        operations=(),
    )
    # Source lines are read once for a crash; the files may have changed by the next one.
    linecache.clearcache()
    return _cut_to_message(evidence)


def _cut_to_message(evidence: Evidence) -> Evidence:
    """The evidence with as many stacks, and then calls, as a message has room for; its texts are safe to
    show."""
    from ddptop.protocol.decoding import decode  # a rank does without it

    # The last stacks first: the main thread and the one that crashed are at the begin.
    while len(body := encode(evidence)) > MAX_MESSAGE_BYTES:
        *all_but_last, last = evidence.stacks
        if not all_but_last:
            # A single stack that is too long: its innermost calls are what matters.
            all_but_last = [last._replace(frames=last.frames[: len(last.frames) // 2])]
        evidence = replace(evidence, stacks=tuple(all_but_last))
    checked = decode(body)
    assert isinstance(checked, Evidence)
    return checked


def _parse_stacks(text: str) -> Iterator[tuple[bool, Stack]]:
    """Each thread's stack, and whether it is the one that crashed."""
    head: re.Match[str] | None = None
    frames: list[StackFrame] = []
    # One empty line more, which ends the last stack.
    for line in [*text.splitlines(), ""]:
        call = _CALL.fullmatch(line)
        if call is not None and head is not None:
            frames.append(_parse_frame(call))
            continue
        if head is not None and frames and not line.startswith("  "):
            yield head["current"] != "Thread", _make_stack(head, frames)
            head, frames = None, []
        head = _THREAD.fullmatch(line) or head


def _make_stack(head: re.Match[str], frames: list[StackFrame]) -> Stack:
    # Only threads that `threading` has started begin in its bootstrap.
    main = not (frames[-1].function == "_bootstrap" and frames[-1].file.endswith("threading.py"))
    name = "MainThread" if main else head["name"] or head["id"] or "thread"
    return Stack(name[:MAX_TEXT], main, tuple(frames[:MAX_DEPTH]))


def _in_order(stacks: list[tuple[bool, Stack]]) -> list[Stack]:
    """The main thread's first, then the one that crashed."""
    # False sorts first: the main thread, then the one that crashed.
    ordered = sorted(stacks, key=lambda entry: (not entry[1].main, not entry[0]))
    # Only one stack may count as the main one, as of a crash in a thread that torch has started.
    return [stack if index == 0 else stack._replace(main=False) for index, (_, stack) in enumerate(ordered)]


def _parse_frame(call: re.Match[str]) -> StackFrame:
    line = int(call["line"]) if call["line"].isdigit() else 0
    file = call["file"]
    return StackFrame(file[:MAX_TEXT], line, call["function"][:MAX_TEXT], _source_line(file, line)[:MAX_TEXT])


def _source_line(file: str, line: int) -> str:
    """The line itself, where the file is one that can be read without harm."""
    try:
        # A path from a crash file may be anything: a FIFO or a device would block, or never end.
        status = Path(file).stat()
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SOURCE_BYTES:
        return ""
    return linecache.getline(file, line).strip()
