"""What this rank is doing, told while its training thread is stuck: the answer to the collector's ASK.

Stacks, sequence numbers and the flight recorder are read in a short-lived thread of their own: each takes
milliseconds, but the reading may block (a mutex of torch's, a source file on a dead network drive), and
heartbeats must go on. What has been found by the deadline is sent.

Python stacks as messages carry them: of every thread of the process, and of an exception.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence, GroupState, Stack, StackFrame
from ddptop.training.evidence import flight_recorder
from ddptop.training.evidence import flight_recorder as flight_dump
from ddptop.training.evidence.flight_recorder import Flight
from ddptop.training.guard import guard
from ddptop.training.torch_compat.process_groups import group_states

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


DEADLINE_S = 1.5
"""How long an answer is waited for. The collector asks silent ranks again every 5 s."""

MAX_BYTES = 60_000
"""Of the encoded message: under the link's 64 KiB with room for its head."""

REASON_CHARACTERS = 500
"""Of an exception's message."""


class Findings:
    """What has been found so far; filled in by one thread, read by another."""

    def __init__(self, training_thread: int, known: tuple[Stack, ...] = (), asked: int = 0) -> None:
        """`known`: the stacks, where they are known already. `asked`: the ASK's number; 0: nobody asked."""
        self.stacks = known
        self.groups: tuple[GroupState, ...] = ()
        self.flight: Flight = flight_recorder.NOTHING
        self.complete = False
        self._training_thread = training_thread
        self._asked = asked

    def gather(self) -> None:
        """Look at everything, the surest first; what fails is counted and left out."""
        if not self.stacks:
            self._try(self._look_at_threads)
        self._try(self._look_at_groups)
        self._try(self._read_flight_recorder)
        self._try(self._look_at_groups)
        self._try(self._add_source)
        self._try(self._write_dumps)
        self.complete = True

    def take_over(self, blocked: Findings) -> None:
        """What can be had while the thread that gathers the other findings is blocked: what it has found, and
        stacks of now, which nothing can block."""
        self.groups, self.flight = blocked.groups, blocked.flight._replace(dumps=())
        self._try(self._look_at_threads)
        self.complete = True

    def _try(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _look_at_threads(self) -> None:
        self.stacks = thread_stacks(self._training_thread)

    def _look_at_groups(self) -> None:
        self.groups = group_states(self.flight.completed)

    def _read_flight_recorder(self) -> None:
        self.flight = flight_recorder.read(time.time_ns())

    def _add_source(self) -> None:
        self.stacks = with_source(self.stacks)

    def _write_dumps(self) -> None:
        """Before the answer goes out: who has it may read them."""
        dumps, self.flight = self.flight.dumps, self.flight._replace(dumps=())
        directory = os.environ.get("DDPTOP_RUN_DIR")
        if self._asked and directory is not None:
            flight_dump.write(Path(directory), dumps, self._asked)

    def message(self, number: int, place: tuple[int, int, int], reason: str = "") -> Evidence:
        """What there is; `place` is (step, phase, bucket)."""
        told = Evidence(
            time.monotonic_ns(),
            number,
            *place,
            reason[:REASON_CHARACTERS],
            self.groups,
            self.stacks,
            self.flight.operations,
        )
        return fitted(told)


def fitted(told: Evidence) -> Evidence:
    """The evidence cut to what the link takes: first the older operations go, then the other threads."""
    while len(encode(told)) > MAX_BYTES:
        if len(told.operations) > 16:
            told = replace(told, operations=told.operations[len(told.operations) // 2 :])
        elif len(told.stacks) > 1:
            told = replace(told, stacks=told.stacks[: (len(told.stacks) + 1) // 2])
        else:
            return replace(told, stacks=(), operations=(), groups=())
    return told


class Witness:
    """Answers each ASK once. Belongs to the publisher's thread, and never holds it up."""

    def __init__(self, training_thread: int, place: Callable[[], tuple[int, int, int]]) -> None:
        """`place` gives (step, phase, bucket) of this moment."""
        self._training_thread = training_thread
        self._place = place
        self._answered = 0
        self._findings: Findings | None = None
        self._gathering: tuple[threading.Thread, Findings] | None = None
        self._deadline = 0.0

    def answer(self, asked: int) -> Evidence | None:
        """To be called again and again with the newest ASK's number; the evidence once it is there."""
        if self._findings is None:
            if asked == self._answered:
                return None
            self._answered = asked
            self._begin()
        findings = self._findings
        if findings is None or not (findings.complete or time.monotonic() > self._deadline):
            return None
        self._findings = None
        return findings.message(self._answered, self._place())

    def last_words(self, reason: str, trace: Stack | None) -> Evidence:
        """What is sent unasked at an abnormal end. On the publisher's thread itself: no other can be started
        while the interpreter ends, and that it ends in time is seen to by who waits for the publisher."""
        findings = Findings(self._training_thread, (trace,) if trace is not None else ())
        findings.gather()
        return findings.message(0, self._place(), reason)

    def _begin(self) -> None:
        """Have evidence gathered. By one thread at most: the last one may be blocked for good."""
        self._deadline = time.monotonic() + DEADLINE_S
        if self._gathering is not None and self._gathering[0].is_alive():
            self._findings = Findings(self._training_thread)
            self._findings.take_over(self._gathering[1])
            return
        findings = Findings(self._training_thread, asked=self._answered)
        thread = threading.Thread(target=findings.gather, name="ddptop-evidence", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be had: the process is at its limits, or ending
            guard.caught(error)
            return
        self._gathering, self._findings = (thread, findings), findings
