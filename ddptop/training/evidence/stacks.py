"""Python stacks as messages carry them: of every thread of the process, and of an exception."""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType, TracebackType

from ddptop.protocol.evidence import Stack, StackFrame

MAIN_FRAMES = 48
"""Innermost calls told of the training thread: under a framework the user's own call lies some 30 deep."""

OTHER_FRAMES = 16
"""Of every other thread: enough to tell what it waits for."""

MAX_THREADS = 12
"""The training thread, torch's autograd threads and a loader's; an application with more shows the first."""

CODE_CHARACTERS = 120
"""Of a line of source."""

OWN = "ddptop-"
"""Names of our own threads begin with this; what they do is no evidence."""


def thread_stacks(training_thread: int) -> tuple[Stack, ...]:
    """What every thread but our own does now, the training thread (its `get_ident()`) first.

    Without source lines, so that no file is read: `with_source` adds them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    others = [ident for ident in sorted(frames) if ident != training_thread]
    found: list[Stack] = []
    for ident in [training_thread, *others]:
        frame, name = frames.get(ident), names.get(ident, f"thread {ident}")
        if frame is None or name.startswith(OWN):
            continue
        main = ident == training_thread
        most = MAIN_FRAMES if main else OTHER_FRAMES
        found.append(Stack(name, main, tuple(islice(_outwards(frame), most))))
        if len(found) == MAX_THREADS:
            break
    return tuple(found)


def traceback_stack(trace: TracebackType | None) -> Stack:
    """Where an exception came from."""
    frames = [(entry, line) for entry, line in traceback.walk_tb(trace)]
    told = (_frame(entry, line) for entry, line in reversed(frames[-MAIN_FRAMES:]))
    return Stack("traceback", True, tuple(told))


def with_source(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """The same with the line of source of every call. Reads files: on a dead network drive it may block."""
    return tuple(
        stack._replace(frames=tuple(call._replace(code=_code(call)) for call in stack.frames))
        for stack in stacks
    )


def _outwards(frame: FrameType | None) -> Iterator[StackFrame]:
    while frame is not None:
        yield _frame(frame, frame.f_lineno)
        frame = frame.f_back


def _frame(frame: FrameType, line: int | None) -> StackFrame:
    code = frame.f_code
    return StackFrame(code.co_filename, line or 0, code.co_name, "")


def _code(call: StackFrame) -> str:
    return linecache.getline(call.file, call.line).strip()[:CODE_CHARACTERS]
