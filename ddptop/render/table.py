"""Tables: columns that line up and are left out, the least important first, where the width does not suffice.

On the screen a table is lines of pieces with roles (`head`, `body`); for `--once`, a report or `awk` it is
lines of text (`text_lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddptop.render.line import Line, Piece
from ddptop.render.text import clean_text, fit_tail, fit_text, text_width

TEXT_GAP = 2
"""Blanks between two columns of a table in text."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column: its title, its width in cells, and the cell of row `i`."""

    title: str
    width: int
    cell: Callable[[int], Piece]
    keep: int
    """Where the width does not suffice, columns of the lowest number go first."""
    right: bool = True
    tail: bool = False
    """Cut at the front rather than at the end."""


def measured_column(
    title: str,
    texts: Sequence[str],
    keep: int,
    *,
    right: bool = True,
    most: int | None = 40,
    tail: bool = False,
) -> TableColumn:
    """A column of ready texts, as wide as the widest of them, up to `most` (None: without a limit)."""
    width = max([text_width(title), *map(text_width, texts)])
    width = width if most is None else min(width, most)
    return TableColumn(title, width, lambda row: (texts[row], "text"), keep, right, tail)


CHOSEN = 97
"""`keep` of a column that the user chose: only names and states of ranks and hosts stay longer."""


def choose_columns(columns: Sequence[TableColumn], shown: Mapping[str, bool]) -> list[TableColumn]:
    """The columns without those that are never shown (False), those that always are (True) kept longest."""
    kept = [column for column in columns if shown.get(column.title) is not False]
    return [replace(c, keep=max(c.keep, CHOSEN)) if shown.get(c.title) else c for c in kept]


def fit_columns(columns: Sequence[TableColumn], width: int, gap: int = 1) -> list[TableColumn]:
    """The columns that fit into `width` cells, in their order."""
    chosen = list(columns)
    while len(chosen) > 1 and total_width(chosen, gap) > width:
        chosen.remove(min(chosen, key=lambda column: column.keep))
    return chosen


def total_width(columns: Sequence[TableColumn], gap: int = 1) -> int:
    """Width of columns with their gaps."""
    return sum(column.width + gap for column in columns) - gap


def draw_head(
    columns: Sequence[TableColumn],
    gap: int = 1,
    sorted_by: str | None = None,
    sign: str = "▾",
    on_click: Callable[[str], object] | None = None,
) -> Line:
    """The titles, the sorted one with a sign where its width allows; `on_click`: what a click on one does."""
    line = Line()
    for column in columns:
        begin = line.width + (gap if line.width else 0)
        if on_click is not None:
            line.spot(begin, begin + column.width, on_click(column.title))
        chosen = column.title == sorted_by
        title = (
            f"{column.title}{sign}" if chosen and text_width(column.title) < column.width else column.title
        )
        line.add(" " * gap if line.width else "")
        line.add(fit_text(title, column.width, column.right), "accent" if chosen else "dim")
    return line


def draw_row(columns: Sequence[TableColumn], row: int, gap: int = 1) -> Line:
    """One row: cells, and a gap between every two of them."""
    line = Line()
    between: Piece = (" " * gap, "text")
    pieces = line.pieces
    for column in columns:
        text, role = column.cell(row)
        cut = fit_tail(text, column.width) if column.tail else fit_text(text, column.width, column.right)
        pieces += [between, (cut, role)] if pieces else [(cut, role)]
    line.width = total_width(columns, gap)  # set once: measuring every cell took a third of the time
    return line


def text_lines(columns: Sequence[TableColumn], rows: int, width: int | None = None) -> list[str]:
    """The title line and a line per row, as text, with the columns that fit into `width` (None: all)."""
    chosen = columns if width is None else fit_columns(columns, width, TEXT_GAP)
    lines = [draw_head(chosen, TEXT_GAP), *(draw_row(chosen, row, TEXT_GAP) for row in range(rows))]
    return [str(line).rstrip() for line in lines]


def align_texts(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()
) -> list[str]:
    """The title line and a line per row of foreign texts; the columns named in `right` end flush."""
    columns = [
        measured_column(title, [clean_text(row[index]) for row in rows], 0, right=title in right, most=None)
        for index, title in enumerate(titles)
    ]
    return text_lines(columns, len(rows))
