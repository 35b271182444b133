"""Steps from stamps: the arithmetic of a step, done by the publisher for many steps at once.

The training thread leaves stamps, integers of a moment and an event (`step_record.py`), in the order in
which they happened, and closes a step with an `Entry`. Here they become `StepRecord`s.

Gradient accumulation, and steps that a scaler skips, are one step with several micro-steps: each phase is the
sum over them. A backward that waits for all-reduces is divided at its last gradient: what comes before is the
rank's own work, what comes after is exposed communication. Where one backward of a step has no such stamp,
that of the whole step is unknown. Time outside the phases is kept by what begins next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from ddptop.protocol.messages import Flag, Phase
from ddptop.training.gc_pauses import GcPauses
from ddptop.training.step_record import (
    EVENT,
    EVENT_BITS,
    IN_BUFFERS,
    SPOILT,
    UNKNOWN_NS,
    UNSTAMPED,
    BucketCall,
    CollectiveWaits,
    Entry,
    LeftOutSteps,
    StepRecord,
    UnseenStep,
)


class Closed(NamedTuple):
    """What is known of a step besides its stamps, when the training thread closes it."""

    step: int
    flags: int
    cost: int
    loss: Any
    calls: Sequence[BucketCall]
    """Not the list that the next step's are added to, even where this one has none."""
    marks: Any
    cpu_wait: int
    elements: int
    thread: int
    """`get_ident()` of the training thread."""
    first_optimizer: int = -1


