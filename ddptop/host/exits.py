"""What a rank's crash handler left behind: faulthandler's words, read as evidence in the rank's name.

A process that dies by SIGABRT or SIGSEGV cannot send anything any more, but writes the stacks of its threads
into `crash-<session>.txt` in the run's folder.
"""

from __future__ import annotations

import linecache
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ddptop.protocol.codec import decode, encode
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.protocol.limits import MAX_DEPTH, MAX_STACKS, MAX_STEP, MAX_TEXT
from ddptop.protocol.messages import Phase, Progress

MAX_FILE_BYTES = 256 * 1024
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
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return os.read(descriptor, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


def crash_evidence(text: str, t_ns: int, step: int, progress: Progress | None) -> Evidence | None:
    """What a crash file says, as EVIDENCE number 0 that fits a message; None where it says nothing.

    `step` and `progress`: where the rank was when it was last heard.
    """
    reason = next((found[1] for line in text.splitlines() if (found := _FATAL.match(line))), "")
    stacks = _in_order(list(_stacks(text)))
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
    linecache.clearcache()
    return _fitting(evidence)


def _fitting(evidence: Evidence) -> Evidence:
    """With as many stacks, and then calls, as a message has room for; and safe to show."""
    while len(body := encode(evidence)) > MAX_MESSAGE_BYTES:
        *others, last = evidence.stacks
        if not others:
            others = [last._replace(frames=last.frames[: len(last.frames) // 2])]
        evidence = replace(evidence, stacks=tuple(others))
    checked = decode(body)
    assert isinstance(checked, Evidence)
    return checked


def _stacks(text: str) -> Iterator[tuple[bool, Stack]]:
    """Each thread's stack, and whether it is the one that crashed."""
    head: re.Match[str] | None = None
    frames: list[StackFrame] = []
    for line in [*text.splitlines(), ""]:
        call = _CALL.fullmatch(line)
        if call is not None and head is not None:
            frames.append(_frame(call))
            continue
        if head is not None and frames and not line.startswith("  "):
            yield head["current"] != "Thread", _stack(head, frames)
            head, frames = None, []
        head = _THREAD.fullmatch(line) or head


def _stack(head: re.Match[str], frames: list[StackFrame]) -> Stack:
    # Only threads that `threading` has started begin in its bootstrap.
    main = not (frames[-1].function == "_bootstrap" and frames[-1].file.endswith("threading.py"))
    name = "MainThread" if main else head["name"] or head["id"] or "thread"
    return Stack(name[:MAX_TEXT], main, tuple(frames[:MAX_DEPTH]))


def _in_order(found: list[tuple[bool, Stack]]) -> list[Stack]:
    """The main thread's first, then the one that crashed."""
    ordered = sorted(found, key=lambda one: (not one[1].main, not one[0]))
    return [stack if index == 0 else stack._replace(main=False) for index, (_, stack) in enumerate(ordered)]


def _frame(call: re.Match[str]) -> StackFrame:
    line = int(call["line"]) if call["line"].isdigit() else 0
    file = call["file"]
    return StackFrame(file[:MAX_TEXT], line, call["function"][:MAX_TEXT], _source(file, line)[:MAX_TEXT])


def _source(file: str, line: int) -> str:
    """The line itself, where the file is one that can be read without harm."""
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return ""
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_SOURCE_BYTES:
        return ""
    return linecache.getline(file, line).strip()
