"""Evidence of what this rank is doing: the answer to the collector's ASK at a stall, and at an abnormal exit.

It holds the Python stacks of all threads (or of an exception), the sequence numbers of the process groups,
and the newest entries of the flight recorder. They are read in a short-lived thread of their own: each takes
milliseconds, but reading may block (a mutex of torch's, a source file on a dead network drive), and
heartbeats must go on. What has been read by the deadline is sent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ddptop.protocol.evidence import Evidence, GroupState, Stack, StackFrame
from ddptop.training.evidence import flight_recorder
from ddptop.training.evidence.errors import (
    MAIN_FRAMES,
    REASON_CHARACTERS,
    fit_evidence,
    stack_frame,
    with_source,
)
from ddptop.training.evidence.flight_recorder import Flight
from ddptop.training.guard import guard
from ddptop.training.torch_compat.process_groups import group_states

if TYPE_CHECKING:
    from ddptop.training.exit import ExitReason

OTHER_FRAMES = 16
"""Innermost calls of every other thread that are sent: enough to show what it waits for."""

MAX_THREADS = 12
"""The training thread, torch's autograd threads and a loader's; of more the first are sent."""

OWN = "ddptop-"
"""Names of our own threads begin with this; they are left out."""


def thread_stacks(training_thread: int) -> tuple[Stack, ...]:
    """Stacks of all threads but our own, the training thread (its `get_ident()`) first.

    Without source lines, so that no file is read: `with_source` adds them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # Of all threads at one moment: the GIL is held for this call alone.
    frames = sys._current_frames()
    other_threads = [ident for ident in sorted(frames) if ident != training_thread]
    stacks: list[Stack] = []
    for ident in [training_thread, *other_threads]:
        frame, name = frames.get(ident), names.get(ident, f"thread {ident}")
        if frame is None or name.startswith(OWN):
            continue
        main = ident == training_thread
        max_frames = MAIN_FRAMES if main else OTHER_FRAMES
        stacks.append(Stack(name, main, tuple(islice(_walk_outwards(frame), max_frames))))
        if len(stacks) == MAX_THREADS:
            break
    return tuple(stacks)


def _walk_outwards(frame: FrameType | None) -> Iterator[StackFrame]:
    while frame is not None:
        yield stack_frame(frame, frame.f_lineno)
        frame = frame.f_back


DEADLINE_S = 1.5
"""Time that gathering may take before the answer is sent. The collector asks again every 5 s."""


