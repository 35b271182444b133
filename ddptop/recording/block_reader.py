"""Messages of single blocks: those of a kind that is wanted, what lasts from memory, damage counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.protocol.messages import Type
from ddptop.recording.format import RecordingError
from ddptop.recording.records import PASSING_TYPES, count_records, parse, read_block, read_copy

if TYPE_CHECKING:
    from ddptop.protocol.messages import Received
    from ddptop.recording.format import Entry
    from ddptop.recording.records import Wanted

LASTING_KEPT = 50_000
"""Lasting messages that stay in memory, some 50 MB at most: 4096 ranks say three each when they join."""


class BlockReader:
    """Reads blocks of one file. A damaged block yields what comes before the damage, and is counted."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is the caller's to close."""
        self._descriptor = descriptor
        self._unreadable: dict[int, int] = {}
        """By offset of the block: records in it that are lost."""
        self._mended: set[int] = set()
        self._lasting: dict[int, list[Received]] = {}
        self._lasting_kept = 0
        self.offset = 0
        """Where in the file the block begins that was read last."""

    @property
    def unreadable(self) -> int:
        """Blocks that were found to be damaged so far."""
        return len(self._unreadable)

    @property
    def lost(self) -> int:
        """Messages that were in them, by the index."""
        return sum(self._unreadable.values())

    @property
    def mended(self) -> int:
        """Blocks so far of which a single wrong bit was put right."""
        return len(self._mended)

    def read(self, entry: Entry, wanted: Wanted) -> list[Received]:
        """Messages of the wanted kinds, in order."""
        found: list[Received] = []
        self.offset = entry.offset
        try:
            records, whole = read_block(self._descriptor, entry)
            if not whole:
                self._mended.add(entry.offset)
            found.extend(parse(records, wanted))
        except (RecordingError, OSError):
            if not found:
                return self._copied(entry, wanted)
            self._unreadable.setdefault(entry.offset, entry.summary.records - len(found))
        return found

    def _copied(self, entry: Entry, wanted: Wanted) -> list[Received]:
        """Of a block that cannot be read: what was kept of it twice."""
        found: list[Received] = []
        try:
            records = read_copy(self._descriptor, entry)
            found.extend(parse(records, wanted))
        except (RecordingError, OSError):
            records = b""
        self._unreadable.setdefault(entry.offset, max(0, entry.summary.records - count_records(records)))
        return found

    def lasting(self, entry: Entry) -> list[Received]:
        """Lasting messages. They are asked for wherever one goes, so many of them are kept."""
        known = self._lasting.get(entry.offset)
        if known is None:
            known = self.read(entry, is_lasting)
            if self._lasting_kept < LASTING_KEPT:
                self._lasting[entry.offset] = known
                self._lasting_kept += len(known)
        return known


def everything(_kind: int) -> bool:
    """Messages of every kind."""
    return True


def is_no_steps(kind: int) -> bool:
    """All but STEPS, which are most of a recording."""
    return kind != Type.STEPS


def is_lasting(kind: int) -> bool:
    """What matters for ever after."""
    return kind not in PASSING_TYPES


def only(wanted: Type) -> Wanted:
    """Messages of one kind."""
    return lambda kind: kind == wanted
