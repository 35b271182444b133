"""Five shades for values: readable by glyph alone, and from dark to light and loud in colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.line import Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.columns import Column
    from ddptop.render.line import Role

GLYPHS, PLAIN = " ░▒▓█", " .:+#"
ROLES: tuple[Role, ...] = ("faint", "backward", "forward", "data", "warn")
"""Of a shade. The lowest is blank: what is as usual is to look calm."""

UNSEEN: tuple[str, Role] = ("·", "faint")
"""Where nothing is known; never a shade."""

RARE = 99.0
"""Percentile of the cells that the loudest shade begins near: one hiccup must not pale all other trouble."""


@dataclass(frozen=True, slots=True)
class Shades:
    """Four edges between five shades. `down`: small values are the bad ones."""

    edges: tuple[float, float, float, float]
    down: bool = False

    @classmethod
    def of(cls, values: Column, usual: float | None, least: float, *, down: bool = False) -> Shades:
        """From the usual value to the largest that is not rare; `least`: a range that does not matter."""
        known = values[np.isfinite(values)]
        sign = -1.0 if down else 1.0
        ranked = known * sign
        low = float(np.median(ranked)) if usual is None and len(ranked) else sign * (usual or 0.0)
        high = float(np.percentile(ranked, RARE)) if len(ranked) else low
        if high - low <= least and len(ranked):
            high = float(ranked[np.isfinite(ranked)].max())  # all others are calm: nothing to pale
        step = max(high - low, least) / 5
        first, second, third, fourth = (sign * (low + step * i) for i in range(1, 5))
        return cls((first, second, third, fourth), down)

    def levels(self, values: Column) -> Column:
        """0 to 4; -1 where a value is not known."""
        sign = -1.0 if self.down else 1.0
        found = np.searchsorted(np.array(self.edges) * sign, values * sign, side="left")
        return np.where(np.isnan(values), -1, found)

    def sign(self, level: int, ascii_only: bool) -> tuple[str, Role]:
        """Glyph and role of a level."""
        return UNSEEN if level < 0 else ((PLAIN if ascii_only else GLYPHS)[level], ROLES[level])

    def legend(self, words: Callable[[float], str], unit: str, ascii_only: bool) -> list[Line]:
        """Parts that say what every shade stands for."""
        to, beyond = (">=", "<") if self.down else ("<=", ">")
        if not ascii_only:
            to = "≥" if self.down else "≤"
        parts = []
        for level in range(5):
            glyph, role = self.sign(level, ascii_only)
            edge = f"{to}{words(self.edges[level])}" if level < 4 else f"{beyond}{words(self.edges[3])}"
            shown = (
                Line("[", "rule").add(glyph, role).add("]", "rule") if level == 0 else Line(glyph * 2, role)
            )
            parts.append(shown.add(f" {edge}", "dim"))
        parts[-1].add(f" {unit}" if unit else "", "dim")
        return [*parts, Line(*UNSEEN).add(" not known", "dim")]


def digits(shades: Shades) -> int:
    """Decimals that tell the edges apart."""
    step = abs(shades.edges[1] - shades.edges[0])
    return 0 if step >= 1 or step <= 0 else min(4, -math.floor(math.log10(step)))