class EvidenceDraft:
    """Evidence as far as it has been read; filled in by one thread, read by another."""

    def __init__(
        self,
        training_thread: int,
        known_stacks: tuple[Stack, ...] = (),
        request: int = 0,
        *,
        device_failed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`known_stacks`: where they are known already. `request`: the ASK's number; 0: none.
        `device_failed`: whether the GPU has reported an error."""
        self.stacks = known_stacks
        self.groups: tuple[GroupState, ...] = ()
        self.flight: Flight = flight_recorder.NOTHING
        self.complete = False
        self._training_thread = training_thread
        self._request = request
        self._device_failed = device_failed

    def gather_evidence(self) -> None:
        """Read everything, the most reliable first; what fails is counted and left out."""
        if not self.stacks:
            self._try_read(self._read_stacks)
        # Before the recorder, which may block, and once more after it, with what it has completed.
        self._try_read(self._read_groups)
        self._try_read(self._read_flight_recorder)
        self._try_read(self._read_groups)
        self._try_read(self._add_source)
        self._try_read(self._write_dumps)
        self.complete = True

    def take_over(self, blocked: EvidenceDraft) -> None:
        """Take what the blocked thread has read into `blocked`, and read the stacks, which cannot block."""
        self.groups, self.flight = blocked.groups, blocked.flight._replace(dumps=())
        self._try_read(self._read_stacks)
        self.complete = True

    def _try_read(self, read: Callable[[], None]) -> None:
        try:
            read()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _read_stacks(self) -> None:
        self.stacks = thread_stacks(self._training_thread)

    def _read_groups(self) -> None:
        self.groups = group_states(self.flight.completed)

    def _read_flight_recorder(self) -> None:
        if self._device_failed():  # NCCL's would print that error with a trace for each of its entries
            return
        self.flight = flight_recorder.read_flight(time.time_ns())

    def _add_source(self) -> None:
        self.stacks = with_source(self.stacks)

    def _write_dumps(self) -> None:
        """Before the answer is sent: its receiver may read them."""
        dumps, self.flight = self.flight.dumps, self.flight._replace(dumps=())
        directory = os.environ.get("DDPTOP_RUN_DIR")
        if self._request and directory is not None:
            flight_recorder.write_dumps(Path(directory), dumps, self._request)

    def make_message(
        self, number: int, position: tuple[int, int, int], reason: str = "", message: tuple[str, ...] = ()
    ) -> Evidence:
        """What has been read; `position` is (step, phase, bucket), the others as in `ExitReason`."""
        evidence = Evidence(
            time.monotonic_ns(),
            number,
            *position,
            reason[:REASON_CHARACTERS],
            self.groups,
            self.stacks,
            self.flight.operations,
            message,
        )
        return fit_evidence(evidence)


class EvidenceReporter:
    """Answers each ASK once. On the publisher's thread, which it never blocks."""

    def __init__(
        self,
        training_thread: int,
        position: Callable[[], tuple[int, int, int]],
        device_failed: Callable[[], bool] = lambda: False,
        wake_up: Callable[[], None] = lambda: None,
    ) -> None:
        """`position` gives the current (step, phase, bucket); `device_failed` as for `EvidenceDraft`.
        `wake_up`: has `answer_request` called, on any thread."""
        self._position = position
        self._wake_up = wake_up
        self._new_draft = partial(EvidenceDraft, training_thread, device_failed=device_failed)
        self._answered = self._number = 0
        """Number of the last ASK that was answered, and of the evidence that was gathered last."""
        self._draft: EvidenceDraft | None = None
        self._gathering: tuple[threading.Thread, EvidenceDraft] | None = None
        self._deadline = 0.0

    @property
    def is_gathering(self) -> bool:
        """Whether evidence is still to be sent."""
        return self._draft is not None

    def answer_request(self, request: int) -> Evidence | None:
        """To be called repeatedly with the newest ASK's number; the evidence once it is gathered."""
        if self._draft is None:
            if request == self._answered:
                return None
            self._answered = request
            self._begin_gathering(request)
        draft = self._draft
        if draft is None or not (draft.complete or time.monotonic() > self._deadline):
            return None
        self._draft = None
        return draft.make_message(self._number, self._position())

    def gather_unasked(self) -> None:
        """Have evidence gathered that `answer_request` returns without an ASK, unless some is being gathered
        already."""
        if self._draft is None:
            self._begin_gathering()

    def exit_evidence(self, exit_reason: ExitReason) -> Evidence:
        """What is sent without an ASK at an abnormal exit. Gathered on the publisher's thread itself: no
        other can be started while the interpreter exits. `Publisher.close` limits the time."""
        trace = exit_reason.trace
        draft = self._new_draft((trace,) if trace is not None else ())
        draft.gather_evidence()
        return draft.make_message(0, self._position(), exit_reason.reason, exit_reason.message)

    def _begin_gathering(self, request: int = 0) -> None:
        """Have evidence gathered, by one thread at most: the last one may be blocked for good."""
        self._number = request or time.time_ns()  # as the collector numbers its ASKs
        self._deadline = time.monotonic() + DEADLINE_S
        if self._gathering is not None and self._gathering[0].is_alive():
            self._draft = self._new_draft()
            self._draft.take_over(self._gathering[1])
            return
        draft = self._new_draft(request=request)

        def gather_evidence() -> None:
            draft.gather_evidence()
            self._wake_up()

        thread = threading.Thread(target=gather_evidence, name="ddptop-evidence", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started: the process is at its limits, or exiting
            guard.caught(error)
            return
        self._gathering, self._draft = (thread, draft), draft
