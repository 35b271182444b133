"""The history before the part of a large recording that was read to stand at a moment."""

from __future__ import annotations

import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.frames import History
from ddptop.recording import past
from ddptop.sources.player import Player

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.analysis.frames import Column
    from ddptop.recording.reader import Recording

COLUMNS = tuple(field.name for field in fields(History) if field.name != "start")

REACHES_S = 1.0
"""The past that the writer told reaches up to what was read where no more than this lies between."""


class Backfill:
    """What came earlier, for the charts: as the writer told it, and where it told nothing, by reading the
    recording once, bit by bit. Not thread-safe."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._player: Player | None = None
        self._told: Mapping[str, Column] = past.joined([])
        self._pieces = 0
        self._lacks = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to be read."""
        return not self._lacks or (self._player is not None and self._player.at_end)

    def work(self, seconds: float) -> None:
        """Read on for so long."""
        if self._player is None:
            self._player = Player(self._recording, whole_bytes=sys.maxsize)
            pasts = self._recording.pasts()
            if pasts:
                self._player.stand_at(pasts[-1][0])
        self._player.read_on(self._recording.end_ns, until=time.monotonic() + seconds)

    def before(self, history: History) -> History:
        """This history with what was before it, as far as that is known by now."""
        if not len(history.step):
            return history
        begin_s = float(history.time_s[0])
        told = self._by_writer()
        pieces = [told]
        end_s = float(told["time_s"][-1]) if len(told["time_s"]) else 0.0
        reached_s = self._reached_s(end_s)
        if self._player is not None:
            self._lacks = reached_s < begin_s
        else:
            self._lacks = begin_s - end_s > REACHES_S
        if reached_s >= begin_s:
            assert self._player is not None
            read = self._player.reducer.history.since(0)
            pieces.append({name: getattr(read, name) for name in COLUMNS})
        return _joined(pieces, history, begin_s)

    def _by_writer(self) -> Mapping[str, Column]:
        pasts = self._recording.pasts()
        if len(pasts) > self._pieces:
            self._told = past.joined([self._told, *(piece.points for _, piece in pasts[self._pieces :])])
            self._pieces = len(pasts)
        return self._told

    def _reached_s(self, end_s: float) -> float:
        """Up to which moment of the run the rest has been read; 0: nothing of it."""
        if self._player is None or not self._player.reducer.history_end:
            return 0.0
        reached = float(self._player.reducer.history.since(0).time_s[-1])
        return reached if reached > end_s else 0.0


def _joined(pieces: list[Mapping[str, Column]], history: History, begin_s: float) -> History:
    """All points in order of time, none of them twice: each piece gives way to the ones after it."""
    starts = [float(piece["time_s"][0]) if len(piece["time_s"]) else begin_s for piece in pieces]
    columns: dict[str, list[Column]] = {name: [] for name in COLUMNS}
    for number, piece in enumerate(pieces):
        until = min([begin_s, *starts[number + 1 :]])
        count = int(np.searchsorted(piece["time_s"], until))
        for name, kept in columns.items():
            kept.append(piece[name][:count])
    whole = {name: np.concatenate([*kept, getattr(history, name)]) for name, kept in columns.items()}
    return replace(history, start=0, **whole)
