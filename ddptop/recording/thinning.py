"""What a recording leaves out as it nears its limit: bucket detail, then steps, events last of all.

A stage begins at a share of the limit, so that what is kept grows ever more slowly however long the run is:
each time the file has grown by `HALVE_EVERY` of the limit, half of the steps that were still kept go too.
The last step of a rank that says BYE is kept all the same: a screen reaches the end of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddptop.protocol.messages import Bye, Event, Flag, Run, Steps

if TYPE_CHECKING:
    from ddptop.protocol.messages import Message, Received, StepRow

DETAIL_UNTIL = 0.6
"""Share of the limit up to which everything is kept."""

STEPS_UNTIL = 0.7
"""Up to here every step is."""

HALVE_EVERY = 0.02
"""Ten halvings, a thousand times the run so far, before events are touched."""

EVENTS_UNTIL = 0.9
"""From here on the first, second, fourth, eighth ... of each kind of event of a rank are kept."""

READING_NS = 1_000_000_000
"""Heartbeats are kept once a second, and with every second step once in two seconds, and so on."""

MOST_KEYS = 100_000
"""Entries kept of processes and kinds, so that a run with endless restarts does not fill memory."""


class Thinner:
    """Decides by the size of the file what is kept of a message."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(1, limit_bytes)
        self.thins = False
        """Bucket detail is left out."""
        self.every = 1
        """Only steps divisible by this are kept; a power of two, so that all ranks keep the same ones."""
        self.full = False
        """Not even events have room any more."""
        self._sparse = False
        self._read_ns: dict[tuple[int, int, type[Message]], int] = {}
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._last_steps: dict[int, Received] = {}
        """By session its newest step, where that is left out: it is kept if no other follows."""

    def update_size(self, size: int) -> bool:
        """Note the size of the file; True when what is kept has changed. It never grows again."""
        share, every = size / self._limit, 1
        if share > STEPS_UNTIL:
            # More than 2^40 steps apart means none at all.
            every = 1 << min(40, 1 + int((share - STEPS_UNTIL) / HALVE_EVERY))
        before = (self.thins, self.every, self._sparse)
        self.thins = self.thins or share > DETAIL_UNTIL
        self.every = max(self.every, every)
        self._sparse = self._sparse or share > EVENTS_UNTIL
        return (self.thins, self.every, self._sparse) != before

    @property
    def note(self) -> str | None:
        """What is left out, for a person."""
        if self.full:
            return "recording at its limit: nothing more is recorded"
        if not self.thins:
            return None
        parts = ["bucket detail is left out"]
        if self.every > 1:
            parts.append(f"all but one of {self.every:,} steps")
        if self._sparse:
            parts.append("repeated events")
        return "recording near its limit: " + ", ".join(parts)

    @property
    def reading_s(self) -> float:
        """Seconds between two heartbeats of a rank that are kept."""
        return self.every * READING_NS / 1e9

    def kept_parts(self, received: Received, *, passing: bool) -> Iterator[Received]:
        """Yield a message, the parts of it that are kept, or nothing. `passing`: it matters for a moment."""
        message = received.message
        if isinstance(message, Steps):
            for steps in self.thin_steps(message) if self.thins else (message,):
                yield received if steps is message else received._replace(message=steps)
            self._note_last_step(received, message)
            return
        if isinstance(message, Bye) and (last := self._last_steps.pop(received.session, None)) is not None:
            yield last._replace(t_ns=received.t_ns)  # so that a screen reaches the end of the run
        # RUN is always kept: it says how the run ended.
        if (self._is_due(received) if passing else self._keeps_event(received)) or isinstance(message, Run):
            yield received

    def thin_steps(self, steps: Steps) -> Iterator[Steps]:
        """Yield the steps that are kept, without bucket detail."""
        bare = [*map(_without_detail, steps.rows)]
        if self.every == 1:
            yield Steps(steps.generation, steps.first_step, steps.base_ns, tuple(bare))
            return
        # Each step is a message of its own, since one STEPS holds consecutive ones.
        for step, row in enumerate(bare, steps.first_step):
            if step % self.every == 0:
                yield Steps(steps.generation, step, steps.base_ns, (row,))

    def _note_last_step(self, received: Received, message: Steps) -> None:
        last_step = message.first_step + len(message.rows) - 1
        if self.every == 1 or not message.rows:
            return
        if last_step % self.every == 0:
            self._last_steps.pop(received.session, None)
        elif received.session in self._last_steps or len(self._last_steps) < MOST_KEYS:
            row = _without_detail(message.rows[-1])
            steps = Steps(message.generation, last_step, message.base_ns, (row,))
            self._last_steps[received.session] = received._replace(message=steps)

    def _is_due(self, received: Received) -> bool:
        """A heartbeat or another reading, as rarely as steps are kept."""
        if self.every == 1:
            return True
        key = (received.session, received.rank, type(received.message))
        before_ns = self._read_ns.get(key)
        if before_ns is not None and received.t_ns - before_ns < self.every * READING_NS:
            return False
        # Forgetting all of them keeps one reading too many for each process, no more.
        if len(self._read_ns) >= MOST_KEYS:
            self._read_ns.clear()
        self._read_ns[key] = received.t_ns
        return True

    def _keeps_event(self, received: Received) -> bool:
        """An event or another message that lasts."""
        if not self._sparse:
            return True
        message = received.message
        kind = message.kind if isinstance(message, Event) else ""
        rank = message.rank if isinstance(message, Event) else received.rank
        if len(self._counts) >= MOST_KEYS:
            self._counts.clear()
        # By rank, so that one rank's events do not take the room of another's.
        self._counts[type(message), kind, rank] += 1
        count = self._counts[type(message), kind, rank]
        # Powers of two have a single bit.
        return count & (count - 1) == 0


def _without_detail(row: StepRow) -> StepRow:
    # Without the flag as well: a row that says DETAIL must have all of its cells.
    return row._replace(cells=(), flags=row.flags & ~Flag.DETAIL)
