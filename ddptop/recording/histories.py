"""What the writer told of the group's history, read as it comes in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.recording.format import HISTORY, RecordingError
from ddptop.recording.frames import read_frame
from ddptop.recording.past import past_content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.recording.past import Past

NS = 1_000_000_000


class Histories:
    """Pieces of one file, kept once they are read. A damaged one is left out."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is the caller's to close."""
        self._descriptor = descriptor
        self._read = 0
        self._pasts: list[tuple[int, Past]] = []

    def up_to(self, offsets: Sequence[int], began_ns: int) -> list[tuple[int, Past]]:
        """(last moment that it covers, Past) for every piece, oldest first.

        `offsets`: where in the file they are, as far as that is known by now; `began_ns`: when the run began.
        """
        for offset in offsets[self._read :]:
            found = read_frame(self._descriptor, offset)
            if found is None or found.kind != HISTORY:
                continue
            try:
                past = past_content(found.payload)
            except RecordingError:
                continue
            if len(past.points["time_s"]):
                self._pasts.append((began_ns + int(past.points["time_s"][-1] * NS), past))
        self._read = len(offsets)
        return self._pasts
