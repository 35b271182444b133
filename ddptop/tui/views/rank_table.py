"""The table of ranks: a row each with the breakdown of its step as a bar; of many hosts a row per host.

A folded host shows the figures of its worst rank: the first one in the present order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ddptop.frames.columns import distinct_texts
from ddptop.frames.conditions import SILENT_STATES
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import RATIO, UNKNOWN, counted, fixed, known
from ddptop.frames.phrases import host_total, missing_records_phrase
from ddptop.protocol.vocabulary import ENDED
from ddptop.render import table
from ddptop.render.context import CALM, LEAST_SHARE_OF_STEP
from ddptop.render.hosts import NOT_RUNNING, figures_by_name, host_troubles
from ddptop.render.line import Line, Piece, Role, combine_roles, join_parts, split_matches
from ddptop.render.phases import ALL_PARTS
from ddptop.render.rank_table import host_state_piece, rank_columns, rank_mark, widest_text
from ddptop.render.text import fit_text, text_width
from ddptop.render.trouble import as_of
from ddptop.tui import match
from ddptop.tui.keys import Do
from ddptop.tui.scene import HostFolds, Place, Scene, Scroll, TableRows, host_of, host_row
from ddptop.tui.views.rank_order import (
    COLUMNS,
    SORTS,
    is_moving,
    order_rows,
    rows_of_ranks,
    worst_is_first,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ddptop.frames.columns import Column
    from ddptop.frames.hosts import HostFigures

GUTTER = 2
"""Cursor and mark of the straggler, left of every row."""

MIN_BAR = 20
"""Cells below which a bar of seven parts is useless."""

BAR_SHARE = 0.22
"""Part of a wide screen that the bar keeps before further columns may come."""

FEW_RANKS, WIDE, NUMBERED_BAR = 8, 110, 60
"""Ranks up to which a bar has numbers inside; cells of the table from which it keeps so many for it."""

LONGEST_HOST = 18

BAR_EDGE: Piece = (" ┃", "rule")
"""Between the columns and the bar."""

ALIKE = 0.05
"""Ranks are alike whose own times differ by at most this share of the step."""

GROUPED_KEEP = {
    "rank": 97,
    "ranks": 95,
    "lost": 96,
    "dev": 64,
    "loss": 62,
}
"""Which columns of the grouped table are left out last; others as in the table of ranks."""


@dataclass(frozen=True, slots=True)
class RankRows:
    """What of the table fits: its columns, the cells of the bar (0: none), the rows in order."""

    columns: list[table.TableColumn]
    bar: int
    table: TableRows
    scroll: Scroll
    shown: range
    """Rows of the table that are on the screen."""
    cursor: int | None
    """The row under the cursor; None: the filter hides it."""
    tall: int
    """Lines of a row."""
    moved: bool
    """The cursor is to be on this row from now on: its line stays, or no key has chosen another."""

    @property
    def sortable(self) -> tuple[str, ...]:
        """Titles of the columns to sort by."""
        return tuple(column.title for column in self.columns if column.title in COLUMNS)


LEAST_FOLD = 3
"""Lines of the table from which one of them tells of the ranks that have no row."""


def rank_rows(
    scene: Scene, width: int, height: int, tall: int = 1, ranks: list[int] | None = None
) -> RankRows:
    """The columns that fit into `width`, and below their titles the rows of `tall` lines that fit into
    `height`. `ranks`: only these, of one host."""
    room = (height - 1) // tall
    rows = order_rows(scene, room) if ranks is None else rows_of_ranks(scene, ranks)
    if len(rows.rows) > room and height >= LEAST_FOLD:
        room, tall = height - 2, 1
    offered = grouped_columns(scene, rows) if rows.grouped else rank_columns(scene)
    if ranks is not None:
        offered = [column for column in offered if column.title != "host"]
    offered = table.choose_columns(offered, scene.place.columns)
    least = (
        NUMBERED_BAR
        if width >= WIDE and len(scene.frame.ranks.state) <= FEW_RANKS
        else int(width * BAR_SHARE)
    )
    bar = width if width < MIN_BAR + 20 else max(MIN_BAR, least)
    columns = table.fit_columns(offered, width - GUTTER - bar - 2 if bar < width else width - GUTTER)
    shortest = min(MIN_BAR, width // 3)
    if rows.grouped and shortest < bar < width and all(column.title != "rank" for column in columns):
        columns = table.fit_columns(offered, width - GUTTER - shortest - 2)
    bar = width - GUTTER - table.total_width(columns) - 2
    bar = bar if bar >= shortest else 0
    place, scroll = scene.place, scene.place.scroll
    moving = is_moving(place, rows.grouped)
    stays_in_line = not place.pointed or (moving and place.cursor_as_shown)
    cursor: int | None = cursor_row(scene, rows)
    if stays_in_line and rows.rows:
        cursor = rows.rows[min(scroll.cursor, len(rows.rows) - 1) if place.pointed else 0]
    if cursor in rows.rows:
        scroll = replace(scroll, cursor=rows.rows.index(cursor))
    else:
        cursor = None
    moved = cursor is not None and (stays_in_line or moving)
    return RankRows(columns, bar, rows, *scroll.fitted(len(rows.rows), room), cursor, tall, moved)


def cursor_row(scene: Scene, rows: TableRows) -> int:
    """The row of the rank that a key has chosen, or of its host."""
    place, index = scene.place, host_index(scene.frame.ranks.host)
    if not rows.grouped or place.rank >= len(index.of_rank):
        return place.rank
    host = int(index.of_rank[place.rank])
    return host_row(host) if place.on_host or host in rows.folded else place.rank


def draw_rank_table(scene: Scene, rows: RankRows, width: int) -> list[Line]:
    """Titles and rows; below them what is common to the ranks that have no row."""
    lines = [_draw_titles(scene, rows)]
    pattern = match.highlight_pattern(scene.place.searched)
    shown = (rows.table.rows[index] for index in rows.shown)
    for row in shown:
        chosen = row == rows.cursor
        line = _draw_row(scene, rows, row, chosen, pattern)
        lines += [line, *(_draw_bar_again(rows, line) for _ in range(rows.tall - 1))]
    if len(rows.shown) < len(rows.table.rows):
        lines.append(_draw_hidden(scene, rows, width))
    if not rows.table.rows:
        lines.append(Line("  ").add(_no_rank(scene), "dim"))
    return lines


def draw_ranks_now(
    scene: Scene, width: int, height: int, *, tall: int = 1, ranks: list[int] | None = None
) -> list[Line]:
    """The table of all ranks on another page, or of those of a host, from its first row: without a cursor, a
    click opens a rank. `tall`: lines of a row."""
    place = scene.place
    own_place = replace(
        place,
        scrolls={**place.scrolls, place.view: Scroll()},
        filter="",
        follow=False,
        folds=HostFolds(),
    )
    scene = scene.at(own_place)
    rows = rank_rows(scene, width, height, tall, ranks)
    lines = draw_rank_table(scene, replace(rows, cursor=None), width)
    for line in lines:
        if line.target is not None:
            line.spot(0, width, Do.RANK(rows.table.rank(line.target)))
    return lines


def _draw_titles(scene: Scene, rows: RankRows) -> Line:
    place, bar = scene.place, rows.bar
    sort = None if worst_is_first(scene, rows.table.grouped) else place.sort
    line = Line(" " * GUTTER).extend(
        table.draw_head(rows.columns, 1, sort, _find_order_sign(place), Do.SORT_BY)
    )
    if bar:
        scale = f" {fixed(scene.breakdown.full_ms)} ms" if scene.breakdown.full_ms else ""
        old = as_of(scene.frame)
        scale = "" if text_width(old + scale) > bar else scale
        line.add(" ┃", "rule").add(fit_text(old or "breakdown", bar - text_width(scale)), "dim").add(
            scale, "dim"
        )
    return line


def _find_order_sign(place: Place) -> str:
    falling = place.sort in SORTS and SORTS[place.sort].largest_first
    return "▾" if falling != place.inverted else "▴"


def _draw_row(scene: Scene, rows: RankRows, row: int, chosen: bool, pattern: re.Pattern[str] | None) -> Line:
    place, host, rank = scene.place, host_of(row), rows.table.rank(row)
    shows_rank = host is None or host in rows.table.folded
    sign = ("▶" if place.follow and rank == place.rank else "▸") if chosen else " "
    line = Line(sign, "accent", ground="cursor" if chosen else "")
    line.add(*(rank_mark(scene, rank) if shows_rank else (" ", "text")))
    body = table.draw_row(rows.columns, row)
    line.extend(body if pattern is None else _with_matches(rows.columns, body, pattern))
    line.target = row
    if rows.bar:
        line = line.on_own_ground().add(*BAR_EDGE)  # on the ground of the cursor its end would hardly be seen
        if shows_rank:
            line.extend(draw_rank_bar(scene, rank, rows.bar, len(scene.frame.ranks.state)))
    return line


def draw_rank_bar(scene: Scene, rank: int, width: int, n_labelled: int) -> Line:
    """The parts of its step, with their names and times where they have room. `n_labelled`: of how many bars
    this is one, in which they are written; 0: not in this one."""
    names = _find_labelled(scene, rank, width, n_labelled) if n_labelled else ()
    return scene.breakdown.solid_bar(
        rank, width, scene.ascii_only, labelled=names, waits_for=_name_waited_for(scene)
    )


def _find_labelled(scene: Scene, rank: int, bar: int, n_bars: int) -> Collection[str]:
    """The parts of a rank's bar that are labelled: of a short bar, and of one of many, only what makes it
    slow."""
    if n_bars <= FEW_RANKS and bar >= NUMBERED_BAR // 2:
        return ALL_PARTS
    late = scene.frame.straggler
    return {str(late.cause)} if late is not None and rank in scene.stragglers else ()


def _draw_bar_again(rows: RankRows, above: Line) -> Line:
    """The further line of a row of two: the bar without what is written into it."""
    line = Line(ground=above.ground)
    line.target = above.target
    if not rows.bar:
        return line
    begin = next(index for index, piece in enumerate(above.pieces) if piece == BAR_EDGE)
    line.pad(GUTTER + table.total_width(rows.columns)).add(*BAR_EDGE)
    if above.pieces[-1][0] == UNKNOWN:
        return line
    part = ""
    for text, role in above.pieces[begin + 1 :]:
        front, _, ground = role.partition("/")
        solid = combine_roles(cast("Role", ground), cast("Role", ground)) if front == "ink" else role
        # A text stands between cells of its part: in ASCII, their letter tells the part.
        sign = part if part.isascii() else " "
        line.add(sign * len(text) if front == "ink" else text, solid)
        part = text[-1]
    return line


def _draw_hidden(scene: Scene, rows: RankRows, width: int) -> Line:
    """How many ranks have no row, how many of them stand out, and from where to where their times go: as much
    of it as fits."""
    shown = [rows.table.rows[index] for index in rows.shown]
    order, of_rank = np.array(rows.table.order), host_index(scene.frame.ranks.host).of_rank
    of_hosts = [host for host in map(host_of, shown) if host is not None and host in rows.table.folded]
    hidden = order[~(np.isin(order, shown) | np.isin(of_rank[order], of_hosts))]
    own_ms = scene.frame.ranks.own_ms if scene.by_steps else scene.frame.ranks.step_ms
    clauses = [Line(f"{'':{GUTTER}}+ {counted(len(hidden), 'more rank')}", "dim")]
    waiting = scene.frame.stall.waiting if scene.frame.stall is not None else ()
    n_unwell = int((scene.attention[0][np.setdiff1d(hidden, waiting)] < CALM).sum())
    clauses += [Line(f", {n_unwell:,} of them stand out", "warn")] if n_unwell else []
    unit = scene.frame.group.step_ms_p50 or 0.0
    own_span, lost_span = (
        _describe_span(values[hidden]) for values in (own_ms, scene.breakdown.column("wait"))
    )
    if own_span:
        alike = ", alike" if float(np.ptp(own_ms[hidden])) <= ALIKE * unit else ""
        clauses.append(Line(f"{alike}: {'own time' if scene.by_steps else 'step'} {own_span} ms", "dim"))
        clauses += [Line(f", lost {lost_span} ms", "dim")] if lost_span else []
    line = join_parts(clauses, width, 0)
    return line.spot(0, line.width, Do.PAGE(1))


def _describe_span(values: Column) -> str:
    """`269.9 to 270.1`; empty where a value is not known."""
    if not len(values) or not np.isfinite(values).all():
        return ""
    low, high = fixed(float(values.min())), fixed(float(values.max()))
    return low if low == high else f"{low} to {high}"


def _name_waited_for(scene: Scene) -> str:
    """The one rank that the others wait for; empty: none, or several."""
    return str(scene.stragglers[0]) if len(scene.stragglers) == 1 else ""


def _with_matches(columns: list[table.TableColumn], body: Line, pattern: re.Pattern[str]) -> Line:
    """Matches are marked in words, which the filter searches, not in figures."""
    line = Line()
    for index, piece in enumerate(body.pieces):
        title = columns[index // 2].title if index % 2 == 0 else ""  # every second piece is a gap
        line.pieces += split_matches(piece, pattern) if title in ("host", "dev", "state") else [piece]
    line.width = body.width
    return line


def _no_rank(scene: Scene) -> str:
    if scene.place.filter and scene.frame.ranks.state:
        return f"no rank matches {scene.clean(scene.place.filter)!r}: Esc shows all"
    return "each rank has a row once it reports"


# ---------------------------------------------------------------------- grouped by host


def grouped_columns(scene: Scene, rows: TableRows) -> list[table.TableColumn]:
    """The columns of the table with rows of hosts: those of ranks, after the host and how many ranks run."""
    figures, index = figures_by_name(scene.frame), host_index(scene.frame.ranks.host)
    running, total = _count_running(scene)
    ended = scene.frame.run.state in ENDED

    def of_host(row: int, text: Callable[[int], Piece]) -> Piece:
        host = host_of(row)
        return ("", "text") if host is None else text(host)

    def name(host: int) -> Piece:
        sign = "+" if host in rows.folded else "-"
        return f"{sign} {scene.clean(index.short[host]) or '–'}", "strong"

    def ranks(host: int) -> Piece:
        missing = running[host] < total[host] and not ended
        text = f"{total[host]}" if ended else f"{running[host]}/{total[host]}"
        return text, "warn" if missing else "dim"

    def bound(host: int) -> Piece:
        host_figures = figures.get(index.names[host])
        value = None if host_figures is None else host_figures.clock_bound_ms
        return (f"±{fixed(value, RATIO)}" if known(value) else "–"), "warn" if _is_wide(
            scene, host_figures
        ) else "dim"

    longest = widest_text(index.short, scene.ascii_only)
    figure_columns = [column for column in rank_columns(scene) if column.title != "host"]
    wide = any(_is_wide(scene, host_figures) for host_figures in figures.values())
    columns = [
        table.TableColumn("host", max(5, min(longest + 2, LONGEST_HOST)), lambda row: of_host(row, name), 100,
                     right=False, tail=longest >= LONGEST_HOST),
        table.TableColumn("ranks", max(5, 2 * len(str(max(total, default=0))) + 1),
                     lambda row: of_host(row, ranks), GROUPED_KEEP["ranks"]),
        *(_of_worst(scene, rows, column, figures) for column in figure_columns),
    ]  # fmt: skip
    if any(host_figures.clock_bound_ms for host_figures in figures.values()):
        keep = 91 if wide else 34
        columns.append(table.TableColumn("clock", 7, lambda row: of_host(row, bound), keep))
    return columns


def _of_worst(
    scene: Scene, rows: TableRows, column: table.TableColumn, figures: Mapping[str, HostFigures]
) -> table.TableColumn:
    """A column of ranks where a folded host shows its worst rank, and an unfolded one its own state alone."""
    cell, title, index = column.cell, column.title, host_index(scene.frame.ranks.host)

    def at(row: int) -> Piece:
        host = host_of(row)
        if host is None:
            return cell(row)
        if title == "state":
            host_figures = figures.get(index.names[host])
            if host_figures is not None and (host_figures.state in SILENT_STATES or host not in rows.folded):
                return host_state_piece(host_figures, column.width, scene.frame.source)
        return cell(rows.leads[host]) if host in rows.folded else ("", "text")

    return replace(column, cell=at, keep=GROUPED_KEEP.get(title, column.keep))


def _count_running(scene: Scene) -> tuple[list[int], list[int]]:
    """How many ranks of each host run, and how many there are; by host."""
    states, index = scene.frame.ranks.state, host_index(scene.frame.ranks.host)
    hosts = len(index.names)
    total = np.bincount(index.of_rank, minlength=hosts)
    any_stopped = not NOT_RUNNING.isdisjoint(distinct_texts(states))
    ended = [rank for rank, state in enumerate(states) if state in NOT_RUNNING] if any_stopped else []
    gone = np.bincount(index.of_rank[ended], minlength=hosts) if ended else 0
    return (total - gone).tolist(), total.tolist()


def _is_wide(scene: Scene, host: HostFigures | None) -> bool:
    """Whether the bound of a host's clock is a noticeable part of the step."""
    bound, step = None if host is None else host.clock_bound_ms, scene.frame.group.step_ms_p50
    return bound is not None and step is not None and bound > LEAST_SHARE_OF_STEP * step


