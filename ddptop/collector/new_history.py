"""The group's history for the recording: the points that it does not have yet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ledger.recorded import STEPS_APART, pack_ledger
from ddptop.analysis.ledger.sums import NO_BIN
from ddptop.analysis.since_start import known_since_start
from ddptop.frames.history import BIN_STEPS, COLUMNS
from ddptop.recording.format import MAX_RAW
from ddptop.recording.history import (
    GROUP,
    POINTS,
    HistoryPiece,
    PastEvent,
    join_pieces,
    pack_piece,
    pick_points,
)

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer

MOST_COARSE = 64
"""Most GROUPs in one point, 4,096 steps: the history in memory has more steps as points of their own."""

LENGTH_BYTES = 5
"""What msgpack puts before the sums of the ledger."""

LOST = "lost_records"
"""Kind of the replay mark at a point by which records were lost."""


@dataclass(slots=True)
class _Taken:
    """Up to where the writer has the history."""

    cursor: int | None = None
    last_s: float = -math.inf
    """When the last step ended that was taken."""
    lost: int = 0
    ledger_bin: int = NO_BIN
    """The newest bin of the ledger's last minutes that was taken, and how many steps its sums had."""
    ledger_steps: int = -STEPS_APART
    marked_s: float = 0.0
    excess_s: float = 0.0
    events: frozenset[tuple[float, str]] = frozenset()
    """(Unix seconds, kind) of those still in the log."""


class NewHistory:
    """The group's history for the recording: what was added since the writer last took it."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._taken, self._taken_before = _Taken(), _Taken()

    def take_back(self) -> None:
        """What was taken last was not written: the next piece has it, too."""
        self._taken = replace(self._taken_before)

    def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
        """New points in whole groups of steps, or with `final` all of them; None where there are none.

        `coarser`: one point covers so many times as many steps as usual.
        """
        group = GROUP * min(coarser, MOST_COARSE)
        reducer = self._reducer
        end, history = reducer.state.history_end, reducer.state.history
        first = max(history.first, self._taken.cursor or 0)
        stop = end if final else first + (end - first) // group * group
        if stop <= first:
            return None
        self._taken_before = replace(self._taken)
        points = history.since(self._taken.cursor or 0)
        # Where the writer asks seldom, since it leaves out most steps, some of them are in bins by now.
        begin = int(np.searchsorted(points.time_s[: points.early], self._taken.last_s, side="right"))
        binned, single = points.early - begin, first - points.start
        columns = {name: getattr(points, name)[begin : single + stop - first] for name in COLUMNS}
        binned_size = max(POINTS, group // BIN_STEPS)
        groups = [
            pick_points({name: column[first : min(first + size, until)] for name, column in columns.items()})
            for size, begin, until in ((binned_size, 0, binned), (group, binned, len(columns["step"])))
            for first in range(begin, until, size)
        ]
        # Steps that were taken may later be in bins: the next call begins after this time.
        self._taken.cursor, self._taken.last_s = stop, float(columns["time_s"][-1])
        window = reducer.state.figures.detail
        best = np.full(reducer.state.figures.world, np.nan) if window is None else window.best_self
        marks = self._new_marks(float(columns["time_s"][-1]))
        excess = reducer.state.figures.minutes.since(self._taken.excess_s, final=final)
        self._taken.excess_s = excess.end_s
        piece = HistoryPiece(
            join_pieces(groups),
            np.asarray(best, np.float64),
            marks,
            self._new_events(),
            excess[1:],
            known_since_start(reducer.state),
        )
        return replace(piece, ledger=self._take_ledger(MAX_RAW - len(pack_piece(piece)) - LENGTH_BYTES))

    def _take_ledger(self, room: int) -> bytes | None:
        """The sums of the ledger, in at most `room` bytes; None: not known, too large, or too early to write
        those of all ranks again."""
        state = self._reducer.state
        # Steps that wait for their evaluation are not in the sums yet.
        state.settle()
        ledger = state.ledger
        if not ledger.is_known or ledger.n_steps < self._taken.ledger_steps + STEPS_APART:
            return None
        packed = pack_ledger(ledger, self._taken.ledger_bin)
        if len(packed) > room:
            packed = pack_ledger(ledger, self._taken.ledger_bin, with_heartbeats=False)
        if len(packed) > room:
            return None
        self._taken.ledger_steps = ledger.n_steps
        if ledger.recent_bins:
            self._taken.ledger_bin = ledger.recent_bins[-1].number
        return packed

    def _new_events(self) -> tuple[PastEvent, ...]:
        """Events that were logged since the last call."""
        logged = self._reducer.state.log.all()
        fresh = [event for event in logged if (event.unix_s, event.kind) not in self._taken.events]
        # Only of events that are still in the log: it drops old ones.
        self._taken.events = frozenset((event.unix_s, event.kind) for event in logged)
        start_s = self._reducer.state.started_s
        return tuple(
            PastEvent(
                event.unix_s - start_s,
                event.kind,
                event.severity,
                event.rank,
                event.step,
                event.message,
                event.incarnation,
            )
            for event in fresh
        )

    def _new_marks(self, now_s: float) -> tuple[tuple[float, str], ...]:
        """Warnings of the analysis since the last call, and whether records were lost."""
        start_s = self._reducer.state.started_s
        marks = [
            (event.unix_s - start_s, event.kind)
            for event in self._reducer.state.log.all()
            if event.severity != "info" and event.unix_s - start_s > self._taken.marked_s
        ]
        if marks:
            self._taken.marked_s = max(mark_s for mark_s, _ in marks)
        lost = int(self._reducer.state.table.lost_records.sum())
        if lost > self._taken.lost:
            marks.append((now_s, LOST))
        self._taken.lost = lost
        return tuple(marks)
