"""Whether this rank evaluates: batches or forwards without gradients go on while its step stands still."""

from __future__ import annotations

import time

from ddptop.protocol.messages import Phase
from ddptop.runtime.recorder import Recorder

LEAST = 2
"""Batches or forwards since the last training forward: one batch is what the next step begins with."""

FRESH_S = 5.0
"""An evaluation whose batches take longer than this is not recognised; declare it with `ddptop.phase`."""


class EvaluationWatch:
    """Looks at the recorder with every heartbeat, on the publisher's thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step = -1
        self._asides = 0
        self._moved_s = -FRESH_S

    def phase(self) -> Phase:
        """What the training thread is in, with EVALUATE told from the rest."""
        recorder = self._recorder
        step, asides, phase, now_s = recorder.step, recorder.asides, recorder.phase, time.monotonic()
        stands = step == self._step
        if asides != self._asides:
            self._moved_s = now_s
        self._step, self._asides = step, asides
        training = phase not in (Phase.OTHER, Phase.DATA)
        if training or not stands or asides < LEAST or now_s - self._moved_s > FRESH_S:
            return phase
        return Phase.EVALUATE
