"""The five shades of a heat map: distinguished by glyph alone, and from dark to light in colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import UNKNOWN
from ddptop.frames.statistics import interpolated_quantile, median
from ddptop.render.line import Line, combine_roles

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.columns import Column
    from ddptop.render.line import Piece, Role

GLYPHS, PLAIN = "·░▒▓█", ".:+*#"
ROLES: tuple[Role, ...] = ("heat0", "heat1", "heat2", "heat3", "warn")
"""Role of each shade. The lowest is little more than the ground: usual values are not emphasized."""

UNSEEN, UNSEEN_PLAIN = UNKNOWN, "-"
"""Where nothing is known; never a shade."""

RARE = 0.99
"""Percentile of the cells that the loudest shade begins near: one outlier must not hide all others."""

LARGER, SMALLER = 3, 5
"""The shades stay as they are until the range of the values is LARGER times as large, or so small that all of
them would have the first of the five. Rare values come and go, and the range with them."""


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
        low = float(median(ranked)) if usual is None and len(ranked) else sign * (usual or 0.0)
        high = interpolated_quantile(ranked, RARE) if len(ranked) else low
        if high - low <= least and len(ranked):
            high = float(
                ranked[np.isfinite(ranked)].max()
            )  # all others are usual: the rare one sets the range
        step = max(high - low, least) / 5
        first, second, third, fourth = (sign * (low + step * i) for i in range(1, 5))
        return cls((first, second, third, fourth), down)

    def settle(self, before: Shades) -> Shades:
        """`before`, while the edges differ little from those: if they moved in every picture, cells would
        change whose values did not."""
        (low, width), (low_before, width_before) = self._range(), before._range()
        is_as_low = abs(low - low_before) <= width_before / 2
        is_as_wide = width_before / SMALLER <= width <= width_before * LARGER
        return before if is_as_low and is_as_wide else self

    def _range(self) -> tuple[float, float]:
        """The usual value, which the shades begin at, and how many units each of them has."""
        first, second, _, _ = self.edges
        return 2 * first - second, abs(second - first)

    def levels(self, values: Column) -> Column:
        """0 to 4; -1 where a value is not known."""
        sign = -1.0 if self.down else 1.0
        found = np.searchsorted(np.array(self.edges) * sign, values * sign, side="left")
        return np.where(np.isnan(values), -1, found)

    def sign(self, level: int, ascii_only: bool) -> tuple[str, Role]:
        """Glyph and role of a level."""
        if level < 0:
            return UNSEEN_PLAIN if ascii_only else UNSEEN, "faint"
        role = self.role(level)
        return (PLAIN if ascii_only else GLYPHS)[level], combine_roles(role, role)

    def role(self, level: int) -> Role:
        """The colour of a level."""
        return "faint" if level < 0 else ROLES[level]

    def cells(
        self,
        levels: list[int | None],
        cell: int,
        chosen: int | None,
        ascii_only: bool,
        parted_at: int | None = None,
    ) -> Line:
        """A row of the map with its edges, `cell` terminal cells a value (None: there is no rank). `chosen`
        stands in brackets, in its own shade; `parted_at`: the place of a further edge."""
        edge: Piece = ("│", "rule")
        blank: Piece = (" ", "text")
        pieces = [edge]
        for level in levels:
            pieces += [blank if level is None else self.sign(level, ascii_only)] * cell
        pieces.append(edge)
        if parted_at is not None:
            pieces[1 + parted_at * cell] = edge
        if chosen is not None:
            pieces[chosen * cell] = "[", "accent"
            pieces[(chosen + 1) * cell + 1] = "]", "accent"
        line = Line()
        for role, run in groupby(pieces, key=itemgetter(1)):
            line.add("".join(glyph for glyph, _ in run), role)
        return line

    def legend(self, words: Callable[[float], str], unit: str, ascii_only: bool) -> list[Line]:
        """Parts with the meaning of every shade."""
        to, beyond = (">=", "<") if self.down else ("<=", ">")
        if not ascii_only:
            to = "≥" if self.down else "≤"
        parts = []
        for level in range(5):
            glyph, role = self.sign(level, ascii_only)
            edge = f"{to}{words(self.edges[level])}" if level < 4 else f"{beyond}{words(self.edges[3])}"
            parts.append(Line(glyph * 2, role).add(f" {edge}", "dim"))
        parts[-1].add(f" {unit}" if unit else "", "dim")
        return [*parts, Line(*self.sign(-1, ascii_only)).add(" not known", "dim")]


def digits(shades: Shades) -> int:
    """Decimals that distinguish the edges."""
    step = abs(shades.edges[1] - shades.edges[0])
    return min(4, -math.floor(math.log10(step))) if 0 < step < 1 else 0  # a loss may be infinite
