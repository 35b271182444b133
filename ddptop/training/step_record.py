"""What the training thread leaves to the publisher of each step, and what it collects for that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from ddptop.protocol.limits import MAX_CELLS
from ddptop.protocol.messages import Flag, Phase

EVENT_BITS = 5
"""Lowest bits of a stamp, which are its event; the others are a moment of CLOCK_MONOTONIC in ns."""

EVENT = (1 << EVENT_BITS) - 1

Entry: TypeAlias = tuple[int, tuple[int, ...], "tuple[Any, ...] | None"]
"""What the publisher takes: a running number, stamps in their order, and the fields of `Closed` where the
step ends with them."""

UnseenStep: TypeAlias = tuple[int, int]
"""A step of which only the end was seen: its number, and when it ended, in ns."""

(
    STAMP_DATA, STAMP_DATA_END, STAMP_FORWARD, STAMP_FORWARD_END,
    STAMP_BACKWARD, STAMP_LAST_GRADIENT, STAMP_SPOILT,
    STAMP_BACKWARD_END, STAMP_WAITING_END, STAMP_SYNCHRONISED_END,
    STAMP_OPTIMIZER, STAMP_OPTIMIZER_END, STAMP_STEP_END, STAMP_ASIDE_END,
    STAMP_WAIT, STAMP_JOINED, STAMP_JOINED_END, STAMP_BUFFERS,
) = range(18)  # fmt: skip
"""The events of stamps, as `StepTimes` (`step_times.py`) takes them. WAIT and BUFFERS have how long it was,
in ns."""

PHASES = {
    STAMP_DATA: Phase.DATA,
    STAMP_FORWARD: Phase.FORWARD,
    STAMP_BACKWARD: Phase.BACKWARD,
    STAMP_OPTIMIZER: Phase.OPTIMIZER,
    STAMP_LAST_GRADIENT: None,
    STAMP_SPOILT: None,
    STAMP_WAIT: None,
    STAMP_BUFFERS: None,
}
"""The phase after an event, OTHER where it is not here; None: as before it."""

FORWARD, FORWARD_END, BACKWARD, BACKWARD_END, OPTIMIZER, OPTIMIZER_END = range(6)
LAST_GRADIENT, WAIT, WAIT_END, BUFFERS = range(6, 10)
"""What `Recorder.marks` is called with: the borders of the phases, the last gradient inside backward, and the
borders of waits in the script's own collectives and, from BUFFERS to WAIT_END, in DDP's broadcasts."""

UNSTAMPED, SPOILT = -1, -2
"""In place of the moment of a backward's last gradient: it has not come yet; it cannot be known."""

QUEUE_STEPS = 8192
"""Finished steps that wait for the publisher: 25 s of 3 ms steps. Then the oldest is dropped, which the
collector counts by the gap in step numbers."""

UNKNOWN_NS = -(1 << 62)
"""Exposed communication of a step in which a backward had no stamp: below zero whatever is added."""

BucketCall: TypeAlias = list[Any]
"""One bucket all-reduce: [key, ready_ns, end_ns]. A list, because another thread fills in the end."""

MAX_CALLS = MAX_CELLS // 3
"""All-reduces kept of one step: the memory of a rank that loops over collectives must be bounded."""

Wait: TypeAlias = list[int]
"""Waits in collectives besides DDP's all-reduces, in a row: [phase, ns]; IN_BUFFERS in place of the phase:
how much of these it was in DDP's broadcasts of buffers."""

IN_BUFFERS = -1


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
    """CPU time of our own code on the training threads; measured where `is_clocked(step)`."""
    loss: Any
    """float or None; on a device a tuple of values that it has yet to write."""
    calls: Sequence[BucketCall]
    marks: Any = ()
    """On a device: (mark, event) at the borders of the phases and of waits, and at the last gradient. Where
    it waits for the host, some steps have ends of backwards only."""
    exposed: int = -1
    """From the last gradient to the end of backward; negative: not known."""
    before_forward: int = 0
    """Outside the phases, before a forward; likewise below. Without waits in collectives."""
    before_backward: int = 0
    before_optimizer: int = 0
    waits: Sequence[Wait] = ()
    cpu_wait: int = -1
    """As `CpuWait` (`cpu_wait.py`) gives it; not to be used where `exposed` is not known."""
    gc: int = -1
    """As `GcPauses` (`gc_pauses.py`) gives it."""
    elements: int = -1
    """As `Elements` gives it; -1: not known."""
    first_optimizer: int = -1
    """The first optimizer that stepped in it: a number in order of appearance; -1: not known."""


