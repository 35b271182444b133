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
    # The first step has no step before it on the device: it begins with its own first mark.
    step = _StepOnDevice(before if before is not None else marks[0][1])
    for mark, moment in marks:
        step.add_mark(mark, moment)
    return step.phases(newest=marks[-1][1])


class _StepOnDevice:
    """Sums up the marks of one step, in their order."""

    def __init__(self, begin: int) -> None:
        self._begin = self._ended = begin
        """When the step began, and when the last outermost phase ended, later by what was waited since."""
        self._phase_ns: dict[int, int] = {Mark.FORWARD: 0, Mark.BACKWARD: 0, Mark.OPTIMIZER: 0}
        self._before_ns = dict.fromkeys(self._phase_ns, 0)
        """Outside the phases, before each of them."""
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        """First and last moment of each border."""
        self._opened: list[list[int]] = []
        """[mark, moment, time of the phases inside it]"""
        self._last_gradient = self._exposed_ns = -1
        self._wait: tuple[int, int] | None = None
        """The mark and the moment of the wait that has begun."""
        self._waits: list[Wait] = []

    def add_mark(self, mark: int, moment: int) -> None:
        """Add the next mark."""
        if mark == Mark.LAST_GRADIENT:
            self._last_gradient = moment
        elif mark in (Mark.WAIT, Mark.BUFFERS):
            self._wait = mark, moment
        elif mark == Mark.WAIT_END:
            self._end_wait(moment)
        elif mark % 2 == 0:
            self._begin_phase(mark, moment)
        elif self._opened and self._opened[-1][0] == mark - 1:
            self._end_phase(mark, moment)

    def _end_wait(self, moment: int) -> None:
        wait, self._wait = self._wait, None
        # After the last gradient it is exposed communication.
        if wait is None or self._last_gradient >= 0:
            return
        waited_ns = max(0, moment - wait[1])
        self._waits.append([_PHASES[self._opened[-1][0]] if self._opened else Phase.OTHER, waited_ns])
        if wait[0] == Mark.BUFFERS:
            self._waits.append([IN_BUFFERS, waited_ns])
        if not self._opened:
            self._ended += waited_ns

    def _begin_phase(self, mark: int, moment: int) -> None:
        self._last_gradient = -1  # of a backward that raised
        if not self._opened:
            self._before_ns[mark] += max(0, moment - self._ended)
        self._opened.append([mark, moment, 0])
        self._first.setdefault(mark, moment)
        self._last[mark] = moment

    def _end_phase(self, mark: int, moment: int) -> None:
        begin_mark, began, inner_ns = self._opened.pop()
        took_ns = max(0, moment - began)
        self._phase_ns[begin_mark] += max(0, took_ns - inner_ns)
        self._last[mark] = moment
        if begin_mark == Mark.BACKWARD and self._last_gradient >= 0:
            self._exposed_ns = max(0, self._exposed_ns) + max(0, moment - self._last_gradient)
            self._last_gradient = -1
        if self._opened:
            self._opened[-1][2] += took_ns
        else:
            self._ended = moment

    def phases(self, *, newest: int) -> DevicePhases:
        """The phases of the step, which ends at its `newest` mark where no phase has ended."""
        ends = [moment for mark, moment in self._last.items() if mark % 2]
        return DevicePhases(
            begin=self._begin,
            end=self._last.get(Mark.OPTIMIZER_END, max(ends, default=newest)),
            forward=self._phase_ns[Mark.FORWARD],
            backward=self._phase_ns[Mark.BACKWARD],
            optimizer=self._phase_ns[Mark.OPTIMIZER],
            forward_at=self._first.get(Mark.FORWARD, -1),
            backward_at=self._last.get(Mark.BACKWARD, -1),
            optimizer_at=self._first.get(Mark.OPTIMIZER, -1),
            backward_end=self._last.get(Mark.BACKWARD_END, -1),
            exposed=self._exposed_ns,
            before_forward=self._before_ns[Mark.FORWARD],
            before_backward=self._before_ns[Mark.BACKWARD],
            before_optimizer=self._before_ns[Mark.OPTIMIZER],
            waits=tuple(self._waits),
        )
