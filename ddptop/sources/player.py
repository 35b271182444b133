"""A recording and the reducer over it: stands at a moment, moves to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.analysis.frames import Playback
from ddptop.analysis.reducer import Reducer
from ddptop.protocol.messages import Received, Steps
from ddptop.sources.held_steps import HeldSteps

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame
    from ddptop.recording.reader import Recording

NS = 1_000_000_000

WHOLE_MESSAGES = 4_000
"""A recording of at most so many messages is read from its start wherever one goes: that takes well under a
second, and every figure is exactly what it was live."""

TAIL_ROWS = 30_000
"""Otherwise about so many step rows before the moment: a third of a second."""
LEAST_TAIL_STEPS = 400
"""Four windows of medians, however many ranks there are."""

READ_ON_NS = 20 * NS
"""A moment less than this ahead is reached by reading on, not by starting over."""

SLICE = 200
"""Messages after which a reader that has a deadline looks at the clock: about 20 ms of work."""


class Player:
    """Where a recording stands. Not thread-safe: the source's thread owns it, or `frame_at`."""

    def __init__(self, recording: Recording, *, whole_messages: int = WHOLE_MESSAGES) -> None:
        """Stand before the first message. `whole_messages`: see WHOLE_MESSAGES."""
        self.recording = recording
        self._whole_messages = whole_messages
        self._world = sum(1 for _ in _ranks(recording))
        self._rebuild(recording.start_ns)

    @property
    def at_end(self) -> bool:
        """Whether the moment is that of the last message."""
        return self.position_ns >= self.recording.end_ns

    @property
    def step(self) -> int | None:
        """The newest complete step."""
        return self.reducer.complete_step

    @property
    def has_whole_history(self) -> bool:
        """Whether the reducer has read the recording from its start."""
        return self._whole

    # -- moving -----------------------------------------------------------------

    def go_to(self, t_ns: int) -> None:
        """Stand at this moment, within the recording."""
        t_ns = max(self.recording.start_ns, min(t_ns, self.recording.end_ns))
        if t_ns < self.position_ns or t_ns > self.position_ns + READ_ON_NS:
            self._rebuild(t_ns)
        self.read_on(t_ns)

    def read_on(self, t_ns: int, *, most: int | None = None) -> bool:
        """Read up to a moment ahead; False when `most` messages were read before it was reached.

        The position is then that of the last message that was read.
        """
        self._release(None)
        count = 0
        while (received := self._peek()) is not None and received.t_ns <= t_ns:
            if most is not None and count >= most:
                self.position_ns = max(self.position_ns, self._last_ns)
                return False
            self._take(None)
            count += 1
        self.position_ns = max(self.position_ns, min(t_ns, self.recording.end_ns))
        return True

    def go_to_step(self, step: int) -> None:
        """Stand at the moment at which every rank has reported `step` and no figure knows of a later one.

        A step before the first is the beginning, one after the last the end.
        """
        first, last = self.recording.first_step, self.recording.last_step
        if first is None or last is None or step > last:
            self.go_to(self.recording.end_ns)
            return
        span = self.recording.span_of_step(step)
        if span is None:
            # Between two steps that are there (lost, or thinned out), or before the first.
            earlier = [known for known in range(step - 1, max(first, step - 4096) - 1, -1)]
            found = next((known for known in earlier if self.recording.span_of_step(known)), None)
            if found is None:
                self.go_to(self.recording.start_ns)
            else:
                self.go_to_step(found)
            return
        begin_ns, end_ns = span
        ahead = self.step is not None and self.step < step and self.position_ns <= begin_ns + READ_ON_NS
        if not ahead or begin_ns > self.position_ns + READ_ON_NS:
            self._rebuild(begin_ns - 1)
        self._read_to_step(step, end_ns)

    def go_by(self, steps: int) -> None:
        """Go some complete steps on or back."""
        before = self.step
        if before is None:
            if steps > 0 and self.recording.first_step is not None:
                self.go_to_step(self.recording.first_step + steps - 1)
            return
        self.go_to_step(before + steps)
        if steps > 0 and self.step == before and (following := self._held.first_step) is not None:
            self.go_to_step(following)  # the steps between were lost, or thinned out