class LeftOutSteps(NamedTuple):
    """Steps one after the other of which only the ends were seen. Times in ns."""

    step: int
    """The first of them."""
    begin: int
    """Its begin; of the others the end of the one before."""
    ends: Sequence[int]

    @property
    def end(self) -> int:
        """When the last one ended."""
        return self.ends[-1]


FIRST_STEPS = 2
"""In so many steps the divisors of losses are read before it is known whether there are micro-steps."""

MAX_LOSSES = 128
"""Losses of one step that a device has yet to write: as many as it has marks for micro-steps."""


class LaterLosses(tuple[Any, ...]):
    """Losses of one step that a device has yet to write."""

    factor = 1
    """What their mean is to be multiplied by."""


class Losses:
    """The losses of the step that is running.

    Their mean is the loss of the step. Scripts that accumulate gradients divide each loss by the number of
    micro-steps before `backward()`, and log it undivided: then the mean is multiplied by that number.
    """

    def __init__(self) -> None:
        self.logged: Any = None
        """The loss as the user logs it; it replaces what backward was given."""
        self.divisors: tuple[int, ...] = ()
        """By what the loss that is added next was divided, where `wants_divisors`."""
        self.wants_divisors = True
        """Whether the step may have several micro-steps: reading the divisors takes time."""
        self._common: set[int] | None = None
        """Divisors of all losses of the step; None: there is none yet."""
        self._micro_steps = 1
        """Micro-steps of the last step whose losses were divided by their number. The last step of an epoch
        may have fewer, whose losses the script divides by the usual number."""
        self._unread_steps = FIRST_STEPS
        self._sum = 0.0
        self._count = 0
        self._later: list[Any] = []

    def add_loss(self, loss: Any) -> None:
        """Add the loss of one micro-step: a float, or a value that a device has yet to write."""
        if self.wants_divisors:
            self._common = {*self.divisors} if self._common is None else self._common & {*self.divisors}
            self.divisors = ()
        if type(loss) is float:
            self._sum += loss
            self._count += 1
        elif len(self._later) < MAX_LOSSES:
            self._later.append(loss)

    def take_loss(self) -> tuple[Any, int]:
        """The loss of the step (the mean over its micro-steps; None: not known) with its flag. The step has
        ended."""
        loss: Any = None
        flag = 0
        factor = self._take_factor(self._count or len(self._later))
        if self.logged is not None:
            loss, self.logged = self.logged, None
            flag = int(Flag.LOSS_LOGGED)
        elif self._count:
            loss = self._sum / self._count * factor
        elif self._later:
            loss = LaterLosses(self._later)
            loss.factor = factor
        if factor > 1 and not flag:
            flag = int(Flag.LOSS_UNDIVIDED)
        self._sum, self._count = 0.0, 0
        if self._later:
            self._later = []
        return loss, flag

    def _take_factor(self, count: int) -> int:
        """What the mean of the step's losses is to be multiplied by; `count`: how many they are."""
        divisors, self._common = self._common or set(), None
        if count > 1 and count in divisors:
            self._micro_steps = count
        self._unread_steps -= self._unread_steps > 0
        self.wants_divisors = count > 1 or self._micro_steps > 1 or self._unread_steps > 0
        return self._micro_steps if self._micro_steps in divisors else 1


def without_buffers(waits: Sequence[Wait]) -> Sequence[Wait]:
    """These waits with an unknown time in broadcasts of buffers: a host that has given them to its device
    goes on at once."""
    if not any(phase == IN_BUFFERS for phase, _ in waits):
        return waits
    return [*([phase, ns] for phase, ns in waits if phase != IN_BUFFERS), [IN_BUFFERS, UNKNOWN_NS]]


MAX_WAITS = 512
"""Rows of waits kept of one step, whose phases alternate: further ones are added to the last row."""


