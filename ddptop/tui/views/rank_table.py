"""The table of ranks: a row each, with a bar of where its step went."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui import match
from ddptop.tui.paint import table
from ddptop.tui.paint.highlight import marked
from ddptop.tui.paint.line import Line, Piece, Role
from ddptop.tui.paint.numbers import UNKNOWN, count, counted, duration, fixed, known, loss, size
from ddptop.tui.paint.signs import of_state
from ddptop.tui.paint.text import cells, clean, fit
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.rank_order import SORTS, ordered

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column, Frame

GUTTER = 2
"""Cursor and mark of the culprit, left of every row."""

BOUND = "±"
"""Title of the column beside the lateness: how far that may be wrong."""

LEAST_BAR = 20
"""Cells below which a bar of seven parts tells nothing."""

BAR_SHARE = 0.22
"""Part of a wide screen that the bar keeps before further columns may come."""

STATE_WIDTH = 10
"""`◌ stale 9s`, `✓ finished`."""


def rank_table(scene: Scene, width: int, height: int) -> list[Line]:
    """Titles and `height - 1` rows. Also notes in the place what is on the screen, for the keys."""
    bar = width if width < LEAST_BAR + 20 else max(LEAST_BAR, int(width * BAR_SHARE))
    columns = table.fitting(_columns(scene), width - GUTTER - bar - 2 if bar < width else width - GUTTER)
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


def state_piece(scene: Scene, rank: int, width: int = STATE_WIDTH) -> Piece:
    """Sign and word; a silent rank also shows for how long."""
    ranks = scene.frame.ranks
    word, age = ranks.state[rank], silent_or_stuck_ms(scene.frame, rank)
    sign, role = of_state(word)
    text = f"{sign} {word}"
    if word in ("stale", "stalled", "lost") and known(age):
        aged = f"{text} {age / 1e3:.0f}s"
        text = aged if cells(aged) <= width else text
    return text, "dim" if word == "live" and width == STATE_WIDTH else role


def silent_or_stuck_ms(frame: Frame, rank: int) -> float:
    """Since it was heard of; of a stalled rank, since the step last moved (NaN: not known)."""
    if frame.ranks.state[rank] != "stalled":
        return float(frame.ranks.age_ms[rank])
    return (frame.unix_s - frame.stall.since_s) * 1e3 if frame.stall is not None else float("nan")


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
    mark, role = _mark(scene, rank)
    line.add(mark, role)
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


def _mark(scene: Scene, rank: int) -> Piece:
    """To be compared; whom a stall is due to; whom the others wait for at every step."""
    if rank == scene.place.marked:
        return "◆", "accent"
    if rank in scene.blamed:
        return "■", "bad"
    return ("▲", "warn") if rank in scene.culprits else (" ", "text")


def _nobody(scene: Scene) -> str:
    if scene.place.filter and scene.frame.ranks.state:
        return f"no rank matches {scene.clean(scene.place.filter)!r}: Esc shows all"
    return "no rank has reported yet"


def _columns(scene: Scene) -> list[table.Column]:
    ranks = scene.frame.ranks
    one_host = len(set(ranks.host)) <= 1
    last = max(0, len(ranks.state) - 1)
    bounds = _told(scene, ranks.bound_ms)
    columns = [
        table.Column("rank", max(5, len(str(last))), lambda rank: (str(rank), _name_role(scene, rank)), 99),
        _text(scene, "host", without_domain(ranks.host), 5 if one_host else 75, 16),
        _text(scene, "dev", ranks.device, 70, 8),
        table.Column("state", STATE_WIDTH, lambda rank: state_piece(scene, rank), 98, right=False),
        _number("step", ranks.step, count, 84, "dim"),
        _number("loss", ranks.loss, loss, 80, "text"),
        _number("ms/step", ranks.step_ms, fixed, 85, "text"),
        _number("late", _told(scene, ranks.lateness_ms), fixed, 60, "text"),
        _number(BOUND, bounds, _bound, 59, "faint"),
        _number("last%", _told(scene, ranks.last_pct), lambda value: fixed(value, 0), 42, "text"),
        _number("data", ranks.data_ms, fixed, 58, "text"),
        _number("fwd", ranks.forward_ms, fixed, 57, "text"),
        _number("bwd", ranks.backward_ms, fixed, 56, "text"),
        _number("opt", ranks.optimizer_ms, fixed, 48, "text"),
        _number("other", ranks.other_ms, fixed, 46, "text"),
        _number("wait", ranks.wait_ms, _split(scene), 55, "text"),
        _number("move", ranks.transfer_ms, _split(scene), 54, "text"),
        _number("score", ranks.relative_score, lambda value: fixed(value, 2), 61, "text"),
        _number("mem", ranks.rss_bytes, size, 40, "dim"),
        _number("cpu%", ranks.cpu_pct, lambda value: fixed(value, 0), 39, "dim"),
        _number("lost", ranks.lost_records, count, 38, "dim"),
    ]
    return [column for column in columns if column.title != BOUND or np.isfinite(bounds).any()]


def _name_role(scene: Scene, rank: int) -> Role:
    return _mark(scene, rank)[1] if rank in scene.blamed or rank in scene.culprits else "strong"


def _told(scene: Scene, column: Column) -> Column:
    """Who came when, where the clocks can tell it; nothing elsewhere."""
    return np.full_like(column, np.nan) if scene.frame.group.clock_free else column


def _bound(value: float | None) -> str:
    return f"±{fixed(value)}" if known(value) else UNKNOWN


def _split(scene: Scene) -> Callable[[float | None], str]:
    """Wait and transfer; a sign in front of what the clock-free fallback found."""
    if not scene.frame.group.clock_free:
        return fixed
    return lambda value: f"~{fixed(value)}" if known(value) else UNKNOWN


def _text(scene: Scene, title: str, texts: tuple[str, ...], keep: int, most: int) -> table.Column:
    width = min(most, max(cells(title), _widest(texts, scene.ascii_only)))
    return table.Column(
        title, width, lambda rank: (scene.clean(texts[rank]) or UNKNOWN, "dim"), keep, right=False, tail=True
    )


@lru_cache(maxsize=2)
def without_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """`gpu017.cluster.local` as `gpu017`, where that still tells all hosts apart."""
    short = {host: host.partition(".")[0] for host in set(hosts)}
    if len(set(short.values())) < len(short) or any(name.isdecimal() for name in short.values()):
        return hosts  # several of one name, or addresses
    return tuple(short[host] for host in hosts)


@lru_cache(maxsize=4)
def _widest(texts: tuple[str, ...], ascii_only: bool) -> int:
    """Hosts and devices of thousands of ranks do not change from picture to picture."""
    return max((cells(clean(text, ascii_only)) for text in set(texts)), default=0)


def _number(
    title: str, column: Column, text: Callable[[float | None], str], keep: int, role: Role
) -> table.Column:
    there = column[np.isfinite(column)]
    extremes = (float(there.min()), float(there.max())) if len(there) else ()
    width = max(cells(title) + 1, *(cells(text(value)) for value in (*extremes, None)))

    def cell(rank: int) -> Piece:
        value = float(column[rank])
        return (text(value), role) if known(value) else (UNKNOWN, "faint")

    return table.Column(title, width, cell, keep)


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


def silence(age_ms: float) -> str:
    """How long ago something was heard."""
    return f"{duration(age_ms / 1e3)} ago" if known(age_ms) else UNKNOWN
