"""The group's history for the recording: a few points of many steps, and the ranks' best times."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ddptop.analysis.frames import History
from ddptop.analysis.reducer import Reducer
from ddptop.recording.past import GROUP, Found, Past, joined, picked

MOST_COARSE = 256
"""A group of 16,384 steps: the history in memory holds several of them."""

LOST = "lost_records"
"""The mark of a moment by which records had been lost since the moment before."""

COLUMNS = tuple(field.name for field in fields(History) if field.name != "start")


class PastPoints:
    """Tells the writer what has been added to the history since it last asked."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._cursor: int | None = None
        self._lost = 0
        self._marked_s = 0.0
        self._told: set[tuple[float, str]] = set()

    def take(self, *, final: bool, coarser: int = 1) -> Past | None:
        """New points in whole groups of steps, or with `final` all of them; None where there are none.

        `coarser`: in how many times as many steps as usual there shall be one point.
        """
        group = GROUP * min(coarser, MOST_COARSE)
        reducer = self._reducer
        end = reducer.history_end
        begin = reducer.history.since(0).start
        first = begin if self._cursor is None else max(begin, self._cursor)
        stop = end if final else first + (end - first) // group * group
        if stop <= first:
            return None
        self._cursor = stop
        points = reducer.history.since(first)
        columns = {name: getattr(points, name)[: stop - first] for name in COLUMNS}
        groups = [
            picked({name: column[at : at + group] for name, column in columns.items()})
            for at in range(0, stop - first, group)
        ]
        window = reducer.figures.detail
        best = np.full(reducer.figures.world, np.nan) if window is None else window.best_self
        marks = self._marks(float(columns["time_s"][-1]))
        return Past(joined(groups), np.asarray(best, np.float64), marks, self._found())

    def _found(self) -> tuple[Found, ...]:
        """What happened since the last time, in words."""
        there = self._reducer.log.all()
        fresh = [one for one in there if (one.unix_s, one.kind) not in self._told]
        self._told = {(one.unix_s, one.kind) for one in there}
        start_s = self._reducer.started_s
        return tuple(
            Found(
                one.unix_s - start_s,
                one.kind,
                one.severity,
                one.rank,
                one.step,
                one.message,
                one.incarnation,
            )
            for one in fresh
        )

    def _marks(self, now_s: float) -> tuple[tuple[float, str], ...]:
        """What the analysis found since the last time, and that records were lost."""
        start_s = self._reducer.started_s
        found = [
            (one.unix_s - start_s, one.kind)
            for one in self._reducer.log.all()
            if one.severity != "info" and one.unix_s - start_s > self._marked_s
        ]
        if found:
            self._marked_s = max(at for at, _ in found)
        lost = sum(member.lost_records for member in self._reducer.members)
        if lost > self._lost:
            found.append((now_s, LOST))
        self._lost = lost
        return tuple(found)
