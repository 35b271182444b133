"""Areas in blocks, eight levels to a cell; or in ASCII."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.line import Line, Role

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.tui.paint.chart import Scale

_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN = " ____####"
"""The same in ASCII: less than half a cell, and more."""


def area(values: Column, scale: Scale, height: int, role: Role, ascii_only: bool) -> list[Line]:
    """One value per cell, filled from the bottom; NaN leaves a gap. `height` lines, the topmost first."""
    eighths = _eighths(values, scale, height)
    letters = _PLAIN if ascii_only else _LEVELS
    return [
        Line("".join(map(letters.__getitem__, level)), role)
        for level in np.clip(eighths - 8 * np.arange(height)[::-1, None], 0, 8).tolist()
    ]


def _eighths(values: Column, scale: Scale, height: int) -> Column:
    """How much of every column is filled; what is there and not nothing is seen."""
    there = np.isfinite(values) & (values > scale.low)
    share = np.minimum(1.0, (np.where(there, values, scale.low) - scale.low) / (scale.high - scale.low))
    return np.where(there, np.maximum(1, np.rint(share * 8 * height)), 0).astype(np.int64)
