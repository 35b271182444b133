"""The table of ranks: which ranks, in which order, and a row each with a bar of where its step went."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render import table
from ddptop.render.line import PROBLEM_STATES, RED_STATES, Line, marked
from ddptop.render.numbers import counted, fixed
from ddptop.render.phases import PARTS, SHORT
from ddptop.render.rank_table import BOUND, mark, rank_columns
from ddptop.render.text import cells, fit
from ddptop.tui import match
from ddptop.tui.keys import Do
from ddptop.tui.scene import Place, Scene, Scroll

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Ranks

SORTS: dict[str, tuple[str, bool]] = {
    "step": ("step", False),
    "loss": ("loss", True),
    "ms/step": ("step_ms", True),
    "excess": ("excess_ms", True),
    "own": ("own_ms", True),
    "late": ("lateness_ms", True),
    "last%": ("last_pct", True),
    **{SHORT.get(part.name, part.name): (part.name, True) for part in PARTS},
    "mem": ("rss_bytes", True),
    "cpu%": ("cpu_pct", True),
    "lost": ("lost_records", True),
    "score": ("relative_score", False),
}
"""Sortable columns of numbers: field of `Ranks` or part of the step, and whether the largest comes first."""

COLUMNS = ("rank", "host", "dev", "state", *SORTS)
"""Everything that the table can be sorted by."""

_RANK_OF_STATE = {state: at for at, state in enumerate((*PROBLEM_STATES, "waiting", "live", "finished"))}


def ordered(scene: Scene, rows: int) -> list[int]:
    """Ranks that pass the filter, sorted. Where not all fit, those in trouble come before all others."""
    frame, place = scene.frame, scene.place
    chosen = passing(frame.ranks, place.filter)
    if place.follow and place.rank not in chosen and place.rank < len(frame.ranks.state):
        chosen = sorted([*chosen, place.rank])
    if place.sort == "rank" and not place.inverted:
        return chosen if len(chosen) <= rows else _trouble_first(scene, chosen)
    return _sorted(scene, chosen)


def _sorted(scene: Scene, chosen: list[int]) -> list[int]:
    """By the chosen column. What is not known comes last, whichever way round the rest is."""
    ranks, place = scene.frame.ranks, scene.place
    if place.sort in SORTS:
        name, falling = SORTS[place.sort]
        parts = [part.name for part in PARTS]
        column: Column = scene.breakdown.column(name) if name in parts else getattr(ranks, name)
        keys = -column if falling != place.inverted else column
        return [chosen[at] for at in np.argsort(keys[chosen], kind="stable").tolist()]
    if place.sort == "state":
        chosen.sort(key=lambda rank: _RANK_OF_STATE.get(ranks.state[rank], 0), reverse=place.inverted)
    elif place.sort in ("host", "dev"):
        texts = ranks.host if place.sort == "host" else ranks.device
        chosen.sort(key=texts.__getitem__, reverse=place.inverted)
    elif place.inverted:
        chosen.reverse()
    return chosen


def _trouble_first(scene: Scene, chosen: list[int]) -> list[int]:
    states, stragglers = scene.frame.ranks.state, {*scene.stragglers, *scene.responsible}
    front = [rank for rank in chosen if states[rank] in PROBLEM_STATES or rank in stragglers]
    lifted = set(front)
    front.sort(
        key=lambda rank: (
            rank not in scene.responsible,
            states[rank] not in RED_STATES,
            rank not in stragglers,
        )
    )
    return front + [rank for rank in chosen if rank not in lifted]


def passing(ranks: Ranks, typed: str) -> list[int]:
    """Ranks that a filter lets pass: numbers and spans are ranks, words are host, device, state or phase."""
    if not match.conditions(typed):
        return list(range(len(ranks.state)))
    return match.matching(typed, _texts(ranks.host, ranks.device, ranks.state, ranks.phase), number=int)


@lru_cache(maxsize=2)
def _texts(*columns: tuple[str, ...]) -> list[str]:
    """What is known of every rank in words; a frame is painted many times while a filter is typed."""
    return [" ".join(words).lower() for words in zip(*columns, strict=True)]


GUTTER = 2
"""Cursor and mark of the straggler, left of every row."""

MIN_BAR = 20
"""Cells below which a bar of seven parts is useless."""

BAR_SHARE = 0.22
"""Part of a wide screen that the bar keeps before further columns may come."""


@dataclass(frozen=True, slots=True)
class RankRows:
    """What of the table fits: its columns, the cells of the bar (0: none), the ranks in order."""

    columns: list[table.Column]
    bar: int
    order: list[int]
    scroll: Scroll
    shown: range
    """Rows of `order` that are on the screen."""

    @property
    def sortable(self) -> tuple[str, ...]:
        """Titles of the columns to sort by."""
        return tuple(column.title for column in self.columns if column.title != BOUND)


def rank_rows(scene: Scene, width: int, height: int) -> RankRows:
    """The columns that fit into `width`, and `height - 1` rows below their titles."""
    bar = width if width < MIN_BAR + 20 else max(MIN_BAR, int(width * BAR_SHARE))
    columns = table.fitting(rank_columns(scene), width - GUTTER - bar - 2 if bar < width else width - GUTTER)
    bar = width - GUTTER - table.total(columns) - 2
    bar = bar if bar >= min(MIN_BAR, width // 3) else 0
    order, scroll = ordered(scene, height - 1), scene.place.scroll
    if scene.place.rank in order:
        scroll = replace(scroll, cursor=order.index(scene.place.rank))
    return RankRows(columns, bar, order, *scroll.fitted(len(order), height - 1))


def rank_table(scene: Scene, rows: RankRows) -> list[Line]:
    """Titles and rows."""
    lines = [_titles(scene, rows.columns, rows.bar)]
    pattern = match.highlight_pattern(scene.place.searched)
    lines += [_row(scene, rows.columns, rows.order[at], rows.bar, pattern) for at in rows.shown]
    if not rows.order:
        lines.append(Line("  ").add(_no_rank(scene), "dim"))
    return lines


def _titles(scene: Scene, columns: list[table.Column], bar: int) -> Line:
    line = Line(" " * GUTTER).extend(table.head(columns, 1, scene.place.sort, _sign(scene.place), Do.SORT_BY))
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
        title = columns[at // 2].title if at % 2 == 0 else ""  # every second piece is a gap
        line.pieces += marked(piece, pattern) if title in ("host", "dev", "state") else [piece]
    line.width = body.width
    return line


def _no_rank(scene: Scene) -> str:
    if scene.place.filter and scene.frame.ranks.state:
        return f"no rank matches {scene.clean(scene.place.filter)!r}: Esc shows all"
    return "no rank has reported yet"


def tally(scene: Scene, rows: RankRows) -> str:
    """How many ranks of how many are shown, and what is lost."""
    frame, place, order, scroll = scene.frame, scene.place, rows.order, rows.scroll
    total = len(frame.ranks.state)
    seen = min(len(order), scroll.page)
    words = [counted(total, "rank")]
    if len(order) < total:
        words = [f"{len(order):,} of {words[0]}"]
    if 0 < seen < len(order):
        words[0] = f"{scroll.top + 1:,}–{scroll.top + seen:,} of {words[0]}"
    if place.follow:
        words.append(f"following rank {place.rank}")
    if place.filter:
        words.append(f"filter {scene.clean(place.filter)!r}")
    if frame.run.nodes > 1:
        words.append(counted(frame.run.nodes, "node"))
    if scene.clock_free:
        words.append("~ clock-free")
    if frame.lost_records:
        words.append(f"{counted(frame.lost_records, 'record')} lost")
    return " · ".join(words)
