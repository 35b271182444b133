"""Whether this collector keeps up with what it receives, and how much bucket detail it asks for.

A collector that cannot read as fast as ranks report asks the agents for less: bucket detail, most of the
bytes and of the work, only in every second detailed step, in every fourth, and so on, then none. What the
agents leave out they count; every change is an event of the run.

What counts is whether it keeps up with the CPU time that it gets, not how much it uses: on a busy machine a
collector, at niceness 10, may get so little that it would stay behind for as long as it received all detail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.numbers import fixed
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event
from ddptop.transport.bundles import MAX_THIN

if TYPE_CHECKING:
    from ddptop.protocol.messages import Message

KIND = "detail_thinned"
"""Kind of the event."""

BEHIND_NS = NS
"""Backlog from which less is asked for: the oldest unread message has waited for this long. A screen is
drawn four times a second, and a rank's state is stale after 1.5 s."""

KEEPS_UP_NS = NS // 2
"""Backlog below which there is room again: what many hosts send is taken five times a second, and on a busy
machine one round of that may take half of this."""

EFFECT_NS = 2 * NS
"""From one change to the next step down: agents send every 250 ms, and what waits must be read first."""

CALM_NS = 20 * NS
"""How long there must be room before more is asked for."""

MOST_CALM_NS = 640 * NS
"""Longest wait before more is asked for. The wait doubles each time that more was too much."""

MOST_HALVINGS = 6
"""Bucket detail in every 64th detailed step; the level after it is MAX_THIN, none at all."""


class Backlog:
    """Decides how much bucket detail to ask for."""

    def __init__(self) -> None:
        self.thin = 0
        """Bucket detail is asked for in every (2 ** thin)-th detailed step; MAX_THIN: in none."""
        self.behind_ns = 0
        """The backlog when it was last noted."""
        self._emptied_ns: int | None = None
        self._changed_ns = 0
        self._calm_since_ns: int | None = None
        self._calm_ns = CALM_NS
        self._more_ns: int | None = None
        """When more was last asked for."""

    def note_round(self, begun_ns: int, now_ns: int, *, emptied: bool) -> bool:
        """Note a round of work, from `begun_ns` to now; returns whether `thin` has changed.

        `emptied`: nothing that had arrived when it began is unread.
        """
        # The oldest unread message may have come when the first round began that left something unread.
        since_ns = begun_ns if self._emptied_ns is None else self._emptied_ns
        self.behind_ns = now_ns - min(since_ns, begun_ns)
        if emptied:
            self._emptied_ns = None
        elif self._emptied_ns is None:
            self._emptied_ns = begun_ns
        if self.behind_ns > BEHIND_NS:
            self._calm_since_ns = None
            # Not before the last change has had its effect: what waits now was sent before it.
            return now_ns - self._changed_ns >= EFFECT_NS and self._ask_for_less(now_ns)
        if self.behind_ns > KEEPS_UP_NS:
            self._calm_since_ns = None
            return False
        if self._calm_since_ns is None:
            self._calm_since_ns = now_ns
        return self.thin > 0 and now_ns - self._calm_since_ns >= self._calm_ns and self._ask_for_more(now_ns)

    def forget_backlog(self, now_ns: int) -> None:
        """Start over after this process was stopped: what waits says nothing about how fast it works."""
        self._emptied_ns, self._calm_since_ns, self._changed_ns = None, None, now_ns

    def recall_message(self, message: Message) -> None:
        """Take a message that an earlier collector of the run has recorded."""
        thin = message.fields.get("thin") if isinstance(message, Event) and message.kind == KIND else None
        # Only levels that this version knows; anything else would be asked of all agents.
        if type(thin) is int and (0 <= thin <= MOST_HALVINGS or thin == MAX_THIN):
            self.thin = thin

    def change_event(self, now_ns: int) -> Event:
        """The last change."""
        return Event(KIND, now_ns, -1, -1, {"thin": self.thin, "message": self._change_sentence})

    @property
    def _change_sentence(self) -> str:
        if self.thin == 0:
            return "the collector keeps up again: other hosts send all bucket detail"
        kept = (
            "other hosts send no bucket detail"
            if self.thin == MAX_THIN
            else f"other hosts send bucket detail of one in {2**self.thin} detailed steps only"
        )
        return f"the collector falls behind, by {fixed(self.behind_ns / NS)} s: {kept}"

    def _ask_for_less(self, now_ns: int) -> bool:
        if self.thin == MAX_THIN:
            return False
        # More was asked for, and was too much: the next try comes later.
        if self._more_ns is not None and now_ns - self._more_ns < self._calm_ns:
            self._calm_ns = min(MOST_CALM_NS, 2 * self._calm_ns)
        self.thin = MAX_THIN if self.thin >= MOST_HALVINGS else self.thin + 1
        self._changed_ns = now_ns
        return True

    def _ask_for_more(self, now_ns: int) -> bool:
        self.thin = MOST_HALVINGS if self.thin == MAX_THIN else self.thin - 1
        # The wait begins anew, so that one step up at a time is tried.
        self._changed_ns = self._more_ns = self._calm_since_ns = now_ns
        return True
