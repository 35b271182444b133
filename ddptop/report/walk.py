"""Goes through a run's messages with the reducer, and looks at the group every so many steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.messages import Hello, Run, Steps
from ddptop.report.incidents import Incidents

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame, History
    from ddptop.protocol.messages import Received

NS = 1_000_000_000

LOOK_STEPS = 100
"""The reducer's medians are over as many steps: every step is in one look or little more."""

LEAST_LOOK_STEPS = 10
"""In a short run: the time at which a name comes or goes is known this well."""

LOOKS = 60
"""A short run is looked at so often."""

MOST_LOOKS = 400
"""A look at 8 ranks takes a few ms; so many are a second or two."""

MAX_POINTS = 2**20
"""History kept: more steps than a report ever reads."""


def look_every(steps: int) -> int:
    """How many steps to go from one look to the next, in a run of so many steps to read."""
    return max(LEAST_LOOK_STEPS, min(LOOK_STEPS, steps // LOOKS), steps // MOST_LOOKS)


class Look(NamedTuple):
    """The group after some more steps."""

    frame: Frame
    points: History
    """The steps since the look before."""
    recoverable: Column
    """What each of them had been shorter by without skew, in ms; NaN without bucket detail."""
    stretch: int
    """Looks with the same number belong to steps that were read without a hole."""


class Walk:
    """Messages in, looks out. Feed messages in order; call `gap` where rows are left out."""

    def __init__(self, every: int = LEAST_LOOK_STEPS) -> None:
        """`every`: complete steps from one look to the next."""
        self.reducer = Reducer(history_points=MAX_POINTS)
        self.looks: list[Look] = []
        self.incidents = Incidents(self.reducer)
        self.first_ns: int | None = None
        self.last_ns = 0
        self._every = every
        self._cursor = self._stretch = 0
        self._looked_at: int | None = None
        """The complete step of the last look."""
        self._blind = False
        """Rows are being left out."""

    def feed(self, received: Received) -> None:
        """Take the next message. What the reducer cannot take raises as it does there."""
        message, t_ns = received.message, received.t_ns
        if self.first_ns is None:
            self.first_ns = t_ns
        if isinstance(message, Hello) and self.replaces(message):
            # What is known of the processes that ended goes with them.
            self.look()
            self._stretch += 1
        # A batch that comes late must not turn back the clock.
        self.last_ns = max(self.last_ns, t_ns)
        if self._blind:
            # Steps go by unseen: that none comes is no sign of a stall.
            self.reducer.state.excused_ns = self.last_ns
            self._blind = not isinstance(message, Steps)
        self.reducer.feed(received)
        if isinstance(message, Steps):
            self._after_steps()
        elif isinstance(message, Run) and message.state != "live":
            self.look()
        self.incidents.after(received, self.last_ns)

    def gap(self) -> None:
        """From here on rows are left out: what comes next is no sign of lost records, nor of a stall."""
        self.look()
        self._stretch += 1
        self._looked_at = None
        self.reducer.state.tail = True
        for member in self.reducer.state.ranks:
            session = self.reducer.state.session_of(member)
            if session is not None:
                session.begun = False
        self.incidents.end_stall(self.last_ns)
        self._blind = True

    def look(self) -> Frame:
        """Look at the group now."""
        frame = self.reducer.frame(self.last_ns, cursor=self._cursor)
        self._cursor += len(frame.history.step)
        self._looked_at = self.reducer.state.complete_step
        if len(frame.history.step):
            self.looks.append(Look(frame, frame.history, self._recoverable(frame), self._stretch))
        self.incidents.see(frame)
        return frame

    def _recoverable(self, frame: Frame) -> Column:
        count = len(frame.history.step)
        found = np.full(count, np.nan)
        window = self.reducer.state.figures.detail
        if window is None or frame.group.clock_free or frame.group.no_straggler_ms is None:
            return found
        slots = window.group.recent(count)
        place = window.group.of("point", slots) - frame.history.start
        new = place >= 0
        found[place[new].astype(np.int64)] = window.group.of("recoverable", slots)[new]
        return found

    def replaces(self, hello: Hello) -> bool:
        """Whether this process takes over from another one."""
        members = self.reducer.state.ranks
        known = hello.rank < len(members) and members[hello.rank].hello is not None
        return known and members[hello.rank].session != hello.session

    def _after_steps(self) -> None:
        complete = self.reducer.state.complete_step
        if complete is None:
            return
        if self._looked_at is None or complete < self._looked_at:
            self._looked_at = complete
        elif complete - self._looked_at >= self._every:
            self.look()
