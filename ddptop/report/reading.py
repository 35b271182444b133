"""Reads a recording for the report: all of it, or of a long one evenly spread stretches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddptop.protocol.evidence import Evidence
from ddptop.recording.format import NO_STEP
from ddptop.report.build import finish
from ddptop.report.points import MOST_SPANS
from ddptop.report.walk import LOOK_STEPS, Walk, look_every
from ddptop.sources.player import FEED_FAILURES, gc_paused

if TYPE_CHECKING:
    from ddptop.protocol.messages import Received
    from ddptop.recording.reader import Recording
    from ddptop.report.content import Report

WHOLE_ROWS = 200_000
"""Step rows up to which all is read: at 30 to 50 us a row some eight seconds on a busy core."""

STRETCH_ROWS = 3_000
"""Rows of a stretch, for few ranks: 60 of them are 180,000."""

LEAST_STRETCH = LOOK_STEPS + 20
"""Steps of a stretch, however many ranks: one look with its own 100 steps, and some to begin with."""

AFTER_STALL = 4
"""Blocks read from the one on that shows the step moving again: in them all ranks tell of it."""

BEFORE_STALL = 8
"""Blocks read before the one that shows the last step before a stall: all ranks have told of it there."""


def read(recording: Recording) -> Report:
    """The report of a recording, as much of it as there is now."""
    world = recording.world_size or 1
    steps = 0
    if recording.first_step is not None and recording.last_step is not None:
        steps = recording.last_step - recording.first_step + 1
    whole = steps * world <= WHOLE_ROWS
    reader = _Reader(recording, whole, steps, max(LEAST_STRETCH, STRETCH_ROWS // world))
    with gc_paused():
        reader.read()
    return finish(
        reader.walk,
        growing=recording.growing,
        whole=whole,
        damage=recording.damage,
        recording=str(recording.path),
        refused=reader.refused,
    )


class _Reader:
    """Feeds a walk."""

    def __init__(self, recording: Recording, whole: bool, steps: int, stretch: int) -> None:
        self._recording = recording
        self._whole = whole
        self._stretch = stretch
        self.walk = Walk(look_every(steps))
        self.refused = 0

    def read(self) -> None:
        """All of it, or stretches."""
        if self._whole:
            for received in self._recording.records():
                self._feed(received)
            return
        lasting = _Lasting(self._recording)
        reached = 0
        for blocks in stretches(self._recording, self._stretch):
            if blocks.start > reached:
                self.walk.gap()
            reached = blocks.stop
            for received in lasting.until(self._recording.summary(blocks.start).first_ns):
                self._feed(received)
            for index in blocks:
                for received in self._recording.block(index) or []:
                    self._feed(received)
                    lasting.passed(received)
        for received in lasting.until(self._recording.end_ns + 1):
            self._feed(received)

    def _feed(self, received: Received) -> None:
        try:
            self.walk.feed(received)
        except FEED_FAILURES:
            self.refused += 1


class _Lasting:
    """What matters for ever, in order, for the time between two stretches."""

    def __init__(self, recording: Recording) -> None:
        self._messages = recording.lasting()
        self._next = next(self._messages, None)
        self._passed_ns = -1
        self._passed: list[Received] = []
        """Messages of that very moment."""

    def passed(self, received: Received) -> None:
        """This one was fed already, as part of a stretch."""
        if received.t_ns > self._passed_ns:
            self._passed_ns, self._passed = received.t_ns, []
        if received.t_ns == self._passed_ns:
            self._passed.append(received)

    def until(self, t_ns: int) -> Iterator[Received]:
        """Those that arrived before, and were not passed."""
        while self._next is not None and self._next.t_ns < t_ns:
            received, self._next = self._next, next(self._messages, None)
            known = received.t_ns == self._passed_ns and received in self._passed
            if received.t_ns >= self._passed_ns and not known:
                yield received


def stretches(recording: Recording, steps: int) -> Iterator[range]:
    """Ranges of blocks to read, in order, none twice: about `steps` steps at the end of each of 60 equal
    pieces of the time, and whatever surrounds a question to the ranks, which is asked at a stall.
    """
    stalls = _evidence(recording)
    done = 0
    length_ns = recording.end_ns - recording.start_ns
    for piece in range(1, MOST_SPANS + 1):
        until_ns = recording.start_ns + length_ns * piece // MOST_SPANS
        stop = recording.block_at(until_ns) + 1
        while stalls and stalls[0] <= until_ns:
            found = _around(recording, stalls.pop(0), done)
            if found:
                yield found
                done = found.stop
        begin = _back(recording, stop, done, steps)
        if begin < stop:
            done = stop if _has_steps(recording, stop - 1) else _next_step(recording, stop)
            yield range(begin, done)


def _evidence(recording: Recording) -> list[int]:
    return [r.t_ns for r in recording.lasting() if isinstance(r.message, Evidence)]


def _back(recording: Recording, stop: int, floor: int, steps: int) -> int:
    """The block from which on there are about so many steps before block `stop`; not below `floor`."""
    high = low = None
    index = stop
    while index > floor:
        index -= 1
        if _has_steps(recording, index):
            told = recording.summary(index)
            high = max(told.last_step + 1, high or 0)
            low = told.first_step if low is None else min(told.first_step, low)
        if high is not None and low is not None and high - low >= steps:
            break
    return index


def _around(recording: Recording, t_ns: int, floor: int) -> range | None:
    """The blocks from the last step before this moment to the next step after it."""
    at = recording.block_at(t_ns)
    if at < floor:
        return None
    begin = at
    while begin > floor and not _has_steps(recording, begin):
        begin -= 1
    return range(max(floor, begin - BEFORE_STALL), _next_step(recording, at + 1))


def _next_step(recording: Recording, index: int) -> int:
    """Past the first block from this one on that holds steps; a few more, or the end."""
    stop = recording.block_at(recording.end_ns) + 1
    while index < stop and not _has_steps(recording, index):
        index += 1
    return min(index + AFTER_STALL, stop)


def _has_steps(recording: Recording, index: int) -> bool:
    return recording.summary(index).first_step != NO_STEP
