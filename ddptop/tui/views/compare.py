"""Two ranks side by side, figure by figure, with the sign and size of what lies between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import UNKNOWN, count, fixed, known, loss, size
from ddptop.tui.paint.phases import PARTS
from ddptop.tui.paint.text import fit, fit_tail
from ddptop.tui.scene import Scene
from ddptop.tui.views.rank_columns import state_piece
from ddptop.tui.views.text_page import text_page

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column

MOST_NAME, MOST_FIGURE = 22, 18

SIGNED = 2
"""Cells that a difference may be wider than a figure."""

BARS_BESIDE = 60
"""Cells from which a quarter of the room is left to bars."""

BARS_FROM = 6
"""Cells of a bar below which a difference is not worth drawing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the comparison. `worse`: +1 where more of it is worse, -1 where less is, 0: neither."""

    name: str
    values: Column
    text: Callable[[float | None], str]
    worse: int = 0


def compare(scene: Scene, width: int, height: int) -> list[Line]:
    """The marked rank on the left, the one under the cursor on the right, and right minus left."""
    place, total = scene.place, len(scene.frame.ranks.state)
    if place.marked is None or place.marked >= total or place.rank >= total:
        return [
            rule(width, "compare"),
            Line("  c on the overview marks a rank; then c on another one", "dim"),
        ]
    left, right = place.marked, place.rank
    lines = [rule(width, f"rank {left} and rank {right}", "c changes sides" if width >= 60 else "")]
    name = min(MOST_NAME, width // 3)
    cell = min(MOST_FIGURE, (width - name - SIGNED) // (4 if width >= BARS_BESIDE else 3))
    head = Line(" " * name)
    for rank in (left, right):
        head.add(fit(f"rank {rank}", cell, True), "accent")
    lines.append(head.add(fit("difference" if width >= BARS_BESIDE else "more", cell + SIGNED, True), "dim"))
    body = [*_words(scene, name, left, right, cell), *_figures(scene, name, left, right, cell, width), Line()]
    body += _buckets(scene, left, right)
    return [*lines, *text_page(scene, body, height - len(lines))]


def _words(scene: Scene, wide: int, left: int, right: int, cell: int) -> list[Line]:
    ranks = scene.frame.ranks
    lines = []
    for name, texts in (("host", ranks.host), ("device", ranks.device), ("phase", ranks.phase)):
        line = Line("  ").add(fit(name, wide - 2), "dim")
        for rank in (left, right):
            line.add(" ").add(_tail(scene.clean(texts[rank]) or UNKNOWN, cell - 1))
        lines.append(line)
    state = Line("  ").add(fit("state", wide - 2), "dim")
    for rank in (left, right):
        text, role = state_piece(scene, rank, cell - 1)
        state.add(" ").add(fit(text, cell - 1, True), role)
    return [state, *lines]


def _tail(text: str, width: int) -> str:
    """Set to the right, cut at the front."""
    return fit(fit_tail(text, width).strip(), width, True)


def _figures(scene: Scene, wide: int, left: int, right: int, cell: int, width: int) -> list[Line]:
    figures = _all(scene)
    room = width - wide - 3 * cell - SIGNED - 3
    lines = []
    for figure in figures:
        one, two = float(figure.values[left]), float(figure.values[right])
        apart = two - one
        line = Line("  ").add(fit(figure.name, wide - 2), "dim")
        line.add(fit(figure.text(one), cell, True)).add(fit(figure.text(two), cell, True))
        line.add(fit(_signed(figure, apart, one), cell + SIGNED, True), "strong" if apart else "faint")
        scale = float(np.nanmax(np.abs(figure.values))) if np.isfinite(figure.values).any() else 0.0
        if room >= BARS_FROM and figure.worse and known(apart) and scale > 0:
            cells = min(room, round(abs(apart) / scale * room))
            worse = apart * figure.worse > 0
            # A sign as well: which of the two is worse must not be told by colour alone.
            line.add(f" {'▲' if worse else '▾'}" if cells else "  ", "warn" if worse else "good")
            line.add("█" * cells, "warn" if worse else "good")
        lines.append(line)
    return lines


def _signed(figure: Figure, apart: float, beside: float) -> str:
    if not known(apart):
        return UNKNOWN
    text = figure.text(abs(apart))
    decimals = figure.text(beside).partition(".")[2]
    if "e" in text and decimals.isdecimal():  # as many places as the figures that it stands beside
        text = f"{abs(apart):.{len(decimals)}f}"
    if not any(letter in "123456789" for letter in text):
        return "0"
    return f"{'+' if apart > 0 else '−'}{text}"


def _all(scene: Scene) -> list[Figure]:
    ranks, free = scene.frame.ranks, scene.frame.group.clock_free

    def told(column: Column) -> Column:
        return np.full_like(column, np.nan) if free else column

    parts = np.where(scene.breakdown.known, scene.breakdown.ms, np.nan)
    return [
        Figure("step", ranks.step, count, -1),
        Figure("loss", ranks.loss, loss, 0),
        Figure("ms/step", ranks.step_ms, fixed, 1),
        *(Figure(f"{part.name} ms", parts[at], fixed, _worse(part.name)) for at, part in enumerate(PARTS)),
        Figure("collectives ms", ranks.collective_ms, fixed, 1),
        Figure("late ms", told(ranks.lateness_ms), fixed, 1),
        Figure("± ms", told(ranks.bound_ms), fixed, 0),
        Figure("comes last %", told(ranks.last_pct), lambda value: fixed(value, 0), 1),
        Figure("score", ranks.relative_score, lambda value: fixed(value, 2), -1),
        Figure("own best", ranks.individual_score, lambda value: fixed(value, 2), -1),
        Figure("heard ms ago", ranks.age_ms, lambda value: fixed(value, 0), 0),
        Figure("memory", ranks.rss_bytes, size, 0),
        Figure("cpu %", ranks.cpu_pct, lambda value: fixed(value, 0), 0),
        Figure("records lost", ranks.lost_records, count, 1),
    ]


def _worse(part: str) -> int:
    """More waiting is the other rank's fault."""
    return 0 if part == "wait" else 1


def _buckets(scene: Scene, left: int, right: int) -> list[Line]:
    """In which buckets either is most often the last: a frame has no more of buckets by rank."""
    lines = []
    for rank in (left, right):
        own = [bucket for bucket in scene.frame.buckets if bucket.last_arriver == rank]
        if own and not scene.frame.group.clock_free:
            names = ", ".join(f"{b.index} ({fixed(b.last_arriver_pct, 0, '%')})" for b in own)
            lines.append(
                Line(f"  rank {rank} ", "strong").add(f"is most often last in bucket {names}", "dim")
            )
    return lines or [Line("  neither is most often the last in any bucket", "dim")]
