"""The phases of a step on the device's time line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from ddptop.protocol.messages import Phase
from ddptop.training import step_record
from ddptop.training.device.events import CudaEvent, Device, EventPool, NoEvent
from ddptop.training.step_record import IN_BUFFERS, Wait


class Mark(IntEnum):
    """Where in a step an event was recorded. Of the first six, ends of phases are odd."""

    FORWARD = step_record.FORWARD
    FORWARD_END = step_record.FORWARD_END
    BACKWARD = step_record.BACKWARD
    BACKWARD_END = step_record.BACKWARD_END
    OPTIMIZER = step_record.OPTIMIZER
    OPTIMIZER_END = step_record.OPTIMIZER_END
    LAST_GRADIENT = step_record.LAST_GRADIENT
    WAIT = step_record.WAIT
    WAIT_END = step_record.WAIT_END
    BUFFERS = step_record.BUFFERS

    __hash__ = int.__hash__  # the recorder gives the numbers


_PHASES: dict[int, Phase] = {
    Mark.FORWARD: Phase.FORWARD,
    Mark.BACKWARD: Phase.BACKWARD,
    Mark.OPTIMIZER: Phase.OPTIMIZER,
}

MAX_MARKS = 512
"""Marks of one step: 128 micro-steps. The memory of a loop of backwards without a step must be bounded."""


class PhaseMarks:
    """Records an event at every border of a phase, on the training thread."""

    def __init__(self, device: Device, pool: EventPool) -> None:
        self._device = device
        self._pool = pool
        self._marks: list[tuple[int, CudaEvent]] = []
        self._refused = False
        self.wanted = True
        """Whether this step is marked; else only the ends of its backwards are, to see whether the device has
        done them."""
        self._stream: Any = None
        """The stream of the last mark."""
        self.captured = 0
        """Borders that were captured into a graph instead: nothing may be recorded there."""

    def __call__(self, mark: int) -> None:
        """Record `mark` now. Never raises: an error of the device's is raised by the user's next call."""
        if not self.wanted and mark != Mark.BACKWARD_END:
            return
        try:
            if self._device.capturing():
                self.captured += 1
            elif len(self._marks) < MAX_MARKS and not self._refused:
                self._stream = self._device.stream()
                self._marks.append((mark, self._pool.mark_event(self._stream)))
        except NoEvent:
            self._refused = True
        except Exception as error:  # noqa: BLE001 - the training boundary
            self._pool.note_error(error)

    def take(self, *, in_forward: bool = False) -> list[tuple[int, CudaEvent]]:
        """The marks since the last call; none where one of them could not be recorded.

        `in_forward`: a forward of the next step has begun; its marks are left for that."""
        border = self._begin_of_forward() if in_forward else len(self._marks)
        marks, self._marks = self._marks[:border], self._marks[border:]
        refused, self._refused = self._refused, False
        # With one mark missing the others would be paired wrongly.
        return [] if refused else marks

    def discard_forward(self) -> None:
        """Take the last begin of a forward back, with all marks since: none has followed."""
        del self._marks[self._begin_of_forward() :]

    def _begin_of_forward(self) -> int:
        marks = self._marks
        return next((i for i in reversed(range(len(marks))) if marks[i][0] == Mark.FORWARD), len(marks))

    def use_clock(self, cost_clock: Callable[[], int]) -> None:
        """Count the cost of the step that begins by this clock, the recorder's."""
        self._pool.cost_clock = cost_clock

    def take_blocked(self) -> int:
        """CPU ns in which our calls of CUDA have waited for the device since the last call."""
        blocked_ns, self._pool.blocked_ns = self._pool.blocked_ns, 0
        return blocked_ns

    def device_is_idle(self) -> bool:
        """Whether the device has done all that it was given on the stream of the last mark. Raises what CUDA
        raises. A stream that is being captured must not be asked: it is taken for idle."""
        if self._stream is None:
            return True
        with self._device.on(self._stream):
            return self._device.capturing() or bool(self._stream.query())

    def pending_marks(self) -> list[tuple[int, CudaEvent]]:
        """A copy of the marks so far, for another thread."""
        return list(self._marks)


