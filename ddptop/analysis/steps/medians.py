"""Medians over detailed steps, computed when a frame is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ddptop.analysis.steps.windows import FREE
from ddptop.frames.statistics import mean, median

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow
    from ddptop.frames.columns import Column, Indices

Figure = TypeVar("Figure")

FEWEST_DETAILED = 3
"""Least detailed steps to compare ranks: as many as 100 steps have when every 32nd has detail."""


class DetailMedians:
    """Medians over some detailed steps; unknown where there are none.

    Where the clocks are too inaccurate, wait and transfer are the clock-free fallback, and lateness, skew and
    last arrivers are unknown.
    """

    def __init__(self, window: DetailWindow | None, slots: Indices, world: int) -> None:
        self.window = window
        self.slots = slots
        self.enough = len(slots) >= FEWEST_DETAILED
        """Whether there are enough steps to compare ranks."""
        self.clock_free = window is not None and window.clock_free
        self.unknown: Column = np.full(world, np.nan)

    def ranks(self, name: str) -> Column:
        """(ranks,) median of one column."""
        name = self.name(name)
        return self._once(name, lambda window: median(window.ranks.of(name, self.slots)), self.unknown)

    def over_ranks(self, name: str) -> float | None:
        """Median over the steps of the mean over ranks."""

        def middle(window: DetailWindow) -> float | None:
            return number_or_none(median(mean(window.ranks.of(self.name(name), self.slots).T)))

        return self._once(f"{name} over ranks", middle, None)

    def _once(self, what: str, compute: Callable[[DetailWindow], Figure], unknown: Figure) -> Figure:
        """A figure of the window; computed where no frame had it of the same steps."""
        window = self.window
        if window is None or not len(self.slots):
            return unknown
        key = what, self.slots.tobytes(), tuple([scope.clock_free for scope in window.scopes.values()])
        if key not in window.figures:
            window.figures[key] = compute(window)
        figure: Figure = window.figures[key]
        return figure

    def name(self, name: str) -> str:
        """The column to read: `name`, or its clock-free fallback."""
        free = f"free_{name}"
        return free if self.clock_free and free in FREE else name

    def group(self, name: str) -> float | None:
        """Median of a scalar of the step."""
        if self.window is None or not len(self.slots):
            return None
        name = "free_busbw" if self.clock_free and name == "busbw" else name
        return number_or_none(median(self.window.group.of(name, self.slots)))

    def lateness(self) -> Column:
        """(ranks,) median lateness; for a rank in several process groups the largest in absolute value."""
        return self._largest("lateness", lambda window, slots: median(window.ranks.of("lateness", slots)))

    def lateness_of(self, ranks: Indices, slots: Indices) -> Column:
        """(k, n) lateness of k ranks, in ascending order, in n single steps; for a rank in several process
        groups the largest in absolute value."""
        lateness = np.full((len(ranks), len(slots)), np.nan)
        for window in self.window.scopes.values() if self.window is not None else ():
            if window.clock_free:
                continue
            _, places, members = np.intersect1d(ranks, window.members, return_indices=True)
            values, before = window.ranks.of("lateness", slots, members), lateness[places]
            with np.errstate(invalid="ignore"):
                larger = np.abs(values) > np.fmax(np.abs(before), -1.0)
            lateness[places] = np.where(larger, values, before)
        return lateness

    @property
    def bound(self) -> Column:
        """(ranks,) how far lateness and wait may be wrong; NaN where the clocks were not compared."""
        return self._largest("bound", self.bound_of, judged_only=False)

    def bound_of(self, window: ScopeWindow, slots: Indices) -> Column:
        """(members,) the bound of one process group over all its detailed steps among these, `slots`."""
        # By the window's id: its `scope` holds the numbers of all ranks.
        return self._once(f"bound of {id(window)}", lambda _: window.bound_ms(slots), self.unknown)

    @property
    def transfer_bound(self) -> Column:
        """(ranks,) how far the transfer time may be wrong.

        An end is stamped by a callback, which can only run late. An all-reduce ends at about the same time on
        all ranks, so the time from the first stamp to this rank's own may be delay of its callback. The bound
        is this time summed over the all-reduces of the step (or the delay that the rank's timer measured, if
        that is larger) plus the bound of the last arrival.
        """
        return self._largest(
            "transfer_bound",
            lambda window, slots: median(window.ranks.of("spread", slots)) + self.bound_of(window, slots),
        )

    def last_pct(self) -> Column:
        """(ranks,) percent of the steps in which each came last; the largest over its process groups."""

        def share(window: ScopeWindow, slots: Indices) -> Column:
            members = len(window.members)
            last = window.group.of("last", slots)
            if len(slots) < FEWEST_DETAILED:
                return np.full(members, np.nan)
            count = np.bincount(last[last >= 0].astype(np.int64), minlength=members)
            return np.asarray(100.0 * count / len(slots))

        return self._largest("last_pct", share)

    def _largest(
        self, what: str, measure: Callable[[ScopeWindow, Indices], Column], *, judged_only: bool = True
    ) -> Column:
        """(ranks,) of the values in a rank's process groups the one with the largest absolute value.

        `judged_only`: leave out groups whose clocks are too inaccurate."""

        def largest(detail: DetailWindow) -> Column:
            largest_ms: Column = self.unknown.copy()
            for window in detail.scopes.values():
                slots = window.with_detail(self.slots)
                if not len(slots) or (judged_only and window.clock_free):
                    continue
                values = measure(window, slots)
                before = largest_ms[window.members]
                with np.errstate(invalid="ignore"):
                    keep = np.isnan(values) | (np.abs(before) >= np.abs(values))
                largest_ms[window.members] = np.where(keep, before, values)
            return largest_ms

        return self._once(what, largest, self.unknown)


def number_or_none(value: Column | float) -> float | None:
    """A scalar; None where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None
