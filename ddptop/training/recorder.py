"""One flat record per optimizer step, written by the training thread.

A step runs from the end of the last optimizer step before it to the end of its own last optimizer step,
so that its data, forward, backward and optimizer times are in it in causal order. Whether an optimizer step
was the last one is known only when the next DDP forward begins: there the record is closed, dated back.
Where no torch optimizer ever steps, a synchronised backward ends the step.

All times are CLOCK_MONOTONIC in nanoseconds. Everything here runs on the training thread, except that
bucket all-reduces may be noted by an autograd thread and their ends by a gloo thread (list operations
that the interpreter makes atomic); the publisher thread only pops finished records and reads counters.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, MutableSequence
from typing import Any

from ddptop.protocol.messages import Flag, Phase
from ddptop.training import step_record
from ddptop.training.cpu_wait import CpuWait
from ddptop.training.gc_pauses import GcPauses
from ddptop.training.shadow import ShadowBlocks
from ddptop.training.step_record import MAX_CALLS, BackwardSteps, BucketCall, Elements, Losses, Waits, clocked

now = time.monotonic_ns
cpu_now = time.thread_time_ns


class Recorder:
    """The steps of this process. Methods named `*_begins` and `*_ends` are called in pairs by the phases."""

    def __init__(self, *, optimizer_exists: Callable[[], bool] = lambda: True) -> None:
        """`optimizer_exists`: whether any torch optimizer has been built; called only until one steps."""
        self.records: deque[tuple[Any, ...]] = deque(maxlen=step_record.QUEUE_STEPS)
        """Fields of StepRecord, in its order."""
        self.step = 0
        self.counter: MutableSequence[int] | memoryview = [0]
        """Its first element is `step`, where the collector can read it after this process is gone."""
        self.phase = Phase.OTHER
        self.detail_every = 1
        """Bucket detail where step % detail_every == 0; a power of two, written by the publisher."""
        self.detail = self.wants_loss = True
        self.cost_clock: Callable[[], int] = cpu_now
        """CPU time of the calling thread in ns; in steps without measurement `int`, the cheapest function
        that always gives 0. To be read twice from one variable: the next step may have another."""
        self.loss_every = 1
        """The loss is read where step % loss_every == 0; likewise."""
        self.calls: list[BucketCall] = []
        self.passes = 0
        """Backward passes and steps so far: a new value means that the reducer starts at its first bucket."""
        self.on_detail: list[Callable[[bool], None]] = []
        """Called when bucket detail is switched on or off for the coming step."""
        self.once: Callable[[], None] | None = None  # to do once between two steps; set by the publisher
        self.check: Callable[[int], None] | None = None
        """Called with the number of a synchronised step that has ended, before the next one begins, where
        step % check_every == 0. It must not raise."""
        self.check_every = 16  # a power of two
        self.marks: Any = None
        """On a device: records an event at every border of a phase (`ddptop.training.device.PhaseMarks`)."""
        self.several_models = False
        """Whether there is more than one DDP model: then any backward may wait for all-reduces."""
        self.stamp_due = False
        """Whether `last_gradient` is to be called at the end of the gradients that are being computed."""
        self.asides = 0
        """Batches fetched and DDP forwards without gradients since the last DDP forward with them."""
        self.handover_ns: deque[int] = deque(maxlen=256)
        """How long after their ready timestamps the last buckets were given to the process group, in ns."""
        self._backward_steps = BackwardSteps(optimizer_exists)
        self.losses = Losses()
        self._waits = Waits()
        self.cpu_wait = CpuWait()
        self.gc_pauses = GcPauses()
        self.elements = Elements()
        self._begin_first()

    def _begin_first(self) -> None:
        self.aside = False  # in a shadow block: phases call only `forward_begins` and `aside_step_ends`
        self.shadow = ShadowBlocks.from_environment()
        self._begin = self._step_end = self._data_at = -1
        self._stepped = self._synchronised = self.synchronises = self._after_backward = False
        self._data = self._data_done = self._data_last = self._data_gap = self._optimizer_gap = 0
        self._ended = 0  # when the last phase ended, later by what was waited since
        self.stamp_due = self._stepped_in_backward = False
        self._stamp = step_record.UNSTAMPED
        for of_step in (self._waits, self.cpu_wait, self.gc_pauses, self.elements):
            of_step.forget()
        self._optimizer_running: int | None = None
        self._backward_depth = self._optimizer_depth = 0
        self._forward_began = self._optimizer_began = self._optimizer_inner = 0
        self.cost_clock = cpu_now
        self._clear()

    def _clear(self) -> None:
        self._forward = self._backward = self._optimizer = self._cost = self._micro_steps = 0
        self._exposed = self._before_forward = self._before_backward = self._before_optimizer = 0
        self._forward_at = self._backward_at = self._optimizer_at = self._backward_end = -1

    def data_begins(self) -> None:
        """The training thread asks its loader for a batch."""
        self.phase = Phase.DATA
        self.asides += 1
        self._optimizer_running = None  # an optimizer step that raised ends here at the latest
        self._data_at = at = now()
        if self._begin < 0:
            self._waits.forget()  # of the time before the first step
        elif self._after_backward:
            self._after_backward = False
            self._data_gap = at - self._ended

    def data_ends(self) -> None:
        """The batch is there, or the loader has ended."""
        cpu = self.cost_clock
        began = cpu()
        self._ended = at = now()
        self._data_last = at - self._data_at
        self._data += self._data_last
        self.phase = Phase.OTHER
        self._cost += cpu() - began

    def forward_begins(self, synchronises: bool) -> None:
        """A DDP forward that records gradients; `synchronises`: its backward will all-reduce."""
        if self._stepped or (self._synchronised and self._backward_steps.ended()):
            self._close(0, check=True)
        self.asides = 0
        if self.aside:
            return
        cpu = self.cost_clock
        spent = cpu()
        if self._begin < 0:
            self._open_first(now())
        self.synchronises = synchronises
        self.phase = Phase.FORWARD
        if self.marks is not None:
            self.marks(step_record.FORWARD)
        self._cost += cpu() - spent
        self._forward_began = began = now()
        if self._forward_at < 0:
            self._forward_at = began
        if self._optimizer_running is None:
            self._before_forward += began - self._ended
            self._before_optimizer += self._data_gap  # of a micro-step before this one
        self._data_gap = 0

    def forward_ends(self) -> None:
        """The forward has returned or raised."""
        at = now()
        cpu = self.cost_clock
        began = cpu()
        if self.marks is not None:
            self.marks(step_record.FORWARD_END)
        self._forward += at - self._forward_began
        self._ended = at
        self._after_backward = False
        self.phase = Phase.OTHER
        self._cost += cpu() - began

    def backward_begins(self, loss: Any) -> None:
        """`backward()` is called; nested calls (checkpointing) belong to the outermost."""
        self._backward_depth += 1
        if self._backward_depth > 1:
            self.stamp_due = False  # all-reduces may be waited for at the end of either
            return
        self.passes += 1
        self.stamp_due, self._stamp = True, step_record.UNSTAMPED
        if loss is not None:
            self.losses.add(loss)
        self.phase = Phase.BACKWARD
        if self.marks is not None:
            self.marks(step_record.BACKWARD)
        self._backward_at = at = now()
        if self._optimizer_running is None:
            self._before_backward += at - self._ended

    def last_gradient(self) -> None:
        """The autograd engine has computed all gradients of a backward, and waits for no all-reduce yet."""
        if self._stamp != step_record.SPOILT:
            if self.marks is not None and (self.synchronises or self.several_models):
                self.marks(step_record.LAST_GRADIENT)
            self._stamp = now()
            self.cpu_wait.last_gradient()

    def spoil_stamp(self) -> None:
        """Leave it unknown where in this backward the last gradient is."""
        self._stamp = step_record.SPOILT

    def backward_ends(self) -> None:
        """`backward()` has returned or raised."""
        self._backward_depth -= 1
        if self._backward_depth > 0:
            self.stamp_due = self._backward_depth == 1
            return
        at = now()
        cpu = self.cost_clock
        began = cpu()
        if self.marks is not None:
            self.marks(step_record.BACKWARD_END)
        self._backward += at - self._backward_at
        self._backward_end = self._ended = at
        self._after_backward = True
        if self.synchronises or self.several_models:
            known = self._stamp > 0 and not self.stamp_due
            self._exposed += at - self._stamp if known else step_record.UNKNOWN_NS
            self.cpu_wait.backward_ends()
        self.stamp_due = False
        self._micro_steps += 1
        self.phase = Phase.OTHER
        if self.synchronises:
            self._synchronised = True
            if not self._stepped:
                self._step_end, self._data_done = at, self._data
                self._waits.step_ends()
                self.gc_pauses.step_ends()
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
            self.marks(step_record.OPTIMIZER)
        self._cost += cpu() - spent
        self._optimizer_began = began = now()
        self._optimizer_gap = began - self._ended + self._data_gap if self._ended else 0
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
            self.marks(step_record.OPTIMIZER_END)
        self._optimizer_running = None
        # A closure (LBFGS) runs forward and backward inside the optimizer: they keep their own names.
        inner = self._forward + self._backward - self._optimizer_inner
        self._optimizer += at - self._optimizer_began - inner
        self._before_optimizer += self._optimizer_gap
        self._data_gap = 0
        self._ended = at
        self._after_backward = False
        self.phase = Phase.OTHER
        self._step_ends(at)
        self._cost += cpu() - began

    def aside_step_ends(self) -> None:
        """`step()` of an optimizer has returned in a step in which the recorder stands aside."""
        if self.marks is not None:
            self.marks(step_record.OPTIMIZER_END)
        self._stepped, self._step_end = True, now()

    def note(self, key: Hashable, ready: Any, launched: int = 0) -> BucketCall | None:
        """A bucket was ready for its all-reduce, launched by `launched`, if known; None: the step is full."""
        if len(self.calls) >= MAX_CALLS:
            return None
        if launched and type(ready) is int:  # a device's timer gives no clock reading
            self.handover_ns.append(launched - ready)
        call: BucketCall = [key, ready, 0]
        self.calls.append(call)
        return call

    def wait_begins(self) -> int:
        """A wait in a collective of the script's own begins; when."""
        if self.marks is not None:
            self.marks(step_record.WAIT)
        return now()

    def wait_ends(self, began: int) -> None:
        """It has ended, on the training thread or, in backward, on the engine's."""
        ns = now() - began
        if self.marks is not None:
            self.marks(step_record.WAIT_END)
        phase = self.phase
        if phase is Phase.OTHER:
            if self._optimizer_running is not None:  # between two phases of its closure
                phase = Phase.OPTIMIZER
            elif self._ended:
                self._ended += ns
        elif phase is Phase.BACKWARD and self._stamp > 0:
            return  # a part of the exposed communication
        self._waits.add(phase, ns)

    def add_cost(self, ns: int) -> None:
        """CPU time, by `cost_clock`, that our own code took on a thread that training waits for."""
        self._cost += ns

    def shadow_step_ends(self, began: int) -> None:
        """A rank that has run out of inputs has shadowed one step of the others under `join()`."""
        if self._stepped:
            self._close(0)
        if self._begin < 0:
            self._begin = began
        self._step_end = self._ended = now()
        self._exposed = step_record.UNKNOWN_NS
        self._close(Flag.JOINED)

    def finish(self) -> None:
        """Close the last step: no further forward will."""
        if self._stepped or (self._synchronised and self._backward_steps.ended()):
            self._close(0)

    def forked(self) -> None:
        """In a forked child: if it trains, its steps begin with 0. Earlier records are its parent's."""
        self.drop()
        self.step, self.counter = 0, [0]
        self._begin_first()

    def drop(self) -> None:
        """Drop what is recorded: in a forked child, which is not the rank, and at exit."""
        self.records, self.calls = deque(maxlen=step_record.QUEUE_STEPS), []
        self.losses.take()

    def _open_first(self, at: int) -> None:
        """The first step begins with the fetch of its batch, where there was one."""
        if self._data_at < 0:
            self._data_at = self._ended = at
            self._waits.forget()
        self._begin = self._data_at
        self._data = self._data_last
        self._before_backward = self._before_optimizer = self._exposed = 0

    def _step_ends(self, at: int) -> None:
        self._stepped = self._backward_steps.optimizer_seen = True
        self._step_end, self._data_done = at, self._data
        self._waits.step_ends()
        self.cpu_wait.step_ends()
        self.gc_pauses.step_ends()

    def _close(self, flags: int, *, check: bool = False) -> None:
        """`check`: training goes on, so that the replicas should be equal now."""
        check = check and self._synchronised and self.step % self.check_every == 0
        # Closing a step is part of the one that begins, whose clock is used from here on.
        self.cost_clock = cpu = cpu_now if clocked(self.step + 1) else int
        began = cpu()
        if self.detail:
            flags |= Flag.DETAIL
        loss, of_loss = self.losses.take()
        flags |= of_loss | self.shadow.flag
        self.records.append(
            (  # in the order of StepRecord, which the publisher makes of it: naming fields costs 2 us here
                self.step, self._begin, self._step_end,
                self._data_done, self._forward, self._backward, self._optimizer,
                self._forward_at, self._backward_at, self._optimizer_at, self._backward_end,
                self._micro_steps, flags, self._cost, loss, self.calls,
                self.marks.take() if self.marks is not None else (),
                self._exposed, self._before_forward, self._before_backward, self._before_optimizer,
                self._waits.take(), self.cpu_wait.take(), self.gc_pauses.take(), self.elements.take(),
            )
        )  # fmt: skip
        self.calls = []
        self._begin = self._step_end
        self._data -= self._data_done
        self._data_done = self._data_gap = 0
        self._stepped = self._synchronised = False
        self._clear()
        if self._optimizer_running is not None:  # closed in the closure of the next step's optimizer
            self._optimizer_inner, self._optimizer_at = 0, self._optimizer_began
        self.step += 1
        self.counter[0] = self.step
        self.passes += 1
        if self.step == self.shadow.next:
            seen, running = self._backward_steps.optimizer_seen, self._optimizer_running is not None
            self.aside = self.shadow.begins(self.step, seen and not running and not self._backward_depth)
        # After a NaN every loss is read: when it began and whether it ends matters more than what that costs.
        self.wants_loss = self.step % self.loss_every == 0 or (type(loss) is float and loss - loss != 0.0)
        detail = self.step % self.detail_every == 0 and not self.shadow.flag
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
