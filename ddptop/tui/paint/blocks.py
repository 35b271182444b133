"""Areas in blocks, eight levels to a cell; or in ASCII."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddptop.tui.paint.line import Line, Role

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.tui.paint.chart import Scale

_LEVELS = " ▁▂▃▄▅▆▇█"
_PLAIN = " ____####"
"""The same in ASCII: less than half a cell, and more."""


def area(values: Column, scale: Scale, height: int, role: Role, ascii_only: bool) -> list[Line]:
    """One value per cell, filled from the bottom; NaN leaves a gap. `height` lines, the topmost first."""
    eighths = [_eighths(value, scale, height) for value in values.tolist()]
    letters = _PLAIN if ascii_only else _LEVELS
    return [
        Line("".join(letters[min(8, max(0, value - 8 * above))] for value in eighths), role)
        for above in range(height - 1, -1, -1)
    ]


def _eighths(value: float, scale: Scale, height: int) -> int:
    """How much of the column is filled; what is there and not nothing is seen."""
    if not math.isfinite(value) or value <= scale.low:
        return 0
    share = min(1.0, (value - scale.low) / (scale.high - scale.low))
    return max(1, round(share * 8 * height))
