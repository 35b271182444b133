"""What the training thread does outside the phases of its steps, as the publisher reads it.

It evaluates, saves, waits in a collective, or is between two phases. Nothing of it costs the training thread
more than a count.
"""

from __future__ import annotations

import sys
import time
from typing import NamedTuple

from ddptop.protocol.limits import NS
from ddptop.protocol.messages import STACK_READ_NS, Activity, Phase
from ddptop.training.collective_called import collective_in, phase_in
from ddptop.training.recorder import Recorder
from ddptop.training.step_record import (
    EVENT,
    EVENT_BITS,
    PHASES,
    STAMP_ASIDE_END,
    STAMP_BACKWARD,
    STAMP_BACKWARD_END,
    STAMP_DATA,
    STAMP_DATA_END,
    STAMP_FORWARD,
    STAMP_FORWARD_END,
    STAMP_LAST_GRADIENT,
    STAMP_OPTIMIZER,
    STAMP_OPTIMIZER_END,
    STAMP_STEP_END,
    STAMP_SYNCHRONISED_END,
    STAMP_WAITING_END,
)

MIN_PASSES = 2
"""Batches or forwards since the last training forward: the next step begins with one batch."""

FRESH_S = 5.0
"""A rank whose batches take longer than this is no longer excused from stalls; declare it with
`ddptop.phase`."""

NAMED_AFTER_NS = NS
"""How long a wait must last until the stack is read for the name of its collective."""

_AFTER = {
    STAMP_DATA_END: Activity.BEFORE_FORWARD,
    STAMP_FORWARD_END: Activity.BEFORE_BACKWARD,
    **dict.fromkeys(
        (STAMP_BACKWARD_END, STAMP_WAITING_END, STAMP_SYNCHRONISED_END), Activity.BEFORE_OPTIMIZER
    ),
    **dict.fromkeys((STAMP_OPTIMIZER_END, STAMP_STEP_END, STAMP_ASIDE_END), Activity.AFTER_OPTIMIZER),
}
"""Where the training thread is after an event."""

_TRAINED = frozenset(_AFTER) - {STAMP_DATA_END}
"""Events that only training has."""

_PLACES = {
    STAMP_DATA: "data",
    STAMP_FORWARD: "forward",
    STAMP_BACKWARD: "backward",
    STAMP_OPTIMIZER: "optimizer",
    **{event: activity.name.lower() for event, activity in _AFTER.items()},
}
"""The `OwnPlace` after an event."""


