"""Messages of single blocks: those of a kind that is wanted, what lasts from memory, damage counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.protocol.messages import Type
from ddptop.recording.format import RecordingError
from ddptop.recording.records import PASSING_TYPES, read_block

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
        self._unreadable: set[int] = set()
        self._lasting: dict[int, list[Received]] = {}
        self._lasting_kept = 0

    @property
    def unreadable(self) -> int:
        """Blocks that were found to be damaged so far."""
        return len(self._unreadable)

    def read(self, entry: Entry, wanted: Wanted) -> list[Received]:
        """Messages of the wanted kinds, in order."""
        found: list[Received] = []
        try:
            found.extend(read_block(self._descriptor, entry, wanted=wanted))
        except (RecordingError, OSError):
            self._unreadable.add(entry.offset)
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
