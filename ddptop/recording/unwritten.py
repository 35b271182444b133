"""What is not in the file: blocks that wait for the disk, and step records that it had no room for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ddptop.protocol.messages import UNRECORDED, Event, Received, Scalar, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.recording.format import BlockSummary


class WaitingBlock(NamedTuple):
    """A block that the disk has not taken yet."""

    summary: BlockSummary
    records: bytes | memoryview
    rows: int
    """Step records in it."""
    essential: bytes
    """What of it is to be kept twice."""


class WaitingBlocks:
    """The blocks that the disk has not taken yet, oldest first."""

    def __init__(self) -> None:
        self._blocks: deque[WaitingBlock] = deque()
        self.n_bytes = 0
        """Bytes of the records in them."""

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __iter__(self) -> Iterator[WaitingBlock]:
        return iter(self._blocks)

    @property
    def oldest(self) -> WaitingBlock:
        """The one to write next."""
        return self._blocks[0]

    def append(self, block: WaitingBlock) -> None:
        """Add the newest one."""
        self._blocks.append(block)
        self.n_bytes += len(block.records)

    def remove_oldest(self) -> None:
        """The disk has taken it, or never will."""
        self.n_bytes -= len(self._blocks.popleft().records)

    def clear(self) -> int:
        """Give all of them up; returns how many step records they have."""
        rows = sum(block.rows for block in self._blocks)
        self._blocks.clear()
        self.n_bytes = 0
        return rows


@dataclass
class _MissingRows:
    """Step records of one process that the disk did not take."""

    rank: int
    rows: int = 0
    stop: int = 0
    """The step after the last one of them."""
    last_ns: int = 0
    """When that arrived."""


class UnwrittenRows:
    """Step records that are not in the file for lack of room on the disk, and the messages that say so."""

    def __init__(self) -> None:
        self.count = 0
        self._of_session: dict[int, _MissingRows] = {}
        """Step records that no message says yet, by session."""
        self._events: list[Event] = []
        """Messages that say it, not taken yet."""

    def note(self, received: Received) -> None:
        """Count the step records of a message for their process."""
        message = received.message
        if isinstance(message, Steps):
            missing = self._of_session.setdefault(received.session, _MissingRows(received.rank))
            missing.rows += len(message.rows)
            missing.stop = max(missing.stop, message.first_step + len(message.rows))
            missing.last_ns = received.t_ns
            self.count += len(message.rows)

    def make_messages(self, least_ns: int) -> list[Received]:
        """A message for each process of which step records are missing; a replay sees no end of the gap
        where the recording stopped. `least_ns`: before this moment none is dated."""
        events = []
        for session, missing in self._of_session.items():
            fields: dict[str, Scalar] = {"session": session, "rows": missing.rows, "steps": missing.stop}
            at_ns = max(least_ns, missing.last_ns)
            events.append(Event(UNRECORDED, at_ns, missing.rank, missing.stop, fields))
        self._of_session = {}
        self._events += events
        return [Received(event.t_ns, -1, 0, 0, event) for event in events]

    def take_events(self) -> list[Event]:
        """The messages that were made since the last call."""
        events, self._events = self._events, []
        return events
