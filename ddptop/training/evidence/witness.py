"""What this rank is doing, told while its training thread is stuck: the answer to the collector's ASK.

Stacks, sequence numbers and the flight recorder are read in a short-lived thread of their own: each takes
milliseconds, but the reading may block (a mutex of torch's, a source file on a dead network drive), and
heartbeats must go on. What has been found by the deadline is sent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence, GroupState, Stack
from ddptop.training.evidence import flight_recorder, stacks
from ddptop.training.evidence import flight_recorder as flight_dump
from ddptop.training.evidence.flight_recorder import Flight
from ddptop.training.guard import guard
from ddptop.training.process_groups import group_states

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
        self.stacks = stacks.thread_stacks(self._training_thread)

    def _look_at_groups(self) -> None:
        self.groups = group_states(self.flight.completed)

    def _read_flight_recorder(self) -> None:
        self.flight = flight_recorder.read(time.time_ns())

    def _add_source(self) -> None:
        self.stacks = stacks.with_source(self.stacks)

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
