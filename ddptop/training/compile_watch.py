"""How long the training thread waits for torch.compile: at first, and wherever a guard fails later."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple

from ddptop.protocol.messages import Phase
from ddptop.training.guard import guard
from ddptop.training.recorder import Recorder

now = time.monotonic_ns

LEAST_NS = 1_000_000
"""Shorter compilations are not reported."""


class Compilation(NamedTuple):
    """A compilation that has ended."""

    ns: int
    """How long it was."""
    phase: Phase
    """In which phase of the step."""
    what: str
    """`forward (model.py:30)`, `backward`; empty: not known."""
    times: int
    """How often the same was compiled before; 0: not known."""


class CompileWatch:
    """Notes what torch.compile compiles on the training thread, or in its backward on another one."""

    def __init__(self, recorder: Recorder, thread: int, note_compiled: Callable[[Compilation], None]) -> None:
        """`thread`: the training thread's identifier."""
        self._recorder, self._thread, self._note_compiled = recorder, thread, note_compiled
        self._began = 0
        self._phase = Phase.OTHER

    def begins(self) -> None:
        """A compilation begins."""
        try:
            self._phase = self._recorder.phase
            is_training = get_ident() == self._thread or self._phase is Phase.BACKWARD
            self._began = now() if is_training else 0
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def ends(self, what: str, times: int) -> None:
        """It has ended, or failed."""
        ns, self._began = now() - self._began if self._began else 0, 0
        if ns < LEAST_NS:
            return
        try:
            self._note_compiled(Compilation(ns, self._phase, what, times))
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
