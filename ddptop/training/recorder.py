"""The stamps of each optimizer step, taken on the training thread.

A step runs from the end of the last optimizer step before it to the end of its own last optimizer step,
so that its data, forward, backward and optimizer times are in it in causal order. Whether an optimizer step
was the last one is known only when the next DDP forward begins: there the record is closed, dated back.
Where no torch optimizer ever steps, a synchronised backward ends the step.

Without a DDP model (`without_ddp`) the next backward closes the record, and no call says where a forward
begins: it is what is between the batch and `backward()`, the loss included. A script that fetches no batch
from a DataLoader has it begin at the end of the optimizer step before.

Here are only stamps and what must be known at once: when a step is closed, and what is left out because it
runs inside something else. The arithmetic is the publisher's (`step_times.py`). Gradient accumulation is one
step with several micro-steps, whose phases are added up. A backward that waits for all-reduces is divided at
its last gradient: the rank's own work before it, exposed communication after it. The cost is 30 to 50 us of
this thread in a step without bucket detail, three times that where caches are cold (`README.md` beside this
file; how it is counted: `own_cost.py`).

All times are CLOCK_MONOTONIC in nanoseconds. Everything here runs on the training thread, except that
bucket all-reduces may be noted by an autograd thread and their ends by a gloo thread (list operations
that the interpreter makes atomic); the publisher thread only pops finished records and reads counters.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, MutableSequence
from typing import Any

from torch import is_grad_enabled

from ddptop.protocol.messages import Flag, Phase
from ddptop.training import step_record
from ddptop.training.cpu_wait import CpuWait
from ddptop.training.evaluation_span import EvaluationSpan
from ddptop.training.gc_pauses import GcPauses
from ddptop.training.guard import guard
from ddptop.training.loader_position import LoaderPosition
from ddptop.training.own_cost import RecorderCalls, cpu_now, is_clocked
from ddptop.training.sampling_rates import NEVER_SAMPLED, SamplingRates
from ddptop.training.saves import Saves
from ddptop.training.shadow import BLOCK, ShadowBlocks, is_turn, next_recorded
from ddptop.training.step_record import (
    EVENT,
    EVENT_BITS,
    MAX_CALLS,
    PHASES,
    STAMP_ASIDE_END,
    STAMP_BACKWARD,
    STAMP_BACKWARD_END,
    STAMP_BUFFERS,
    STAMP_DATA,
    STAMP_DATA_END,
    STAMP_FORWARD,
    STAMP_FORWARD_END,
    STAMP_JOINED,
    STAMP_JOINED_END,
    STAMP_LAST_GRADIENT,
    STAMP_OPTIMIZER,
    STAMP_OPTIMIZER_END,
    STAMP_SPOILT,
    STAMP_STEP_END,
    STAMP_SYNCHRONISED_END,
    STAMP_WAIT,
    STAMP_WAITING_END,
    BackwardSteps,
    BucketCall,
    Elements,
    Entry,
    Losses,
    UnseenStep,
)
from ddptop.training.torch_compat.ddp import graph_node_counter
from ddptop.training.unseen_steps import UnseenSteps

now = time.monotonic_ns

count_graph_nodes = graph_node_counter()

StepHook = Callable[[Any, Any, Any], None]
"""Called by torch with an optimizer, and the arguments of its `step()`."""

DETAIL = int(Flag.DETAIL)
FIRST_BATCH = int(Flag.FIRST_BATCH)

MANY_STAMPS = 512
"""Stamps of one step that are kept until its end: more are handed over before. A plain step has ten."""

MOST_OPTIMIZERS = 8
"""Most optimizer steps between two DDP forwards that are usual."""

MANY_ASIDE_ENDS = 64
"""Optimizer steps in one step of a shadow block: the block would never end where the script calls DDP's
forward no more."""

MANY_OPTIMIZERS = 64
"""Optimizers that are told apart: a script may make new ones for ever."""

FEW_PASSES = 8
"""Backwards without a DDP model and without an optimizer that are no training yet: a script may try its model
before it makes either."""

EVALUATING = 63
"""Batches without a training forward that are handed over together, less one. It is a mask: a power of two
less 1."""


class Recorder:
    """The steps of this process. Methods named `*_begins` and `*_ends` are called in pairs by the phases."""

    # The end of an unseen step needs these two: a slot is found faster than one of 50 names in a dictionary.
    __slots__ = ("__dict__", "__weakref__", "_unseen_until", "step")

    def __init__(self, *, optimizer_exists: Callable[[], bool] = lambda: True) -> None:
        """`optimizer_exists`: whether any torch optimizer has been built; called only until one steps."""
        self.records: deque[Entry | UnseenStep] = deque(maxlen=step_record.QUEUE_STEPS)
        self.step = 0
        self.counter: MutableSequence[int] | memoryview = [0]
        """Its first element is `step`, where the collector can read it after this process is gone."""
        self._backward_steps = BackwardSteps(optimizer_exists)
        self.losses = Losses()
        self.cpu_wait = CpuWait()
        self.gc_pauses = GcPauses()
        self.elements = Elements()
        self.loader = LoaderPosition()
        self.evaluation = EvaluationSpan()
        self.saves = Saves()
        self.unseen = UnseenSteps()
        self._set_up_calls()
        self._set_up_sampling()
        self._set_up_models()
        self._set_up_stamps()
        self.on = RecorderCalls(self)
        self.reset_steps()

    def _set_up_calls(self) -> None:
        """What the parts of the recorder have called; the session and its parts set it."""
        self.on_detail: list[Callable[[bool], None]] = []
        """Called when bucket detail is switched on or off for the coming step."""
        self.between_steps: deque[Callable[[], None]] = deque()
        """To be done once, between two steps; `do_between_steps` adds to it."""
        self._unseen_until = 0
        """Unseen steps below this number are only counted at their end: nothing else is to be done there."""
        self.read_loss: Callable[[Any], Any] = lambda loss: loss
        """The loss that `backward()` is given: a float, a value that a device has yet to write, or None."""
        self.after_backward: Callable[[], None] = _do_nothing
        """Called at the end of the outermost backward. It must not raise."""
        self.forget_gradients: Callable[[], None] = _do_nothing
        """Called where backwards were not seen, and where they will be again. It must not raise."""
        self.check: Callable[[int], None] | None = None
        """Called with the number of a synchronised step that has ended, before the next one begins: one of
        `check_every`, the first of a block that is recorded where others are left out. It must not raise."""
        self.check_every = BLOCK
        """A power of two, BLOCK at least; written by the replica check."""
        self.marks: Any = None
        """On a device: records an event at every border of a phase (`ddptop.training.device.PhaseMarks`)."""

    def _set_up_sampling(self) -> None:
        """What is taken of the running step, and what that costs."""
        self.rates = SamplingRates()
        """Written by the publisher."""
        self.detail = self.wants_loss = True
        self.cost_clock: Callable[[], int] = cpu_now
        """CPU time of the calling thread in ns; in steps without measurement `int`, the cheapest function
        that always gives 0. To be read twice from one variable: the next step may have another."""
        self._cost = 0

    def _set_up_models(self) -> None:
        """What is known of the models and of the way in which the script trains them."""
        self.forwarded: Callable[[], Any] = lambda: None
        """The DDP model whose forward was the last one, while it exists."""
        self.several_models = False
        """Whether there is more than one DDP model: then any backward may wait for all-reduces."""
        self.bypassed = False
        """Whether a DDP model was stepped with gradients that came past DDP's forward: then a backward begins
        a step where no forward does."""
        self.without_ddp = False
        """Whether this process trains without a DDP model, as far as is known (`begin_without_ddp`)."""
        self._fetches = False
        """Whether a DataLoader has given a batch."""
        self._saw_backward = False

    def _set_up_stamps(self) -> None:
        """What is kept of the running step until it is handed over."""
        self.stamps: list[int] = []
        """Moments of CLOCK_MONOTONIC in ns, each with its event in the lowest bits."""
        self._put = self.stamps.append
        self._entries = 0
        self.step_flags = 0
        """Flags of the running step that are known before it ends."""
        self.waits_unseen = 0
        """`Flag.WAITS_UNSEEN` where forward and backward wait in collectives that are not timed, else 0."""
        self.calls: list[BucketCall] = []
        self.handover_ns: deque[int] = deque(maxlen=256)
        """How long after their ready timestamps the last buckets were given to the process group, in ns."""
        self.passes = 0
        """Backward passes and steps so far: a new value means that the reducer starts at its first bucket."""
        self.calls_since_forward = 0
        """Batches fetched and DDP forwards without gradients since the last training forward: where there are
        many, the script evaluates."""
        self.own_waits = 0
        """Waits in collectives of the script's own so far."""
        self.waiting_since = 0
        """When the training thread entered the one that it is in; 0: it is in none."""

    def reset_steps(self) -> None:
        """Begin with a first step again: nothing is known of the one before. The numbers of steps go on."""
        self.see_again()
        self.aside = False  # in a shadow block: phases call only `forward_begins` and `aside_step_ends`
        self.shadow = ShadowBlocks.from_environment()
        self._stepped = self._synchronised = self.synchronises = self._has_forward = self._passed = False
        self._aside_ends = self._steps_since_forward = self._usual_steps = 0
        self._in_forward = self._spoilt = self._stepped_in_backward = False
        self.stamp_due = False
        """Whether `last_gradient` is to be called at the end of the gradients that are being computed."""
        self.cpu_wait.forget()
        self.elements.forget()
        self.evaluation.forget()
        self.unseen.forget_steps()
        self._optimizer_running: int | None = None
        self._first_optimizer = -1
        self._ended_by = 0
        """By `id()` the optimizer that has ended the running step. 0: none, or not it alone."""
        self._optimizer_numbers = OptimizerNumbers()
        self._in_optimizer = False
        self._backward_depth = self._optimizer_depth = 0
        self._cost = 0
        self._phase_before = Phase.OTHER
        self.stamps.clear()

    def stop_measuring(self) -> None:
        """Take as little time as possible: records are not read, or something is wrong for good."""
        self.rates = NEVER_SAMPLED
        self.check_every = self.rates.detail_every

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped in the running step."""
        return self._stepped

    @property
    def phase(self) -> Phase:
        """What the training thread is doing; for any thread."""
        for stamp in reversed(self.stamps):
            phase = PHASES.get(stamp & EVENT, Phase.OTHER)
            if phase is not None:
                return phase
        return self._phase_before

    def data_begins(self) -> None:
        """The training thread asks its loader for a batch."""
        self.calls_since_forward += 1
        self._optimizer_running = None  # an optimizer step that raised ends here at the latest
        if self._in_forward:
            self._discard_forward()
        self._put(now() << EVENT_BITS | STAMP_DATA)

    def data_ends(self) -> None:
        """The batch is there, or the loader has ended."""
        self._put(now() << EVENT_BITS | STAMP_DATA_END)
        if self.without_ddp:
            self._fetches = True
            self._open_forward()
        if not self.calls_since_forward & EVALUATING:  # an evaluation may last for any number of batches
            self._hand_over()

    def forward_begins(self, synchronises: bool, inputs: tuple[Any, ...] = (), named: Any = None) -> None:
        """A DDP forward that records gradients, with these arguments; `synchronises`: its backward will
        all-reduce."""
        if self._stepped or (self._synchronised and self._backward_steps.has_ended_step()):
            self._close_step(0, check=True)
        elif len(self.stamps) > MANY_STAMPS:
            self._hand_over()
        self.calls_since_forward = 0
        if self.evaluation.is_open:
            self.evaluation.training_goes_on(self.loader.newest)
        if self.loader.note_forward():
            self.step_flags |= FIRST_BATCH
        self._has_forward = True
        if self._steps_since_forward > self._usual_steps:
            self._usual_steps = min(self._steps_since_forward, MOST_OPTIMIZERS)
        self._steps_since_forward = 0
        if self.aside:
            return
        self.synchronises = synchronises
        if self.marks is not None:
            self.marks(step_record.FORWARD)
        self.elements.add_forward(inputs, named)
        self._put(now() << EVENT_BITS | STAMP_FORWARD)

    def forward_ends(self) -> None:
        """The forward has returned or raised."""
        self._put(now() << EVENT_BITS | STAMP_FORWARD_END)
        if self.marks is not None:
            self.marks(step_record.FORWARD_END)

    def backward_begins(self, tensors: Any) -> None:
        """`backward()` is called; nested calls (checkpointing) belong to the outermost."""
        loss = self.read_loss(tensors)
        self._backward_depth += 1
        if self._backward_depth > 1:
            self.stamp_due = False  # all-reduces may be waited for at the end of either
            return
        if self.bypassed and self._no_forward_follows():
            self._close_step(0)
        elif len(self.stamps) > MANY_STAMPS:
            self._hand_over()
        self.passes += 1
        self.stamp_due = True
        # Should the optimizer before have raised: the next `step()` is not inside it.
        self._spoilt = self._in_optimizer = False
        if loss is not None:
            self.losses.add_loss(loss)
        if self.marks is not None:
            self.marks(step_record.BACKWARD)
        self._put(now() << EVENT_BITS | STAMP_BACKWARD)

    def begin_without_ddp(self) -> None:
        """There is no DDP model (yet): a backward begins a step where an optimizer has stepped."""
        self.without_ddp = True

    def begin_with_ddp(self) -> bool:
        """The first DDP model is there. Returns whether steps have been recorded without it: then the ranks
        may count them differently, and steps are to begin anew."""
        self.see_again()
        had_steps = self.without_ddp and (self.step > 0 or self._stepped or self._passed)
        self.without_ddp = self._in_forward = False
        self.waits_unseen = 0
        return had_steps

    def loss_is_ready(self) -> None:
        """Without DDP: `backward()` is about to be called. The forward ends, and the step before it."""
        if self._backward_depth:
            return
        self.calls_since_forward = 0
        begins_pass = self.loader.note_forward()
        if self._stepped or self._passed:
            self._close_step(0, check=self._stepped)
        if self.evaluation.is_open:
            self.evaluation.training_goes_on(self.loader.newest)
        if begins_pass:
            self.step_flags |= FIRST_BATCH
        self._saw_backward = True
        if self._in_forward:
            self._in_forward = False
            if not self.aside:
                self.forward_ends()

    def _open_forward(self) -> None:
        """Without DDP: what follows is taken for a forward, until the next backward or batch."""
        if is_grad_enabled() and not self.aside:
            self._in_forward = True
            if self.marks is not None:
                self.marks(step_record.FORWARD)
            self._put(now() << EVENT_BITS | STAMP_FORWARD)

    def _discard_forward(self) -> None:
        """What was taken for a forward is none: it is an evaluation, batches are fetched ahead, or another
        optimizer steps."""
        self._in_forward = False
        if self.marks is not None:
            self.marks.discard_forward()

    def last_gradient(self) -> None:
        """The autograd engine has computed all gradients of a backward, and waits for no all-reduce yet."""
        if not self._spoilt:
            if self.marks is not None and (self.synchronises or self.several_models):
                self.marks(step_record.LAST_GRADIENT)
            at_ns = now()
            self._put(at_ns << EVENT_BITS | STAMP_LAST_GRADIENT)
            self.cpu_wait.last_gradient(at_ns)

    def spoil_stamp(self) -> None:
        """Leave it unknown where in this backward the last gradient is."""
        self._spoilt = True
        self._put(STAMP_SPOILT)

    def backward_ends(self) -> None:
        """`backward()` has returned or raised."""
        self._backward_depth -= 1
        if self._backward_depth > 0:
            # Back in the outermost backward, whose last gradient is still to come.
            self.stamp_due = self._backward_depth == 1
            return
        at_ns = now()
        stamp = at_ns << EVENT_BITS
        if self.marks is not None:
            self.marks(step_record.BACKWARD_END)
        if self.synchronises or self.several_models:
            if self.stamp_due:
                self._put(STAMP_SPOILT)
            event = STAMP_SYNCHRONISED_END if self.synchronises else STAMP_WAITING_END
            if self.bypassed and not self._has_forward:  # nothing has prepared a reducer
                event = STAMP_BACKWARD_END
            self._put(stamp | event)
            self.cpu_wait.backward_ends(at_ns)
            if not self._backward_steps.optimizer_seen:
                self.cpu_wait.step_ends(at_ns)
            self._synchronised |= self.synchronises
        else:
            self._put(stamp | STAMP_BACKWARD_END)
            if self.without_ddp and self.passes > FEW_PASSES and self._backward_steps.has_ended_step():
                self._passed = True
                self._put(stamp | STAMP_STEP_END)
        self.stamp_due = False
        self.after_backward()
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._put(stamp | STAMP_STEP_END)
            self._step_ends(at_ns)

    def _no_forward_follows(self) -> bool:
        """Whether the running step has ended, although no DDP forward says so."""
        return self._passed or (self._stepped and self._steps_since_forward > self._usual_steps)

    def bypass_ends(self) -> bool:
        """A backward has ended whose gradients came past DDP's forward.

        Returns whether it ends the step by itself: no torch optimizer will.
        """
        self._passed = not self._has_forward and self._backward_steps.has_ended_step()
        self.bypassed |= self._passed
        return self._passed

    def optimizer_begins(self, optimizer: int) -> None:
        """`step()` of the optimizer with this `id()`; one that runs inside another belongs to the outer."""
        if self._backward_depth:
            return
        # One is running: this is inside it (or its `super().step()`), unless that one raised and training
        # went on without it.
        if self._optimizer_running is not None and self._in_optimizer:
            self._optimizer_depth += self._optimizer_running == optimizer
            return
        if self.without_ddp:
            self._optimizer_follows(optimizer)
        self._optimizer_depth = 0
        self._optimizer_running = optimizer
        if self._first_optimizer < 0:
            self._first_optimizer = self._optimizer_numbers[optimizer]
        self._in_optimizer = True
        if self.marks is not None:
            self.marks(step_record.OPTIMIZER)
        self._put(now() << EVENT_BITS | STAMP_OPTIMIZER)

    def _optimizer_follows(self, optimizer: int) -> None:
        """Without DDP: where no backward is seen (`autograd.grad`), the same optimizer begins a step."""
        if self._in_forward:
            self._discard_forward()
        same = self._optimizer_numbers.get(optimizer, -1) == self._first_optimizer
        if self._stepped and not self._saw_backward and same:
            self._close_step(0)

    def optimizer_ends(self, optimizer: int) -> None:
        """`step()` has returned."""
        if self._backward_depth:  # optimizer-in-backward: the step ends with the backward
            self._stepped_in_backward = True
            return
        # An optimizer that ran inside another one: it belongs to the outer.
        if self._optimizer_running != optimizer:
            return
        if self._optimizer_depth:
            self._optimizer_depth -= 1
            return
        at_ns = now()
        self._put(at_ns << EVENT_BITS | STAMP_OPTIMIZER_END)
        if self.marks is not None:
            self.marks(step_record.OPTIMIZER_END)
        self._optimizer_running = None
        self._ended_by = 0 if self._stepped else optimizer
        self._step_ends(at_ns)

    def do_between_steps(self, action: Callable[[], None]) -> None:
        """Have `action` called once, between two steps; for any thread."""
        self.between_steps.append(action)
        self._unseen_until = 0

    def _count_unseen_until(self, step: int) -> None:
        self._unseen_until = step
        if self.between_steps:  # looked at last: another thread may just have added to it
            self._unseen_until = 0

    def make_unseen_end(self, seen_end: StepHook) -> StepHook:
        """Return the hook that torch calls after an optimizer has stepped in unseen steps. It closes the
        step. `seen_end`: the hook that it calls in its place where another optimizer has stepped, or
        something is to be done between two steps."""
        usual_id, last, append = self.unseen.optimizer, self.shadow.next - 1, self.records.append
        counter, between_steps = self.counter, self.between_steps
        # A variable of this function is found faster than a name of the module.
        count_nodes, moment = count_graph_nodes, now
        usual: Callable[[], Any] = _do_nothing
        n_at_begin = n_before = count_nodes()
        self._count_unseen_until(last)

        def unseen_end(optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
            # Whatever is looked at here takes 0.3 to 1 us. A weak reference takes 0.5 us less than `id()`.
            nonlocal n_before, usual
            n_nodes, step = count_nodes(), self.step
            if n_nodes != n_before and step < self._unseen_until and optimizer is usual():
                n_before = n_nodes
                append((step, moment()))
                self.step = counter[0] = step + 1
                return
            # Without a forward since, it steps again in the step that it has ended; if nodes are counted.
            again = n_nodes == n_before != n_at_begin
            n_before = n_nodes
            if id(optimizer) != usual_id or (between_steps and not again):
                seen_end(optimizer, args, kwargs)
                return
            try:
                usual = weakref.ref(optimizer)
                if not again:
                    self._add_unseen_step()
                if again or step == last:
                    self.see_again()
                else:
                    self._count_unseen_until(last)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)

        return unseen_end

    def _add_unseen_step(self) -> None:
        self.records.append((self.step, now()))
        self.step = self.counter[0] = self.step + 1

    def unseen_step_ends(self, optimizer: int) -> None:
        """Close the unseen step that `optimizer` ends, if it is the usual one, and see the coming steps
        again: something is to be done between two steps, or another optimizer has stepped."""
        if optimizer == self.unseen.optimizer:
            self._add_unseen_step()
        self.see_again()
        self._do_between_steps()

    def see_again(self) -> None:
        """See the coming steps in full, no longer their ends alone. After BLOCK steps or more of which only
        the end was seen, there may soon be more of them."""
        if not self.unseen.optimizer:
            return
        n_unseen = self.unseen.end(self.step)
        self.calls_since_forward = 0
        # What was noted of the steps that were not seen belongs to no later one.
        self.losses.take_loss()
        self.elements.forget()
        self.cpu_wait.step_ends(now())
        self.passes += 1
        if self.step == self.shadow.next:
            self._choose_what_is_seen()
        elif n_unseen >= BLOCK:
            self.shadow.decide_soon(self.step)

    def aside_step_ends(self) -> None:
        """`step()` of an optimizer has returned in a step in which the recorder stands aside."""
        if self.marks is not None:
            self.marks(step_record.OPTIMIZER_END)
        self._stepped = True
        self._put(now() << EVENT_BITS | STAMP_ASIDE_END)
        self._aside_ends += 1
        if self._aside_ends >= MANY_ASIDE_ENDS:  # the script calls DDP's forward no more
            self._close_step(0)

    def note_bucket(self, key: Hashable, ready: Any, launched: int = 0) -> BucketCall | None:
        """Note that a bucket was ready for its all-reduce, launched by `launched`, if known; None: the step
        is full."""
        if len(self.calls) >= MAX_CALLS:
            return None
        if launched and type(ready) is int:  # a device's timer gives no clock reading
            self.handover_ns.append(launched - ready)
        call: BucketCall = [key, ready, 0]
        self.calls.append(call)
        return call

    def wait_begins(self, *, of_buffers: bool = False) -> int:
        """A wait begins in a collective of the script's own, or in DDP's broadcast `of_buffers`. Returns
        when, in ns."""
        if self.marks is not None:
            self.marks(step_record.BUFFERS if of_buffers else step_record.WAIT)
        self.waiting_since = began = now()
        return began

    def wait_ends(self, began: int, *, of_buffers: bool = False) -> None:
        """The wait that began at `began` has ended, on the training thread or, in backward, on the autograd
        engine's."""
        self.waiting_since = 0
        self.own_waits += not of_buffers
        waited_ns = now() - began
        self._put(waited_ns << EVENT_BITS | (STAMP_BUFFERS if of_buffers else STAMP_WAIT))
        if self.evaluation.is_open:
            self.evaluation.waited_ns += waited_ns
        if self.marks is not None:
            self.marks(step_record.WAIT_END)
        if len(self.stamps) > MANY_STAMPS:
            self._hand_over()

    def take_blocked(self) -> int:
        """CPU ns in which our calls have waited for a device since the last call; the script's would have."""
        return 0 if self.marks is None else int(self.marks.take_blocked())

    def add_cost(self, ns: int) -> None:
        """CPU time, by `cost_clock`, that our own code took on a thread that training waits for."""
        self._cost += ns

    def shadow_step_ends(self, began: int) -> None:
        """A rank that has run out of inputs has shadowed one step of the others under `join()`."""
        self.see_again()
        if self._stepped:
            self._close_step(0)
        self._put(began << EVENT_BITS | STAMP_JOINED)
        self._put(now() << EVENT_BITS | STAMP_JOINED_END)
        self._close_step(Flag.JOINED)

    def finish_step(self) -> None:
        """Close the last step: no further forward will. All of torch's functions are wrapped then."""
        self.see_again()
        if self._stepped or self._passed or (self._synchronised and self._backward_steps.has_ended_step()):
            self._close_step(0)
            self.see_again()  # of the next step only the end may be to be seen

    def restart_in_child(self) -> None:
        """In a forked child: if it trains, its steps begin with 0. Earlier records are its parent's."""
        self.drop_records()
        self.step, self.counter = 0, [0]
        self.reset_steps()

    def drop_records(self) -> None:
        """Drop what is recorded: in a forked child, which is not the rank, and at exit."""
        self.stamps.clear()
        self._entries = 0
        self.records, self.calls = deque(maxlen=step_record.QUEUE_STEPS), []
        self.losses.take_loss()

    def _step_ends(self, at_ns: int) -> None:
        self._stepped = self._backward_steps.optimizer_seen = True
        self._steps_since_forward += 1
        self.cpu_wait.step_ends(at_ns)
        if self.without_ddp and not self._fetches:
            self._open_forward()

    def _hand_over(self, closed: tuple[Any, ...] | None = None) -> None:
        """Hand the stamps over; the step goes on, unless it is `closed`."""
        self._phase_before = Phase.OTHER if closed else self.phase
        self.records.append((self._entries, tuple(self.stamps), closed))
        self._entries += 1
        self.stamps.clear()

    def _close_step(self, flags: int, *, check: bool = False) -> None:
        """`check`: training goes on, so that the replicas should be equal now."""
        step = self.step
        synchronised = self._synchronised or self.without_ddp
        check = check and synchronised and step % BLOCK == 0
        check = check and next_recorded(step, self.check_every // BLOCK) == step
        # Closing a step is part of the one that begins, whose clock is used from here on.
        self.cost_clock = cpu = cpu_now if is_clocked(step + 1) else int
        # Where the step that ends is measured, the wrapper around this call counts it.
        began = 0 if self.on.timed else cpu()
        if self.detail:
            flags |= DETAIL
        flags |= self.step_flags | self.waits_unseen
        self.step_flags = 0
        loss, of_loss = self.losses.take_loss()
        marks = self.marks.take(in_forward=self._in_forward) if self.marks is not None else ()
        self._hand_over(
            (  # in the order of `Closed`, which the publisher makes of it: naming fields costs 2 us here
                step, flags | of_loss | self.shadow.flag, self._cost, loss, self.calls or (), marks,
                self.cpu_wait.take_wait(), self.elements.take_count(), self.gc_pauses.step_closes(),
                self._first_optimizer,
            )
        )  # fmt: skip
        self._cost = 0
        running = self._optimizer_running  # that of the step that begins, where this is in its closure
        self._first_optimizer = -1 if running is None else self._optimizer_numbers.get(running, -1)
        # A new list: the publisher has the old one, and a late all-reduce fills in its end there.
        if self.calls:
            self.calls = []
        if not self.aside:
            self.unseen.note_seen_step(self._ended_by if synchronised else 0)
        self._ended_by = 0
        self._stepped = self._synchronised = self._has_forward = self._passed = False
        self._aside_ends = 0
        self.step = self.counter[0] = step = step + 1
        self.passes += 1
        was_left_out = bool(self.shadow.flag)
        if step == self.shadow.next or self.rates.record_every != self.shadow.every:
            self._choose_what_is_seen()
        self._choose_what_is_measured(step, loss, after_left_out=was_left_out and not self.shadow.flag)
        if self.between_steps:
            self._do_between_steps()
        if began:
            self._cost += cpu() - began
        if self.on.timed is (cpu is int):
            self.on.choose_methods(timed=cpu is not int)
        if check and self.check is not None:
            check_began = cpu()
            self.check(step - 1)
            if not began:  # the wrapper around this counts all of it, but a check counts itself
                self._cost -= cpu() - check_began

    def _choose_what_is_measured(self, step: int, loss: Any, *, after_left_out: bool) -> None:
        """Choose for the step that begins whether its loss, bucket detail and marks on the device are taken.
        `loss`: that of the step before. `after_left_out`: that one was the last of some that are left out."""
        detail_every, _, loss_every, marks_every = self.rates
        # A little more than `loss_every` steps apart: where optimizers take turns, every eighth step would
        # always be one of the same optimizer.
        due = after_left_out or (step - (step >> 3)) % loss_every == 0
        # After a NaN every loss is read: when it began and whether it ends matters more than what that costs.
        self.wants_loss = due or (type(loss) is float and loss - loss != 0.0)
        detail = is_turn(step, detail_every) and not self.shadow.flag
        if self.marks is not None:
            self.marks.use_clock(self.cost_clock)
            self.marks.wanted = detail or bool(self.shadow.flag) or is_turn(step, marks_every)
            if self._in_forward and (self.aside or not self.marks.wanted):
                self.marks.discard_forward()
        if detail != self.detail:
            self.detail = detail
            for switch in self.on_detail:
                switch(detail)

    def _choose_what_is_seen(self) -> None:
        """Choose, by the number of the step that begins, whether the recorder stands aside from it, and then
        whether only its end is seen."""
        seen, running = self._backward_steps.optimizer_seen, self._optimizer_running is not None
        allowed = seen and not running and not self._backward_depth and not self.bypassed
        allowed = allowed and (self._saw_backward or not self.without_ddp)
        self.aside = self.shadow.stands_aside_from(self.step, allowed, self.rates.record_every)
        self.forget_gradients()
        if self.aside and self.marks is None:
            self.unseen.begin(self.step)

    def _do_between_steps(self) -> None:
        for _ in range(len(self.between_steps)):
            try:
                action = self.between_steps.popleft()
            except IndexError:  # the publisher has just taken it back (`StepHold.end_hold`)
                return
            action()


class OptimizerNumbers(dict[int, int]):
    """By `id()` of an optimizer its number, in the order in which they first stepped; -1: there are many."""

    def __missing__(self, optimizer: int) -> int:
        if len(self) >= MANY_OPTIMIZERS:
            return -1
        number = self[optimizer] = len(self)
        return number


def _do_nothing() -> None:
    pass
