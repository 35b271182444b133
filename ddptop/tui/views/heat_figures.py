"""The metrics of the heat map: their units, where a frame has them, and the five shades they are drawn in.

Shades are distinguished by glyph alone, and from dark to light in colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.figures import figures_shown
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.numbers import RATIO, UNKNOWN, count, fixed, known, loss
from ddptop.frames.statistics import interpolated_quantile, median
from ddptop.render.line import Line, combine_roles, join_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.render.line import Piece, Role
    from ddptop.tui.scene import Scene


FIGURES = {how.key: figure for figure, how in figures_shown(lambda figure: figure.heat)}
METRICS = {how.key: how for _, how in figures_shown(lambda figure: figure.heat)}
"""By key, in the order in which the map has them."""

OF_STEP = 0.02
"""Differences below this share of a step do not matter."""

OF_USUAL = 0.1
"""Nor do differences below this share of the usual value."""


def least_range(figure: str, usual: float | None, frame: Frame) -> float:
    """The range of values that gets no colour."""
    share = OF_USUAL * abs(usual or 0.0)
    if METRICS[figure].unit == "ms":
        return max(share, OF_STEP * (frame.group.step_ms_p50 or 0.0), 1e-3)
    return max(share, {"%": 10.0, "s": 2.0, "C": 5.0}.get(METRICS[figure].unit, 1e-4))


def title(figure: str, frame: Frame) -> str:
    """`data ms`, `~waiting ms`."""
    by_steps = frame.ranks.compared.any()
    sign = "~" if FIGURES[figure].has_fallback and frame.group.clock_free and not by_steps else ""
    return f"{sign}{FIGURES[figure].called} {METRICS[figure].unit}".rstrip()


def of_ranks(figure: str, frame: Frame) -> Column:
    """(ranks,) as they are now."""
    values = values_of_ranks(FIGURES[figure], frame)
    return np.asarray(values / METRICS[figure].scale, np.float64)


def under_cursor(
    scene: Scene,
    width: int,
    figure: str,
    rank: int,
    value: float,
    fold: int,
    what: str,
    step: int | None = None,
) -> Line:
    """Whose value it is, where that rank is, and of how many (`what` they are) it is the worst."""
    ranks = scene.frame.ranks
    there = rank < len(ranks.host)
    where = f"{scene.clean(ranks.host[rank])} {scene.clean(ranks.device[rank])}".strip() if there else ""
    unit = f" {METRICS[figure].unit}".rstrip()
    places = 1 if unit else RATIO
    text = loss(value) if figure == "loss" else fixed(value, places, unit if known(value) else "")
    hint = f"worst of {fold:,}{what}: Enter unfolds" if fold > 1 else "Enter: its page"
    return join_parts(
        [
            Line("▸ ", "accent").add(f"rank {rank}", "strong"),
            Line(f"{FIGURES[figure].called} ", "dim").add(text, "strong"),
            Line("step ", "dim").add(count(step)) if step is not None else Line(),
            Line(where, "dim"),
            Line(hint, "faint"),
        ],
        width,
    )


GLYPHS, PLAIN = "·░▒▓█", ".:+*#"
ROLES: tuple[Role, ...] = ("heat0", "heat1", "heat2", "heat3", "warn")
"""Of a shade. The lowest is little more than the ground: usual values are not emphasized."""

UNSEEN, UNSEEN_PLAIN = UNKNOWN, "-"
"""Where nothing is known; never a shade."""

RARE = 0.99
"""Percentile of the cells that the loudest shade begins near: one outlier must not hide all others."""


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

    def cells(self, levels: list[int | None], cell: int, chosen: int | None, ascii_only: bool) -> Line:
        """A row of the map with its edges, `cell` terminal cells a value (None: there is no rank). `chosen`
        stands in brackets, in its own shade."""
        edge: Piece = ("│", "rule")
        blank: Piece = (" ", "text")
        pieces = [edge]
        for level in levels:
            pieces += [blank if level is None else self.sign(level, ascii_only)] * cell
        pieces.append(edge)
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
