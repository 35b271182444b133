"""The history before the part of a large recording that was read to stand at a moment."""

from __future__ import annotations

import math
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
        end_s = float(told["time_s"][-1]) if len(told["time_s"]) else -math.inf
        if self._player is None:
            self._lacks = begin_s - max(end_s, 0.0) > REACHES_S
            return _joined(pieces, history, begin_s)
        read = self._read(self._player, end_s)
        self._lacks = read is None or float(read.time_s[-1]) < begin_s
        if read is not None and not self._lacks:
            pieces.append({name: getattr(read, name) for name in COLUMNS})
        return _joined(pieces, history, begin_s)

    def _by_writer(self) -> Mapping[str, Column]:
        pasts = self._recording.pasts()
        if len(pasts) > self._pieces:
            self._told = past.joined([self._told, *(piece.points for _, piece in pasts[self._pieces :])])
            self._pieces = len(pasts)
        return self._told

    @staticmethod
    def _read(player: Player, end_s: float) -> History | None:
        """What was read of the rest; None: nothing past what the writer told, which ends at `end_s`.

        Steps may have ended before the run's own first moment: clocks of ranks and collector are set by hand
        or by NTP, so a time of 0 means nothing here.
        """
        read = player.reducer.history.since(0) if player.reducer.history_end else None
        return read if read is not None and float(read.time_s[-1]) > end_s else None


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
