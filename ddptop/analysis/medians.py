"""Medians over the judged detailed steps, taken when a frame is made and not before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import metrics
from ddptop.analysis.window import FEW_DETAILED

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.analysis.window import DetailWindow


class DetailMedians:
    """Medians over the judged detailed steps; all unknown while there are none."""

    def __init__(self, window: DetailWindow | None, end: int, world: int) -> None:
        self.window = window
        self.slots = window.judged(end) if window is not None else np.arange(0)
        self.unknown = np.full(world, np.nan)

    def ranks(self, name: str) -> Column:
        """(ranks,) median of one column."""
        values = self._of(name)
        return self.unknown if values is None else metrics.median(values)

    def over_ranks(self, name: str) -> float | None:
        """Median over the steps of the mean over ranks."""
        values = self._of(name)
        return None if values is None else known(metrics.median(metrics.mean(values.T)))

    def _of(self, name: str) -> Column | None:
        if self.window is None or not len(self.slots):
            return None
        return self.window.ranks.of(name, self.slots)

    def group(self, name: str, less: str | None = None) -> float | None:
        """Median of a scalar of the step, or of its difference to another."""
        if self.window is None or not len(self.slots):
            return None
        values = self.window.group.of(name, self.slots)
        if less is not None:
            values = values - self.window.group.of(less, self.slots)
        return known(metrics.median(values))

    def last_pct(self) -> Column:
        """(ranks,) share of the judged steps in which each came last."""
        if self.window is None or len(self.slots) < FEW_DETAILED:
            return self.unknown
        last = self.window.group.of("last", self.slots)
        last = last[last >= 0].astype(np.int64)
        if not len(last) and np.isnan(self.window.group.of("recoverable", self.slots)).all():
            return self.unknown  # clocks that cannot be compared
        return 100.0 * np.bincount(last, minlength=len(self.unknown)) / len(self.slots)


def known(value: Column | float) -> float | None:
    """A scalar; None where it is NaN or infinite."""
    number = float(value)
    return number if np.isfinite(number) else None