class CollectiveWaits:
    """Waits of the training thread in the script's own collectives. A step's end is dated back: what was
    waited since belongs to the next step."""

    def __init__(self) -> None:
        self._rows: list[Wait] = []
        self._done = 0
        """Rows of the step, should it have ended where it was last dated."""

    def add_wait(self, phase: int, ns: int) -> None:
        """Add that the thread has waited so long in this phase."""
        rows = self._rows
        if len(rows) > self._done and rows[-1][0] == phase:
            rows[-1][1] += ns
        elif len(rows) >= MAX_WAITS:
            next((row for row in reversed(rows) if row[0] == phase), rows[-1])[1] += ns
        else:
            rows.append([int(phase), ns])

    def step_ends(self) -> None:
        """The step ends here, unless this is called again before `take_waits`."""
        self._done = len(self._rows)

    def take_waits(self) -> Sequence[Wait]:
        """The waits of the step that has ended."""
        if not self._rows:
            return ()
        rows, self._rows = self._rows[: self._done], self._rows[self._done :]
        self._done = 0
        return rows

    def forget_waits(self) -> None:
        """Drop all."""
        self._rows, self._done = [], 0


MOST_TENSORS = 8
"""Most arguments, with what is in lists and dictionaries among them."""

MOST_ELEMENTS = 2**31 - 1
"""Largest number that a message holds; more is unknown."""


class Elements:
    """How much work the running step was given: elements of the tensors that its forwards got, no data.

    Tensors among the arguments count, and in lists, tuples and dictionaries that are arguments; subclasses of
    torch.Tensor do not, since asking them may run code of theirs. 0.4 us of CPU time for one tensor, 0.8 us
    for three by name (measured). A forward with more than MOST_TENSORS is not counted: over 1 us.
    """

    def __init__(self) -> None:
        self._given = self._logged = self._logged_next = 0
        self._known = True
        """Whether all forwards could be counted."""

    def add_forward(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Add the elements that a forward which records gradients is called with."""
        self._logged += self._logged_next
        self._logged_next = 0
        self._count_tensors(inputs)
        if named:
            self._count_tensors(named.values())

    def _count_tensors(self, values: Collection[Any]) -> None:
        room = MOST_TENSORS - len(values)
        if room < 0:
            self._known = False
            return
        for value in values:
            kind = type(value)
            if kind is Tensor:
                self._given += value.numel()
            elif kind is list or kind is tuple or kind is dict:
                room -= len(value)
                if room < 0:
                    self._known = False
                    return
                for inner in value.values() if kind is dict else value:
                    if type(inner) is Tensor:
                        self._given += inner.numel()

    def log_tokens(self, tokens: float, *, coming: bool) -> None:
        """The script logs how many tokens a batch has: these count instead. `coming`: of the next forward."""
        if not 0 <= tokens <= MOST_ELEMENTS:
            return
        if coming:
            self._logged_next += int(tokens)
        else:
            self._logged += int(tokens)

    def take_count(self) -> int:
        """Return the elements of the step that has ended, -1 where they are not known, and begin to count
        anew."""
        count = self._logged or (self._given if self._known else 0)
        self._given = self._logged = 0
        self._known = True
        return count if 0 < count <= MOST_ELEMENTS else -1

    def forget(self) -> None:
        """The next step is a first one."""
        self._given = self._logged = self._logged_next = 0
        self._known = True


PATIENCE_STEPS = 64
"""Synchronised backwards without an optimizer step after which each one ends a step, although there is a
torch optimizer."""


class BackwardSteps:
    """Whether a synchronised backward ends a step by itself: where no torch optimizer ever steps."""

    def __init__(self, optimizer_exists: Callable[[], bool]) -> None:
        self.optimizer_seen = False
        self._optimizer_exists = optimizer_exists
        self._unstepped = 0
        self._end_steps = False

    def has_ended_step(self) -> bool:
        """Whether the last one did; asked once, before the next forward."""
        if self.optimizer_seen:
            return False
        self._unstepped += 1
        count = self._unstepped
        if count & (count - 1) == 0:  # it walks over all classes: at 1, 2, 4, 8 ... is often enough
            self._end_steps = count >= PATIENCE_STEPS or not self._optimizer_exists()
        return self._end_steps
