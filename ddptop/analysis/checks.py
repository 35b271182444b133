"""Checks for stalls and silent hosts while the messages of a run are taken, by the times of their arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.health.hosts import HostLog
from ddptop.analysis.stall.current import CHECK_NS, StallLog, stalled_since

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.analysis.usual_messages import UsualMessages
    from ddptop.frames.columns import Indices


class Checks:
    """Checks the state when that is due, and logs what is found."""

    def __init__(self, state: RunState, usual: UsualMessages) -> None:
        self._state, self._usual = state, usual
        self._stalls, self._hosts = StallLog(), HostLog()
        self._passed: list[tuple[int, int]] = []
        """Checks for stalls that cannot find one, among the messages that are about to be taken: the place
        after the message with which each is due, and when the next one is."""

    def stalled_since(self, now_ns: int) -> int | None:
        """When the stalled step began; None while there is no stall."""
        self._usual.prepare_check(now_ns, self._stalls.stalled)
        return stalled_since(self._state, now_ns)

    def after(self, t_ns: int) -> None:
        """A message that arrived at this moment was taken."""
        # The time between two messages of a tail is no stall: messages are skipped.
        if t_ns >= self._stalls.next_ns and not self._state.tail:
            self._usual.prepare_check(t_ns, self._stalls.stalled)
            self._stalls.check(self._state, t_ns)
            self._hosts.check(self._state, t_ns)

    def next_within(self, t_ns: Indices, begin: int, stop: int) -> int:
        """Of the messages at the places begin..stop, which are to be taken, the place after the one with
        which the next check is due. Checks for stalls that cannot find one are passed over."""
        self._passed = []
        if self._state.tail:
            return stop
        quiet_ns = 0 if self._stalls.stalled else min(self._hosts.next_ns, self._usual.progress_until_ns())
        at, next_ns = begin, self._stalls.next_ns
        while (late := t_ns[at:stop] >= next_ns).any():
            at += int(late.argmax()) + 1
            arrived_ns = int(t_ns[at - 1])
            if arrived_ns >= quiet_ns:
                return at
            next_ns = arrived_ns + CHECK_NS
            self._passed.append((at, next_ns))
        return stop

    def after_taken(self, place: int, t_ns: int) -> None:
        """The messages before this place were taken; the last of them arrived at `t_ns`."""
        for passed, next_ns in self._passed:
            if passed <= place:
                self._stalls.next_ns = next_ns
        self.after(t_ns)
