"""Checks for stalls and silent hosts while the messages of a run are taken, by the times of their arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.health.hosts import CHECK_NS as HOSTS_CHECK_NS
from ddptop.analysis.health.hosts import HostLog
from ddptop.analysis.stall.current import CHECK_NS, StallLog, stalled_since
from ddptop.protocol.hosts import HostUsage
from ddptop.protocol.limits import NS

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.protocol.message_run import MessageRun


class Checks:
    """Checks the state when that is due, and logs what is found."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._stalls, self._hosts = StallLog(), HostLog()
        self._passed: list[tuple[int, int, int]] = []
        """Checks that cannot find anything, among the messages that are about to be taken: the place after
        the message with which each is due, and when the next ones for stalls and for hosts are."""

    def stalled_since(self, now_ns: int) -> int | None:
        """When the stalled step began; None while there is no stall."""
        return stalled_since(self._state, now_ns)

    @property
    def stall_is_logged(self) -> bool:
        """Whether the present stall is in the log."""
        return self._stalls.is_logged

    def progress_until_ns(self) -> int:
        """Before this moment no stall can be found, whatever steps and readings come; 0: not known."""
        state = self._state
        if (
            not state.world
            or state.start.not_initialized
            or self._are_starting
            or not state.presence.running.all()
        ):
            return 0
        return int(state.table.moved_ns.min() + state.stall_s * NS)

    def due_at_end(self) -> None:
        """The run has ended: no message may come after this one."""
        self._stalls.next_ns = 0

    def after(self, t_ns: int) -> None:
        """A message that arrived at this moment was taken."""
        # The time between two messages of a tail is no stall: messages are skipped.
        if t_ns >= self._stalls.next_ns and not self._state.tail:
            self._look_at_start(t_ns)
            self._stalls.check(self._state, t_ns)
            self._hosts.check(self._state, t_ns)

    @property
    def _are_starting(self) -> bool:
        return self._state.complete_step is None and self._state.start.has_milestones

    def _look_at_start(self, t_ns: int) -> None:
        state = self._state
        if self._are_starting:
            state.start.look(state.ranks, state.table, t_ns)
        else:
            state.start.end()

    def next_within(self, run: MessageRun, begin: int, stop: int) -> int:
        """Find the message at which the next check is due, from place `begin` to before `stop`.

        Returns the place after it. Checks that cannot find anything are passed over.
        """
        self._passed = []
        if self._state.tail:
            return stop
        t_ns, number, next_ns, hosts_ns = run.heads[0], begin, self._stalls.next_ns, self._hosts.next_ns
        quiet: tuple[int, int, int] | None = None
        while (late := t_ns[number:stop] >= next_ns).any():
            number += int(late.argmax()) + 1
            arrived_ns = int(t_ns[number - 1])
            no_stall_ns, silence_ns, news = quiet = quiet or self._quiet_until(run, begin, stop)
            for_hosts = arrived_ns >= hosts_ns
            if arrived_ns >= no_stall_ns or (for_hosts and (arrived_ns >= silence_ns or number > news)):
                return number
            next_ns = arrived_ns + CHECK_NS
            hosts_ns = arrived_ns + HOSTS_CHECK_NS if for_hosts else hosts_ns
            self._passed.append((number, next_ns, hosts_ns))
        return stop

    def _quiet_until(self, run: MessageRun, begin: int, stop: int) -> tuple[int, int, int]:
        """While these messages are taken: before which moments no stall and no silent host can be found, and
        the place of the first message with other news of a host."""
        if self._stalls.stalled:
            return 0, 0, 0
        of_agent, is_news = self._state.hosts.of_agent, self._hosts.is_news
        usage = [
            (place, readings.session, readings.message.thinned, readings.message.links)
            for place, readings in run.others_within(begin, stop)
            if type(readings.message) is HostUsage
        ]
        for readings in run.readings:
            if readings.kind is HostUsage:
                part = readings.within(begin, stop)
                columns = part.places, run.heads[2, part.places], part.field("thinned"), part.field("links")
                usage += zip(*(column.tolist() for column in columns), strict=True)
        news = (
            place
            for place, session, thinned, links in usage
            if links is not None or is_news(of_agent(session), thinned)
        )
        silence_ns = self._hosts.quiet_until_ns(self._state)
        return self.progress_until_ns(), silence_ns, min(news, default=stop)

    def after_taken(self, place: int, t_ns: int) -> None:
        """The messages before this place were taken; the last of them arrived at `t_ns`."""
        for passed, next_ns, hosts_ns in self._passed:
            if passed <= place:
                self._stalls.next_ns, self._hosts.next_ns = next_ns, hosts_ns
        self.after(t_ns)
