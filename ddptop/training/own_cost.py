"""The recorder's own cost on the training thread: in which steps it is measured, and how.

It is CPU time of the thread that runs it (CLOCK_THREAD_CPUTIME_ID): time in which the
operating system ran another process, or a thread waited for the GIL, is never counted. Reading that clock is
a system call of 0.4 to 1.2 us (measured; CLOCK_MONOTONIC takes 0.05 us), and a plain step would read it 16
times. So it is read in three steps of every 32 only (`is_clocked`), and the cost of a step is the median over
those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

cpu_now = time.thread_time_ns

CLOCKED = 32
"""Own CPU time is measured in steps 0, 1 and 3 of so many: one with bucket detail wherever detail is taken at
least so often, the one after it, where the recorder is taken out again, and a plain one where detail is taken
in every 4th step or more rarely."""


def is_clocked(step: int) -> bool:
    """Whether our own CPU time is measured in this step."""
    return step % CLOCKED in (0, 1, 3)


class RecorderCalls:
    """The recorder's methods as the wrappers call them: `recorder.on.data_begins()` and so on. In steps whose
    cost is measured each is called with its CPU time taken, in others nothing is added to the call."""

    data_begins: Callable[..., Any]
    data_ends: Callable[..., Any]
    forward_begins: Callable[..., Any]
    forward_ends: Callable[..., Any]
    loss_is_ready: Callable[..., Any]
    backward_begins: Callable[..., Any]
    backward_ends: Callable[..., Any]
    optimizer_begins: Callable[..., Any]
    optimizer_ends: Callable[..., Any]

    def __init__(self, recorder: Any) -> None:
        phases = ("data", "forward", "backward", "optimizer")
        names = [f"{phase}_{end}" for phase in phases for end in ("begins", "ends")]
        names.append("loss_is_ready")
        self._recorder = recorder
        self._plain = {name: getattr(recorder, name) for name in names}
        self._clocked = {name: self._timed_method(method) for name, method in self._plain.items()}
        self.choose_methods(timed=False)

    def choose_methods(self, *, timed: bool) -> None:
        """Choose how the methods are called in the step that begins: with their CPU time taken where `timed`,
        else as they are."""
        self.timed = timed
        # The methods themselves are exchanged, and no call has a branch: a plain step pays nothing for it.
        vars(self).update(self._clocked if timed else self._plain)

    def _timed_method(self, method: Callable[..., None]) -> Callable[..., None]:
        recorder = self._recorder

        def timing(*arguments: Any) -> None:
            recorder.take_blocked()
            began = cpu_now()
            method(*arguments)
            if self.timed:  # closing a step, it may have ended that
                recorder.add_cost(cpu_now() - began - recorder.take_blocked())

        return timing
