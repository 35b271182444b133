"""The table of ranks: a row each, with a bar of where its step went."""

from __future__ import annotations

import re

from ddptop.render import table
from ddptop.render.highlight import marked
from ddptop.render.line import Line
from ddptop.render.numbers import counted, fixed
from ddptop.render.rank_table import BOUND, mark, rank_columns
from ddptop.render.text import cells, fit
from ddptop.tui import match
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.rank_order import SORTS, ordered

GUTTER = 2
"""Cursor and mark of the culprit, left of every row."""

LEAST_BAR = 20
"""Cells below which a bar of seven parts tells nothing."""

BAR_SHARE = 0.22
"""Part of a wide screen that the bar keeps before further columns may come."""


def rank_table(scene: Scene, width: int, height: int) -> list[Line]:
    """Titles and `height - 1` rows. Also notes in the place what is on the screen, for the keys."""
    bar = width if width < LEAST_BAR + 20 else max(LEAST_BAR, int(width * BAR_SHARE))
    columns = table.fitting(rank_columns(scene), width - GUTTER - bar - 2 if bar < width else width - GUTTER)
    bar = width - GUTTER - table.total(columns) - 2
    bar = bar if bar >= min(LEAST_BAR, width // 3) else 0
    order = ordered(scene, height - 1)
    _note(scene.place, columns, order)
    lines = [_titles(scene, columns, bar)]
    pattern = match.shown(scene.place.searched)
    for at in scene.place.scroll.window(len(order), height - 1):
        lines.append(_row(scene, columns, order[at], bar, pattern))
    if not order:
        lines.append(Line("  ").add(_nobody(scene), "dim"))
    return lines


def _note(place: Place, columns: list[table.Column], order: list[int]) -> None:
    place.sortable = tuple(column.title for column in columns if column.title != BOUND)
    place.order = tuple(order)
    if place.rank in place.order:
        place.scroll.cursor = place.order.index(place.rank)


def _titles(scene: Scene, columns: list[table.Column], bar: int) -> Line:
    line = Line(" " * GUTTER).extend(table.head(columns, 1, scene.place.sort, _sign(scene.place)))
    if bar:
        scale = f"{fixed(scene.breakdown.full_ms)} ms" if scene.breakdown.full_ms else ""
        title = "where the step went" if bar >= 32 else "its step"
        line.add(" ┃", "rule").add(fit(title, bar - cells(scale)), "dim").add(scale, "dim")
    return line


def _sign(place: Place) -> str:
    falling = place.sort in SORTS and SORTS[place.sort][1]
    return "▾" if falling != place.inverted else "▴"


def _row(
    scene: Scene, columns: list[table.Column], rank: int, bar: int, pattern: re.Pattern[str] | None
) -> Line:
    chosen = rank == scene.place.rank
    sign = ("▶" if scene.place.follow else "▸") if chosen else " "
    line = Line(sign, "accent", ground="cursor" if chosen else "")
    line.add(*mark(scene, rank))
    body = table.body(columns, rank)
    line.extend(body if pattern is None else _with_matches(columns, body, pattern))
    line.target = rank
    if bar:
        line.add(" ┃", "rule").extend(scene.breakdown.bar(rank, bar, scene.ascii_only))
    return line


def _with_matches(columns: list[table.Column], body: Line, pattern: re.Pattern[str]) -> Line:
    """Matches are marked where the filter looks: in words, not in figures."""
    line = Line()
    for at, piece in enumerate(body.pieces):
        title = columns[at // 2].title if at % 2 == 0 else ""  # gaps stand between the columns
        line.pieces += marked(piece, pattern) if title in ("host", "dev", "state") else [piece]
    line.width = body.width
    return line


def _nobody(scene: Scene) -> str:
    if scene.place.filter and scene.frame.ranks.state:
        return f"no rank matches {scene.clean(scene.place.filter)!r}: Esc shows all"
    return "no rank has reported yet"


def tally(scene: Scene) -> str:
    """How many ranks of how many are shown, and what is lost."""
    frame, place = scene.frame, scene.place
    total = len(frame.ranks.state)
    seen = min(len(place.order), place.scroll.page)
    words = [counted(total, "rank")]
    if len(place.order) < total:
        words = [f"{len(place.order):,} of {words[0]}"]
    if 0 < seen < len(place.order):
        words[0] = f"{place.scroll.top + 1:,}–{place.scroll.top + seen:,} of {words[0]}"
    if place.follow:
        words.append(f"following rank {place.rank}")
    if place.filter:
        words.append(f"filter {scene.clean(place.filter)!r}")
    if frame.run.nodes > 1:
        words.append(counted(frame.run.nodes, "node"))
    if frame.group.clock_free:
        words.append("~ clock-free")
    if frame.lost_records:
        words.append(f"{counted(frame.lost_records, 'record')} lost")
    return " · ".join(words)