class StepTimes:
    """Makes records of what the training thread of one process has stamped, in its order; on one thread."""

    def __init__(self, gc_pauses: GcPauses) -> None:
        self._gc_pauses = gc_pauses
        self._next = -1
        self._events = (
            self._data_begin, self._data_end, self._forward_begin, self._forward_end,
            self._backward_begin, self._last_gradient, self._spoil_stamp,
            self._backward_end, self._waiting_end, self._synchronised_end,
            self._optimizer_begin, self._optimizer_end, self._step_end_at, self._aside_end,
            self._add_wait, self._joined_begin, self._joined_end, self._add_buffers,
        )  # fmt: skip
        """In the order of `step_record.STAMP_DATA` and those that follow."""
        self._step = -1
        """The newest step that is closed."""
        self._reset_steps()

    def _reset_steps(self) -> None:
        self._known = True
        """Whether all stamps of the running step are there."""
        self._phase = Phase.OTHER
        self._begin = self._step_end = self._data_at = self._bypass_begin = -1
        self._stepped = self._after_backward = self._optimizing = False
        self._data_ns = self._data_done = self._data_last = self._data_gap = self._optimizer_gap = 0
        self._ended = 0  # when the last phase ended, later by what was waited since
        self._stamp = UNSTAMPED
        self._forward_began = self._optimizer_began = self._optimizer_inner = 0
        self._waits = CollectiveWaits()
        self._gc_pauses.forget_last()
        self._clear_step()

    def _clear_step(self) -> None:
        self._forward_ns = self._backward_ns = self._optimizer_ns = self._micro_steps = 0
        self._exposed = self._before_forward = self._before_backward = self._before_optimizer = 0
        self._forward_at = self._backward_at = self._optimizer_at = self._backward_ended = -1

    def take_steps(self, queue: deque[Entry | UnseenStep]) -> list[StepRecord | LeftOutSteps]:
        """The steps of these entries, which are removed. Where entries were dropped, the first step after
        them is left out."""
        events = self._events
        records: list[StepRecord | LeftOutSteps] = []
        unseen: list[UnseenStep] = []
        for _ in range(len(queue)):
            entry = queue.popleft()
            # An `UnseenStep` and an `Entry` are told apart by their lengths.
            if len(entry) == 2:
                unseen.append(entry)
                continue
            if unseen:
                records += self._take_unseen(unseen)
                unseen = []
            number, stamps, closed = entry
            if number != self._next >= 0:
                self._reset_steps()
                self._known = False
            self._next = number + 1
            for stamp in stamps:
                events[stamp & EVENT](stamp >> EVENT_BITS)
            if closed is not None:
                # Entries of steps of which only the end was seen have no number of their own.
                self._known &= self._step < 0 or closed[0] == self._step + 1
                record = self._close_step(Closed._make(closed))
                if self._known:
                    records.append(record)
                self._known = True
        if unseen:
            records += self._take_unseen(unseen)
        return records

    def _take_unseen(self, unseen: list[UnseenStep]) -> list[LeftOutSteps]:
        """Steps of which only the ends were seen."""
        steps, ends = zip(*unseen, strict=True)
        if not (self._known and steps[0] == self._step + 1):  # the one before the first is not there
            self._begin, steps, ends = ends[0], steps[1:], ends[1:]
        taken = []
        while steps:
            # Where entries were dropped, steps are missing in between.
            n = len(steps) if steps[-1] - steps[0] == len(steps) - 1 else _length_of_run(steps)
            taken.append(LeftOutSteps(steps[0], self._begin, ends[:n]))
            if n == len(steps):
                break
            self._begin, steps, ends = ends[n], steps[n + 1 :], ends[n + 1 :]
        ended_ns = unseen[-1][1]
        self._begin = self._step_end = self._ended = ended_ns
        self._step, self._known = unseen[-1][0], True
        self._stepped = self._after_backward = False
        self._data_ns = self._data_done = self._data_gap = 0
        self._waits.forget_waits()
        self._gc_pauses.forget_last()
        self._clear_step()
        return taken

    def _data_begin(self, at_ns: int) -> None:
        self._phase = Phase.DATA
        self._optimizing = False  # an optimizer step that raised ends here at the latest
        self._data_at = at_ns
        if self._begin < 0:
            self._waits.forget_waits()  # of the time before the first step
        elif self._after_backward:
            self._after_backward = False
            self._data_gap = at_ns - self._ended

    def _data_end(self, at_ns: int) -> None:
        self._ended = at_ns
        self._data_last = at_ns - self._data_at
        self._data_ns += self._data_last
        self._phase = Phase.OTHER

    def _forward_begin(self, at_ns: int) -> None:
        if self._begin < 0 and not self._stepped:
            self._open_first(at_ns)
        self._phase = Phase.FORWARD
        self._forward_began = at_ns
        if self._forward_at < 0:
            self._forward_at = at_ns
        if not self._optimizing:
            self._before_forward += at_ns - self._ended
            self._before_optimizer += self._data_gap  # of a micro-step before this one
        self._data_gap = 0

    def _open_first(self, at_ns: int) -> None:
        """The first step begins with the fetch of its batch, where there was one."""
        if self._data_at < 0:
            self._data_at = self._ended = at_ns
            self._waits.forget_waits()
        self._begin = self._data_at
        self._data_ns = self._data_last
        self._before_backward = self._before_optimizer = self._exposed = 0

    def _forward_end(self, at_ns: int) -> None:
        self._forward_ns += at_ns - self._forward_began
        self._ended = at_ns
        self._after_backward = False
        self._phase = Phase.OTHER

    def _backward_begin(self, at_ns: int) -> None:
        if self._begin < 0 and self._bypass_begin < 0:
            self._bypass_begin = at_ns if self._data_at < 0 else self._data_at
        self._stamp = UNSTAMPED
        self._phase = Phase.BACKWARD
        self._backward_at = at_ns
        if not self._optimizing:
            self._before_backward += at_ns - self._ended

    def _last_gradient(self, at_ns: int) -> None:
        if self._stamp != SPOILT:
            self._stamp = at_ns

    def _spoil_stamp(self, _at_ns: int) -> None:
        self._stamp = SPOILT

    def _backward_end(self, at_ns: int) -> None:
        """A backward has ended that waited for no all-reduce."""
        self._backward_ns += at_ns - self._backward_at
        self._backward_ended = self._ended = at_ns
        self._after_backward = True
        self._micro_steps += 1
        self._phase = Phase.OTHER

    def _waiting_end(self, at_ns: int) -> None:
        """A backward has ended that may have waited for all-reduces of another model."""
        self._backward_end(at_ns)
        self._exposed += at_ns - self._stamp if self._stamp > 0 else UNKNOWN_NS

    def _synchronised_end(self, at_ns: int) -> None:
        self._waiting_end(at_ns)
        if not self._stepped:
            self._date_end(at_ns)

    def _optimizer_begin(self, at_ns: int) -> None:
        if self._begin < 0 and self._bypass_begin < 0:
            self._bypass_begin = at_ns if self._data_at < 0 else self._data_at
        self._optimizing = True
        self._optimizer_inner = self._forward_ns + self._backward_ns
        self._phase = Phase.OPTIMIZER
        self._optimizer_began = at_ns
        self._optimizer_gap = at_ns - self._ended + self._data_gap if self._ended else 0
        if self._optimizer_at < 0:
            self._optimizer_at = at_ns

    def _optimizer_end(self, at_ns: int) -> None:
        self._optimizing = False
        # A closure (LBFGS) runs forward and backward inside the optimizer: they keep their own names.
        inner = self._forward_ns + self._backward_ns - self._optimizer_inner
        self._optimizer_ns += at_ns - self._optimizer_began - inner
        self._before_optimizer += self._optimizer_gap
        self._data_gap = 0
        self._ended = at_ns
        self._after_backward = False
        self._phase = Phase.OTHER
        self._step_end_at(at_ns)

    def _step_end_at(self, at_ns: int) -> None:
        """The step ends here, unless another optimizer steps."""
        self._stepped = True
        self._date_end(at_ns)

    def _date_end(self, at_ns: int) -> None:
        self._step_end, self._data_done = at_ns, self._data_ns
        self._waits.step_ends()

    def _aside_end(self, at_ns: int) -> None:
        """An optimizer has stepped while the recorder stood aside."""
        self._stepped, self._step_end = True, at_ns

    def _add_wait(self, ns: int) -> None:
        """Add that the thread has waited so long in a collective of the script's own."""
        phase = self._phase
        if phase is Phase.OTHER:
            if self._optimizing:  # between two phases of its closure
                phase = Phase.OPTIMIZER
            elif self._ended:
                self._ended += ns
        elif phase is Phase.BACKWARD and self._stamp > 0:
            return  # a part of the exposed communication
        self._waits.add_wait(phase, ns)

    def _add_buffers(self, ns: int) -> None:
        """Add that the thread has waited so long in DDP's broadcast of buffers."""
        self._add_wait(ns)
        self._waits.add_wait(IN_BUFFERS, ns)

    def _joined_begin(self, at_ns: int) -> None:
        if self._begin < 0:
            self._begin = at_ns

    def _joined_end(self, at_ns: int) -> None:
        self._step_end = self._ended = at_ns
        self._exposed = UNKNOWN_NS

    def _close_step(self, closed: Closed) -> StepRecord:
        self._step = closed.step
        if self._begin < 0:  # a first step without any DDP forward
            self._begin = self._bypass_begin
        if self._step_end <= self._begin:  # no optimizer has stepped, and backward was not all-reduced
            self._date_end(self._backward_ended)
        waits = self._waits.take_waits()
        if self._forward_at < 0 and not self._exposed and not waits:  # past DDP: no rank waits for another
            self._exposed = UNKNOWN_NS
        if closed.flags & Flag.WAITS_UNSEEN:
            self._exposed = UNKNOWN_NS
        paused = self._gc_pauses.take_paused(self._step_end, closed.thread)
        record = StepRecord(
            closed.step, self._begin, self._step_end,
            self._data_done, self._forward_ns, self._backward_ns, self._optimizer_ns,
            self._forward_at, self._backward_at, self._optimizer_at, self._backward_ended,
            self._micro_steps, closed.flags, max(0, closed.cost), closed.loss, closed.calls, closed.marks,
            self._exposed, self._before_forward, self._before_backward, self._before_optimizer,
            waits, closed.cpu_wait, paused, closed.elements, closed.first_optimizer,
        )  # fmt: skip
        self._begin = self._step_end
        # A batch that was fetched after the end belongs to the next step.
        self._data_ns -= self._data_done
        self._data_done = self._data_gap = 0
        self._stepped = False
        self._clear_step()
        if self._phase is Phase.FORWARD:  # without DDP: the backward that closes a step comes after it
            self._forward_at = self._forward_began
        if self._optimizing:  # closed in the closure of the next step's optimizer
            self._optimizer_inner, self._optimizer_at = 0, self._optimizer_began
        if closed.flags & Flag.SHADOW:
            self._gc_pauses.forget_last()
        return record


def _length_of_run(steps: Sequence[int]) -> int:
    """How many of these numbers follow each other from the first one on."""
    return next((n for n, step in enumerate(steps) if step != steps[0] + n), len(steps))
