"""The heat map of hosts x local ranks, as they are now: hosts stand below each other, in several blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.columns import fold, folds
from ddptop.render.line import Line, gather
from ddptop.render.shades import Shades
from ddptop.render.text import cells, fit_tail
from ddptop.tui.views import heat_figures
from ddptop.tui.views.heat_figures import under_cursor
from ddptop.tui.views.heat_state import Grid

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.tui.scene import Scene
    from ddptop.tui.views.heat_state import HeatState

CELL, GAP = 2, 2
"""Terminal cells of a cell of the map, and between two blocks."""

LONGEST_NAME = 14

FOLDED = 3
"""Cells for how many more hosts a row stands for."""


def host_cells(scene: Scene, state: HeatState, width: int, room: int) -> tuple[Shades, list[Line], Line]:
    """The shades, the lines of the map, and the line that says what is under the cursor."""
    names, table = _table(scene)
    if state.count and state.first < len(names):
        stop = state.first + state.count
        names, table = names[state.first : stop], table[state.first : stop]
    values = heat_figures.of_ranks(state.figure, scene.frame)
    told = heat_figures.FIGURES[state.figure]
    usual = float(np.nanmedian(values)) if np.isfinite(values).any() else None
    least = heat_figures.least_range(state.figure, usual, scene.frame)
    if not len(names):
        state.grid = None
        return Shades.of(values, usual, least), [], Line("  no rank was heard yet", "dim")
    label = min(LONGEST_NAME, max(map(cells, names)) + (FOLDED if len(names) > room else 0)) + 1
    block = label + table.shape[1] * CELL + 2
    blocks = max(1, (width + GAP) // (block + GAP))
    edges = folds(len(names), room * blocks)
    value, rank = _folded(values, table, edges, told.down)
    shades = Shades.of(value, usual, least, down=told.down)
    offset = state.first if state.count else 0
    rows, columns = value.shape
    state.grid = Grid(
        *(1, label + 1, rows, columns, CELL, 1),
        tuple((int(edges[i]) + offset, int(edges[i + 1]) + offset) for i in range(rows)),
        tuple(int(who) if who >= 0 else None for who in rank.ravel().tolist()),
        lines=room,
        block=block + GAP,
    )
    state.settle()
    lines = _paint(scene, state, shades, names, edges, value, rank, label, room)
    return shades, lines, _under(scene, state, value, edges, names, width)


def _table(scene: Scene) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the hosts, in order of their first rank, and (hosts, local ranks) the rank, -1: none."""
    ranks = scene.frame.ranks
    hosts: dict[str, list[int]] = {}
    for rank, name in enumerate(ranks.host):
        hosts.setdefault(name, []).append(rank)
    places = np.where(np.isnan(ranks.local_rank), -1, ranks.local_rank).astype(np.int64)
    widest = max([int(places.max(initial=0)) + 1, *map(len, hosts.values())]) if hosts else 0
    if any(len({int(places[rank]) for rank in theirs}) < len(theirs) for theirs in hosts.values()):
        widest = max(map(len, hosts.values()))  # nobody told, or two jobs on a host: in order of rank
        places = np.full(len(places), -1)
    table: NDArray[np.int64] = np.full((len(hosts), max(1, widest)), -1, np.int64)
    for row, theirs in enumerate(hosts.values()):
        for at, rank in enumerate(theirs):
            table[row, places[rank] if places[rank] >= 0 else at] = rank
    return [scene.clean(name) or "?" for name in hosts], table


def _folded(
    values: NDArray[np.float64], table: NDArray[np.int64], edges: NDArray[np.int64], down: bool
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Worst value of every cell, and whose; of a cell without a known value its first rank; -1: no rank."""
    there = np.where(table >= 0, values[np.maximum(table, 0)], np.nan)
    value, who = fold(there, edges, worst_is_least=down)
    columns = np.arange(table.shape[1])[None]
    rank = table[np.where(np.isnan(who), 0, who).astype(np.int64), columns]
    first = np.maximum.reduceat(table, edges[:-1], axis=0)
    return value, np.where(np.isnan(who), first, rank)


def _paint(
    scene: Scene,
    state: HeatState,
    shades: Shades,
    names: list[str],
    edges: NDArray[np.int64],
    value: NDArray[np.float64],
    rank: NDArray[np.int64],
    label: int,
    room: int,
) -> list[Line]:
    levels = shades.levels(value)
    lines = [Line() for _ in range(min(room, len(value)))]
    for row in range(len(value)):
        line, here = lines[row % room], row == state.row
        line.add(" " * GAP if row >= room else "")
        first, stop = int(edges[row]), int(edges[row + 1])
        more = f"+{stop - first - 1}" if stop - first > 1 else ""
        name = fit_tail(names[first], label - 1 - len(more)) + more
        line.add("▸" if here else " ", "accent").add(name, "strong" if here else "dim").add("│", "rule")
        for column, level in enumerate(levels[row].tolist()):
            glyph, role = shades.sign(level, scene.ascii_only)
            if rank[row, column] < 0:
                glyph, role = " ", "text"
            if here and column == state.column:
                role = "badge"
            line.add(glyph * CELL, role)
        line.add("│", "rule")
    return lines


def _under(
    scene: Scene,
    state: HeatState,
    value: NDArray[np.float64],
    edges: NDArray[np.int64],
    names: list[str],
    width: int,
) -> Line:
    rank = state.rank()
    hosts = int(edges[state.row + 1] - edges[state.row])
    if rank is None:
        where = f"{names[int(edges[state.row])]} has no local rank {state.column}"
        return gather([Line("▸", "accent"), Line(where, "dim")], width, 1)
    return under_cursor(
        scene, width, state.figure, rank, float(value[state.row, state.column]), hosts, " hosts"
    )
