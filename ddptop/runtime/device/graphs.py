"""Steps that run inside a CUDA graph: a replay calls no Python, so nothing of it is seen."""

from __future__ import annotations

from ddptop.protocol.messages import Event
from ddptop.runtime.device.marks import PhaseMarks
from ddptop.runtime.recorder import Recorder, now

NAME = "CUDA graph"


class GraphWatch:
    """Declares a phase from the capture of a step on, so that replays are no stall; on one thread.

    It ends with the second step after the capture: the first is the captured one, closed by the next.
    """

    def __init__(self, recorder: Recorder, marks: PhaseMarks) -> None:
        self._recorder = recorder
        self._marks = marks
        self._captured = 0
        self._step: int | None = None
        """In which the last capture was seen, while the phase lasts."""

    def news(self, rank: int) -> Event | None:
        """The beginning or the end of the phase, when it is due."""
        captured, step = self._marks.captured, self._recorder.step
        if captured != self._captured:
            self._captured = captured
            began, self._step = self._step is None, step
            return Event("phase_begins", now(), rank, step, {"name": NAME}) if began else None
        if self._step is not None and step > self._step + 1:
            self._step = None
            return Event("phase_ends", now(), rank, step, {"name": NAME})
        return None