class DevicePhases(NamedTuple):
    """A step on the device. Nanoseconds; moments on the host's clock, -1: did not happen."""

    begin: int
    end: int
    forward: int
    backward: int
    optimizer: int
    forward_at: int
    backward_at: int
    """When the last backward began, the one that synchronises."""
    optimizer_at: int
    backward_end: int
    exposed: int
    """From the last gradients to the ends of their backwards; -1: not one was marked."""
    before_forward: int
    """Outside the phases, before a forward, fetches of data included. This and the next two without waits."""
    before_backward: int
    before_optimizer: int
    waits: tuple[Wait, ...]


def device_phases(marks: Sequence[tuple[int, int]], before: int | None) -> DevicePhases | None:
    """Phases from (mark, moment) pairs in order; `before` is when the step before ended on the device.

    Optimizer steps nested in one another (a closure) count with what is theirs alone: a forward or backward
    inside an optimizer step is taken out of it. None where nothing was marked.
    """
    if not marks:
        return None
    spans: dict[int, int] = {Mark.FORWARD: 0, Mark.BACKWARD: 0, Mark.OPTIMIZER: 0}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    opened: list[list[int]] = []
    """[mark, moment, time of the phases inside it]"""
    outside = dict.fromkeys(spans, 0)
    # The first step has no step before it on the device: it begins with its own first mark.
    ended = before if before is not None else marks[0][1]
    stamp = exposed = -1
    wait_at: int | None = None
    of_buffers = False
    waits: list[Wait] = []
    for mark, moment in marks:
        if mark == Mark.LAST_GRADIENT:
            stamp = moment
        elif mark in (Mark.WAIT, Mark.BUFFERS):
            wait_at, of_buffers = moment, mark == Mark.BUFFERS
        elif mark == Mark.WAIT_END:
            if wait_at is not None and stamp < 0:  # after the last gradient it is exposed communication
                waits.append([_PHASES[opened[-1][0]] if opened else Phase.OTHER, max(0, moment - wait_at)])
                if of_buffers:
                    waits.append([IN_BUFFERS, max(0, moment - wait_at)])
                if not opened:
                    ended += max(0, moment - wait_at)
            wait_at = None
        elif mark % 2 == 0:
            stamp = -1  # of a backward that raised
            if not opened:
                outside[mark] += max(0, moment - ended)
            opened.append([mark, moment, 0])
            first.setdefault(mark, moment)
            last[mark] = moment
        elif opened and opened[-1][0] == mark - 1:
            begun, since, inside = opened.pop()
            took = max(0, moment - since)
            spans[begun] += max(0, took - inside)
            last[mark] = moment
            if begun == Mark.BACKWARD and stamp >= 0:
                exposed = max(0, exposed) + max(0, moment - stamp)
                stamp = -1
            if opened:
                opened[-1][2] += took
            else:
                ended = moment
    begin = before if before is not None else marks[0][1]
    ends = [moment for mark, moment in last.items() if mark % 2]
    return DevicePhases(
        begin=begin,
        end=last.get(Mark.OPTIMIZER_END, max(ends, default=marks[-1][1])),
        forward=spans[Mark.FORWARD],
        backward=spans[Mark.BACKWARD],
        optimizer=spans[Mark.OPTIMIZER],
        forward_at=first.get(Mark.FORWARD, -1),
        backward_at=last.get(Mark.BACKWARD, -1),
        optimizer_at=first.get(Mark.OPTIMIZER, -1),
        backward_end=last.get(Mark.BACKWARD_END, -1),
        exposed=exposed,
        before_forward=outside[Mark.FORWARD],
        before_backward=outside[Mark.BACKWARD],
        before_optimizer=outside[Mark.OPTIMIZER],
        waits=tuple(waits),
    )