def count_ranks(scene: Scene, rows: RankRows) -> str:
    """How many ranks, or hosts, of how many are shown, and what is lost."""
    frame, place = scene.frame, scene.place
    total, order = len(frame.ranks.state), rows.table.order
    words = _of_hosts(rows) if rows.table.grouped else _of_ranks(rows, total)
    if rows.table.grouped:
        words.append(counted(total, "rank") if len(order) == total else f"{len(order):,} of {total:,} ranks")
    missing = frame.ranks.state.count("waiting")
    words += [f"{counted(missing, 'rank')} missing"] if missing else []
    worst = worst_is_first(scene, rows.table.grouped)
    if worst and (scene.attention[0] < CALM).any():
        words.append("missing first" if scene.is_gathering else "worst first")
    elif not worst and place.sort not in rows.sortable:
        words.append(f"sorted by {place.sort} {_find_order_sign(place)}")
    if place.follow:
        words.append(f"following rank {place.rank}")
    if place.filter:
        words.append(f"filter {scene.clean(place.filter)!r}")
    if frame.run.nodes > 1 and not rows.table.grouped:
        words.append(counted(host_total(frame), "host"))
    words += host_troubles(frame) if frame.run.nodes > 1 else []
    if scene.clock_free:
        words.append("~ clock-free")
    if frame.lost_records:
        words.append(missing_records_phrase(frame.lost_records))
    return " · ".join(words)


def _of_ranks(rows: RankRows, total: int) -> list[str]:
    order, scroll = rows.table.order, rows.scroll
    seen = min(len(order), scroll.page)
    text = counted(total, "rank")
    text = f"{len(order):,} of {text}" if len(order) < total else text
    return [f"{scroll.top + 1:,}–{scroll.top + seen:,} of {text}" if 0 < seen < len(order) else text]


def _of_hosts(rows: RankRows) -> list[str]:
    """`1–9 of 64 hosts`: those whose rows are on the screen."""
    hosts = [host_of(row) for row in rows.table.rows]
    named = [host is not None and rows.table.hosts[host] != "" for host in hosts]
    before, seen = sum(named[: rows.shown.start]), sum(named[rows.shown.start : rows.shown.stop])
    text = counted(sum(named), "host")
    return [f"{before + 1:,}–{before + seen:,} of {text}" if 0 < seen < sum(named) else text]
