"""The history before the part of a large recording that was read to stand at a moment."""

from __future__ import annotations

import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.frames import History
from ddptop.sources.player import Player

if TYPE_CHECKING:
    from ddptop.analysis.frames import Happening
    from ddptop.recording.reader import Recording

COLUMNS = tuple(field.name for field in fields(History) if field.name != "start")


class Backfill:
    """Reads the recording once from its start, bit by bit, for the charts and the marks. Not thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self._player = Player(recording, whole_bytes=sys.maxsize)

    @property
    def done(self) -> bool:
        """Whether all that is written has been read."""
        return self._player.at_end

    def work(self, seconds: float) -> None:
        """Read on for so long."""
        self._player.read_on(self._player.recording.end_ns, until=time.monotonic() + seconds)

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """What was found so far, oldest first."""
        return self._player.reducer.log.all()

    def before(self, history: History) -> History:
        """This history with what was before it; as it is while the reading has not come that far."""
        reducer = self._player.reducer
        if not len(history.step) or not reducer.history_end:
            return history
        known = reducer.history.since(0)
        begin = history.time_s[0]
        if known.time_s[-1] < begin:
            return history
        count = int(np.searchsorted(known.time_s, begin))
        joined = {
            name: np.concatenate([getattr(known, name)[:count], getattr(history, name)]) for name in COLUMNS
        }
        return replace(history, start=known.start, **joined)
