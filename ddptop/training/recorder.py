"""One flat record per optimizer step, written by the training thread.

A step runs from the end of the last optimizer step before it to the end of its own last optimizer step,
so that its data, forward, backward and optimizer times are in it in causal order. Whether an optimizer step
was the last one is known only when the next DDP forward begins: there the record is closed, dated back.
Accumulation, several optimizers and steps that a gradient scaler skips are counted as one expects. Where no
torch optimizer ever steps, a synchronised backward ends the step.

All times are CLOCK_MONOTONIC in nanoseconds. Everything here runs on the training thread, except that
bucket all-reduces may be noted by an autograd thread and their ends by a gloo thread (list operations
that the interpreter makes atomic); the publisher thread only pops finished records and reads counters.

The recorder's own cost is CPU time of the thread that runs it (CLOCK_THREAD_CPUTIME_ID): time in which the
operating system ran another process, or a thread waited for the GIL, is never counted. Reading that clock is
a system call of 0.4 us (measured; CLOCK_MONOTONIC takes 0.07 us), and a plain step would read it 14 times. So
it is read in three steps of every eight only (`clocked`), and the cost of a step is the median over those. A
measured interval includes one of the two readings around it; over all steps that is more than the readings
cost, so that the figure is 1 to 2 us too high rather than too low.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, MutableSequence
from typing import Any, NamedTuple, TypeAlias

from ddptop.protocol.limits import MAX_CELLS
from ddptop.protocol.messages import Flag, Phase

now = time.monotonic_ns
cpu_now = time.thread_time_ns

CLOCKED = 8
"""Own CPU time is measured in steps 0, 1 and 3 of so many: one with bucket detail wherever detail is taken at
least so often, the one after it, where the recorder is taken out again, and a plain one."""

FORWARD, FORWARD_END, BACKWARD, BACKWARD_END, OPTIMIZER, OPTIMIZER_END = range(6)
"""What `Recorder.marks` is called with."""

QUEUE_STEPS = 8192
"""Finished steps that wait for the publisher: 25 s of 3 ms steps. Then the oldest is dropped, which the
collector counts by the gap in step numbers."""

MAX_CALLS = MAX_CELLS // 3
"""All-reduces kept of one step: the memory of a rank that loops over collectives must be bounded."""

MAX_LOSSES = 128
"""Losses of one step that a device has yet to write: as many as it has marks for micro-steps."""

PATIENCE_STEPS = 64
"""Synchronised backwards without an optimizer step after which each one ends a step, although there is a
torch optimizer."""

BucketCall: TypeAlias = list[Any]
"""One bucket all-reduce: [key, ready_ns, end_ns]. A list, because another thread fills in the end."""


class StepRecord(NamedTuple):
    """A finished step as the training thread leaves it to the publisher. Times in ns; -1 = did not happen."""

    step: int
    begin: int
    end: int
    data: int
    forward: int
    backward: int
    optimizer: int
    forward_at: int
    backward_at: int
    optimizer_at: int
    backward_end: int
    micro_steps: int
    flags: int
    cost: int
    """CPU time of our own code on the training threads; measured where `clocked(step)`."""
    loss: Any
    """float or None; on a device a tuple of values that it has yet to write."""
    calls: list[BucketCall]
    marks: Any = ()
    """On a device: (mark, event) at the borders of the phases."""


def clocked(step: int) -> bool:
    """Whether our own CPU time is measured in this step."""
    return step % CLOCKED in (0, 1, 3)


class Recorder:
    """The steps of this process. Methods named `*_begins` and `*_ends` are called in pairs by the phases."""

    def __init__(self, *, optimizer_exists: Callable[[], bool] = lambda: True) -> None:
        """`optimizer_exists`: whether any torch optimizer has been built; called only until one steps."""
        self.records: deque[tuple[Any, ...]] = deque(maxlen=QUEUE_STEPS)
        """Fields of StepRecord, in its order."""
        self.step = 0
        self.counter: MutableSequence[int] | memoryview = [0]
        """Its first element is `step`, where the collector can read it after this process is gone."""
        self.phase = Phase.OTHER
        self.detail_every = 1
        """Bucket detail where step % detail_every == 0; a power of two, written by the publisher."""
        self.detail = True
        self.cost_clock: Callable[[], int] = cpu_now
        """CPU time of the calling thread in ns; in steps without measurement `int`, the cheapest function
        that always gives 0. To be read twice from one variable: the next step may have another."""
        self.loss_every = 1
        """The loss is read where step % loss_every == 0; likewise."""
        self.wants_loss = True
        self.calls: list[BucketCall] = []
        self.passes = 0
        """Backward passes and steps so far: a new value means that the reducer starts at its first bucket."""
        self.on_detail: list[Callable[[bool], None]] = []
        """Called when bucket detail is switched on or off for the coming step."""
        self.once: Callable[[], None] | None = None
        """Something to do once on the training thread, between two steps; set by the publisher."""
        self.check: Callable[[int], None] | None = None
        """Called with the number of a synchronised step that has ended, before the next one begins, where
        step % check_every == 0. It must not raise."""
        self.check_every = 16
        """A power of two."""
        self.marks: Any = None
        """On a device: records an event at every border of a phase (`ddptop.training.device.PhaseMarks`)."""
        self.asides = 0
        """Batches fetched and DDP forwards without gradients since the last DDP forward with them."""
        self.handover_ns: deque[int] = deque(maxlen=256)
        """How long after their ready timestamps the last buckets were given to the process group, in ns."""
        self._optimizer_exists = optimizer_exists
        self._optimizer_seen = False
        self._unstepped_backwards = 0
        self._backwards_end_steps = False
        self._begin_first()

    def _begin_first(self) -> None:
        self._begin = self._step_end = -1
        self._stepped = self._synchronised = self._synchronises = False
        self._data = self._data_done = self._data_last = 0
        self._data_at = -1
        self._forward_began = 0
        self._backward_depth = 0
        self._stepped_in_backward = False
        self._optimizer_running: int | None = None
        self._optimizer_began = self._optimizer_inner = self._optimizer_depth = 0
        self._logged_loss: float | None = None
        self.cost_clock = cpu_now
        self._clear()

    def _clear(self) -> None:
        self._forward = self._backward = self._optimizer = self._cost = 0
        self._forward_at = self._backward_at = self._optimizer_at = self._backward_end = -1
        self._micro_steps = 0
        self._loss_sum = 0.0
        self._loss_count = 0
        self._loss_later: list[Any] = []

    def data_begins(self) -> None:
        """The training thread asks its loader for a batch."""
        self.phase = Phase.DATA
        self.asides += 1
        self._optimizer_running = None  # an optimizer step that raised ends here at the latest
        self._data_at = now()

    def data_ends(self) -> None:
        """The batch is there, or the loader has ended."""
        cpu = self.cost_clock
        began = cpu()
        self._data_last = now() - self._data_at
        self._data += self._data_last
        self.phase = Phase.OTHER
        self._cost += cpu() - began

    def forward_begins(self, synchronises: bool) -> None:
        """A DDP forward that records gradients; `synchronises`: its backward will all-reduce."""
        if self._stepped or (self._synchronised and self._backward_was_a_step()):
            self._close(0, check=True)
        cpu = self.cost_clock
        spent = cpu()
        self.asides = 0
        if self._begin < 0:
            self._open_first(now())
        self._synchronises = synchronises
        self.phase = Phase.FORWARD
        if self.marks is not None:
            self.marks(FORWARD)
        self._cost += cpu() - spent
        self._forward_began = began = now()
        if self._forward_at < 0:
            self._forward_at = began

    def forward_ends(self) -> None:
        """The forward has returned or raised."""
        at = now()
        cpu = self.cost_clock
        began = cpu()
        if self.marks is not None:
            self.marks(FORWARD_END)
        self._forward += at - self._forward_began
        self.phase = Phase.OTHER
        self._cost += cpu() - began

    def backward_begins(self, loss: Any) -> None:
        """`backward()` is called; nested calls (checkpointing) belong to the outermost."""
        self._backward_depth += 1
        if self._backward_depth > 1:
            return
        self.passes += 1
        if type(loss) is float:
            self._loss_sum += loss
            self._loss_count += 1
        elif loss is not None and len(self._loss_later) < MAX_LOSSES:
            self._loss_later.append(loss)
        self.phase = Phase.BACKWARD
        if self.marks is not None:
            self.marks(BACKWARD)
        self._backward_at = now()

    def backward_ends(self) -> None:
        """`backward()` has returned or raised."""
        self._backward_depth -= 1
        if self._backward_depth > 0:
            return
        at = now()
        cpu = self.cost_clock
        began = cpu()
        if self.marks is not None:
            self.marks(BACKWARD_END)
        self._backward += at - self._backward_at
        self._backward_end = at
        self._micro_steps += 1
        self.phase = Phase.OTHER
        if self._synchronises:
            self._synchronised = True
            if not self._stepped:
                self._step_end, self._data_done = at, self._data
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._step_ends(at)
        self._cost += cpu() - began

    def optimizer_begins(self, optimizer: int) -> None:
        """`step()` of the optimizer with this `id()`; one that runs inside another belongs to the outer."""
        if self._backward_depth:
            return
        # One is running: this is inside it (or its `super().step()`), unless that one raised and training
        # went on without it.
        if self._optimizer_running is not None and self._backward_at < self._optimizer_began:
            self._optimizer_depth += self._optimizer_running == optimizer
            return
        cpu = self.cost_clock
        spent = cpu()
        self._optimizer_depth = 0
        self._optimizer_running = optimizer
        self._optimizer_inner = self._forward + self._backward
        self.phase = Phase.OPTIMIZER
        if self.marks is not None:
            self.marks(OPTIMIZER)
        self._cost += cpu() - spent
        self._optimizer_began = began = now()
        if self._optimizer_at < 0:
            self._optimizer_at = began

    def optimizer_ends(self, optimizer: int) -> None:
        """`step()` has returned."""
        if self._backward_depth:  # optimizer-in-backward: the step ends with the backward
            self._stepped_in_backward = True
            return
        if self._optimizer_running != optimizer:
            return
        if self._optimizer_depth:
            self._optimizer_depth -= 1
            return
        at = now()
        cpu = self.cost_clock
        began = cpu()
        if self.marks is not None:
            self.marks(OPTIMIZER_END)
        self._optimizer_running = None
        # A closure (LBFGS) runs forward and backward inside the optimizer: they keep their own names.
        inner = self._forward + self._backward - self._optimizer_inner
        self._optimizer += at - self._optimizer_began - inner
        self.phase = Phase.OTHER
        self._step_ends(at)
        self._cost += cpu() - began

    def log_loss(self, loss: Any) -> None:
        """The loss of this step as the user logs it; it replaces what backward was given."""
        self._logged_loss = loss

    def note(self, key: Hashable, ready: Any, launched: int = 0) -> BucketCall | None:
        """A bucket was ready for its all-reduce at `ready`, and that was launched by `launched`, if known.

        None when this step holds as many as it may.
        """
        if len(self.calls) >= MAX_CALLS:
            return None
        if launched and type(ready) is int:  # a device's timer gives no clock reading
            self.handover_ns.append(launched - ready)
        call: BucketCall = [key, ready, 0]
        self.calls.append(call)
        return call

    def add_cost(self, ns: int) -> None:
        """CPU time, by `cost_clock`, that our own code took on a thread that training waits for."""
        self._cost += ns

    def shadow_step_ends(self, began: int) -> None:
        """A rank that has run out of inputs has shadowed one step of the others under `join()`."""
        if self._stepped:
            self._close(0)
        if self._begin < 0:
            self._begin = began
        self._step_end = now()
        self._close(Flag.JOINED)

    def finish(self) -> None:
        """Close the last step: no further forward will."""
        if self._stepped or (self._synchronised and self._backward_was_a_step()):
            self._close(0)

    def forked(self) -> None:
        """In a forked child: if it trains, its steps begin with 0. Earlier records are its parent's."""
        self.drop()
        self.step, self.counter = 0, [0]
        self._begin_first()

    def drop(self) -> None:
        """Drop what is recorded: in a forked child, which is not the rank, and at exit."""
        self.records, self.calls = deque(maxlen=QUEUE_STEPS), []
        self._loss_later = []

    def _open_first(self, at: int) -> None:
        """The first step begins with the fetch of its batch, where there was one."""
        self._begin = self._data_at if self._data_at >= 0 else at
        self._data = self._data_last

    def _step_ends(self, at: int) -> None:
        self._stepped = self._optimizer_seen = True
        self._step_end, self._data_done = at, self._data

    def _backward_was_a_step(self) -> bool:
        """Whether the synchronised backward before this forward ended a step by itself."""
        if self._optimizer_seen:
            return False
        self._unstepped_backwards += 1
        count = self._unstepped_backwards
        if count & (count - 1) == 0:  # it walks over all classes: at 1, 2, 4, 8 ... is often enough
            self._backwards_end_steps = count >= PATIENCE_STEPS or not self._optimizer_exists()
        return self._backwards_end_steps

    def _close(self, flags: int, *, check: bool = False) -> None:
        """`check`: training goes on, so that the replicas should be equal now."""
        check = check and self._synchronised and self.step % self.check_every == 0
        # Closing a step is part of the one that begins, whose clock is used from here on.
        self.cost_clock = cpu = cpu_now if clocked(self.step + 1) else int
        began = cpu()
        if self.detail:
            flags |= Flag.DETAIL
        loss: Any = None
        if self._logged_loss is not None:
            loss, self._logged_loss = self._logged_loss, None
            flags |= Flag.LOSS_LOGGED
        elif self._loss_count:
            loss = self._loss_sum / self._loss_count
        elif self._loss_later:
            loss = tuple(self._loss_later)
        self.records.append(
            (  # in the order of StepRecord, which the publisher makes of it: naming fields costs 2 us here
                self.step, self._begin, self._step_end,
                self._data_done, self._forward, self._backward, self._optimizer,
                self._forward_at, self._backward_at, self._optimizer_at, self._backward_end,
                self._micro_steps, flags, self._cost, loss, self.calls,
                self.marks.take() if self.marks is not None else (),
            )
        )  # fmt: skip
        self.calls = []
        self._begin = self._step_end
        self._data -= self._data_done
        self._data_done = 0
        self._stepped = self._synchronised = False
        self._clear()
        if self._optimizer_running is not None:  # closed in the closure of the next step's optimizer
            self._optimizer_inner, self._optimizer_at = 0, self._optimizer_began
        self.step += 1
        self.counter[0] = self.step
        self.passes += 1
        # After a NaN every loss is read: when it began and whether it ends matters more than what that costs.
        self.wants_loss = self.step % self.loss_every == 0 or (type(loss) is float and loss - loss != 0.0)
        detail = self.step % self.detail_every == 0
        if detail != self.detail:
            self.detail = detail
            for switch in self.on_detail:
                switch(detail)
        if self.once is not None:
            once, self.once = self.once, None
            once()
        self._cost += cpu() - began
        if check and self.check is not None:
            self.check(self.step - 1)