class EvaluationWatch:
    """Whether this rank evaluates: it fetches batches or runs forwards without gradients in the same step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step = -1
        self._calls_since_forward = 0
        self._last_pass_s = -FRESH_S

    def current_phase(self) -> Phase:
        """The phase of the training thread, EVALUATE included."""
        recorder = self._recorder
        step, n_calls, phase = recorder.step, recorder.calls_since_forward, recorder.phase
        now_s = time.monotonic()
        same_step = step == self._step
        if n_calls != self._calls_since_forward:
            self._last_pass_s = now_s
        self._step, self._calls_since_forward = step, n_calls
        training = phase not in (Phase.OTHER, Phase.DATA)
        if phase == Phase.FORWARD and recorder.without_ddp:
            training = n_calls < MIN_PASSES  # nothing says that a forward begins
        if training or not same_step or n_calls < MIN_PASSES or now_s - self._last_pass_s > FRESH_S:
            return phase
        return Phase.EVALUATE


def newest_stamp(recorder: Recorder) -> tuple[int, int]:
    """The newest event that is a moment, and when it was; (-1, 0): none is left of the running step."""
    if recorder.unseen.optimizer:
        return -1, 0  # what is left is of a step before
    for stamp in reversed(recorder.stamps):
        event = stamp & EVENT
        if event == STAMP_LAST_GRADIENT or PHASES.get(event, Phase.OTHER) is not None:
            return event, stamp >> EVENT_BITS
    return -1, 0


def current_place(recorder: Recorder) -> str | None:
    """The `OwnPlace` that the training thread is in, empty where that is not known; None: it waits for
    others."""
    event, _ = newest_stamp(recorder)
    waits = recorder.waiting_since or event == STAMP_LAST_GRADIENT
    return None if waits else _PLACES.get(event, "")


class CurrentActivity(NamedTuple):
    """What the training thread does now; the fields are those of PROGRESS."""

    phase: Phase
    activity: Activity
    since_ns: int


class ActivityWatch:
    """Reads the phase and the activity of the training thread."""

    def __init__(self, recorder: Recorder, thread: int) -> None:
        """`thread`: the training thread's identifier."""
        self._recorder = recorder
        self._thread = thread
        self._evaluation = EvaluationWatch(recorder)
        self._was_in_training_mode = False
        self._evaluates: tuple[int, int] | None = None
        """The step in which this rank evaluates, and since when."""
        self._by_mode = False
        """Whether only the model's mode tells that."""
        self._unseen_step = (-1, 0)
        """The step of which only the end will be seen, and when this rank was first found in it."""

    def read(self) -> CurrentActivity:
        """What the training thread does now."""
        recorder = self._recorder
        phase, step = self._evaluation.current_phase(), recorder.step
        event, since_ns = newest_stamp(recorder)
        saving_ns, wait_ns = recorder.saves.since_ns, recorder.waiting_since
        # From the last gradient to the end of backward DDP waits for its all-reduces.
        if event == STAMP_LAST_GRADIENT and phase == Phase.BACKWARD:
            wait_ns = since_ns
        # Asked in each reading, whatever is returned: it remembers when evaluation began.
        evaluates = self._evaluates_since(phase, step)
        if wait_ns:  # also within a save in which all ranks take part
            return CurrentActivity(phase, self._collective_of(wait_ns, phase), wait_ns)
        if saving_ns:
            return CurrentActivity(phase, Activity.SAVE, saving_ns)
        if evaluates:
            return CurrentActivity(phase, Activity.EVALUATE, evaluates)
        if recorder.unseen.optimizer:
            return self._read_unseen(phase, step)
        if phase == Phase.OTHER:
            return CurrentActivity(phase, _AFTER.get(event, Activity.TRAINING), since_ns)
        return CurrentActivity(phase, Activity.TRAINING, since_ns)

    def _read_unseen(self, phase: Phase, step: int) -> CurrentActivity:
        """In a step of which only its end will be seen: only the stack says where the thread is."""
        if step != self._unseen_step[0]:
            self._unseen_step = step, time.monotonic_ns()
        since_ns = self._unseen_step[1]
        # The stack is read only then: most steps are over before.
        if time.monotonic_ns() - since_ns < STACK_READ_NS:
            return CurrentActivity(phase, Activity.TRAINING, since_ns)
        frame = sys._current_frames().get(self._thread)
        phase = phase_in(frame) or phase
        return CurrentActivity(phase, collective_in(frame) or Activity.TRAINING, since_ns)

    def _evaluates_since(self, phase: Phase, step: int) -> int:
        """Since when this rank evaluates; 0: it does not. Once it does, it goes on until it trains: its
        batches may be slow. Where only the mode of its model tells, it ends with that mode."""
        if phase not in (Phase.OTHER, Phase.DATA, Phase.EVALUATE):
            self._evaluates = None
        in_training_mode = self._is_in_training_mode()
        if in_training_mode:
            self._was_in_training_mode = True
        elif phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            # It trains in evaluation mode, as where `model.train()` was forgotten: the mode tells nothing.
            self._was_in_training_mode = False
        # A model that was never in training mode would otherwise count as one that evaluates.
        leaves_training = self._was_in_training_mode and not in_training_mode
        begun = self._evaluates is not None and self._evaluates[0] == step
        if not begun or (self._by_mode and in_training_mode):
            self._evaluates, self._by_mode = None, phase != Phase.EVALUATE
            if not self._by_mode or (leaves_training and phase in (Phase.OTHER, Phase.DATA)):
                self._evaluates = step, self._trained_last() or time.monotonic_ns()
        return 0 if self._evaluates is None else self._evaluates[1]

    def _is_in_training_mode(self) -> bool:
        """Whether the model that was trained last is in training mode: `model.eval()` ends it."""
        model = self._recorder.forwarded()
        return model is not None and bool(getattr(model.module, "training", True))

    def _trained_last(self) -> int:
        """When a phase of training ended last; 0: that is not known any more."""
        for stamp in reversed(self._recorder.stamps):
            if stamp & EVENT in _TRAINED:
                return stamp >> EVENT_BITS
        return 0

    def _collective_of(self, since_ns: int, phase: Phase) -> Activity:
        """The collective that the training thread waits in; the stack is read where it waits for long."""
        # Backward waits in DDP's all-reduces alone, so that no stack is needed for the name.
        if phase == Phase.BACKWARD:
            return Activity.ALL_REDUCE
        if time.monotonic_ns() - since_ns < NAMED_AFTER_NS:
            return Activity.WAIT
        return collective_in(sys._current_frames().get(self._thread)) or Activity.WAIT
