"""Steps of a shadow block of which only the end is seen: torch's functions are not wrapped in them.

They come where one and the same optimizer ends all steps, so that its `step()` is the end of each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ddptop.training.guard import guard

ALIKE_STEPS = 8
"""Steps in a row that one and the same optimizer has ended: the next ones will be like them."""

MAX_END_COSTS = 64
"""Rows of unseen steps from one turn of the publisher to the next whose cost is kept."""


class UnseenSteps:
    """Knows which optimizer ends the steps, and switches torch's wrappers off and on again."""

    def __init__(self) -> None:
        self.optimizer = 0
        """By its `id()` the optimizer that ends the unseen step that is running; 0: it is seen."""
        self.switches: list[Callable[[bool], None]] = []
        """Called with True before unseen steps, and with False after them."""
        self.end_costs: deque[int] = deque(maxlen=MAX_END_COSTS)
        """CPU time, in ns, of the end of one step in each row of unseen ones; taken by the publisher."""
        self._first_step = 0
        self._usual_optimizer = self._n_alike = 0
        """The optimizer that has ended the last steps, and how many in a row after the first of them."""

    def note_seen_step(self, optimizer: int) -> None:
        """Note that a step has ended with this optimizer. 0: it has not ended the step alone, or the step
        has reduced nothing: a second `step()` in it would not be found (`Recorder.make_unseen_end`)."""
        self._n_alike = self._n_alike + 1 if optimizer == self._usual_optimizer != 0 else 0
        self._usual_optimizer = optimizer

    def forget_steps(self) -> None:
        """Nothing is known of the steps before."""
        self._usual_optimizer = self._n_alike = 0

    def begin(self, step: int) -> None:
        """See only the ends of steps, from `step` on, if they are alike."""
        if self._n_alike >= ALIKE_STEPS:
            self.optimizer, self._first_step = self._usual_optimizer, step
            self._switch(True)

    def end(self, step: int) -> int:
        """See steps in full again, from `step` on. Returns how many were not."""
        self.optimizer = 0
        self._switch(False)
        return step - self._first_step

    def _switch(self, unseen: bool) -> None:
        """Call all switches, whatever one of them raises."""
        for switch in self.switches:
            try:
                switch(unseen)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
