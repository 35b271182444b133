"""Tables whose columns line up and give way to the width, the least important first.

Columns that line up, for a terminal, a mail or `awk`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddptop.render.line import Line, Piece
from ddptop.render.text import cells, clean, fit, fit_tail


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title, its width in cells, and what stands in row `i`."""

    title: str
    width: int
    cell: Callable[[int], Piece]
    keep: int
    """Where the width does not suffice, columns of the lowest number go first."""
    right: bool = True
    tail: bool = False
    """Cut at the front rather than at the end."""


def measured(
    title: str, texts: Sequence[str], keep: int, *, right: bool = True, most: int = 40, tail: bool = False
) -> Column:
    """A column of ready texts, as wide as the widest of them up to `most`."""
    width = min(max([cells(title), *map(cells, texts)]), most)
    return Column(title, width, lambda row: (texts[row], "text"), keep, right, tail)


def fitting(columns: Sequence[Column], width: int, gap: int = 1) -> list[Column]:
    """The columns that fit into `width` cells, in their order."""
    chosen = list(columns)
    while len(chosen) > 1 and total(chosen, gap) > width:
        chosen.remove(min(chosen, key=lambda column: column.keep))
    return chosen


def total(columns: Sequence[Column], gap: int = 1) -> int:
    """Width of columns with their gaps."""
    return sum(column.width + gap for column in columns) - gap


def head(columns: Sequence[Column], gap: int = 1, sorted_by: str | None = None, sign: str = "▾") -> Line:
    """The titles; the sorted column wears a sign where its width allows."""
    line = Line()
    for column in columns:
        begin = line.width + (gap if line.width else 0)
        line.spot(
            begin, begin + column.width, f"sort_by({column.title!r})"
        ) if sorted_by is not None else None
        chosen = column.title == sorted_by
        title = f"{column.title}{sign}" if chosen and cells(column.title) < column.width else column.title
        line.add(" " * gap if line.width else "")
        line.add(fit(title, column.width, column.right), "accent" if chosen else "dim")
    return line


def body(columns: Sequence[Column], row: int, gap: int = 1) -> Line:
    """One row: cells, and a gap between every two of them."""
    line = Line()
    between: Piece = (" " * gap, "text")
    pieces = line.pieces
    for column in columns:
        text, role = column.cell(row)
        cut = fit_tail(text, column.width) if column.tail else fit(text, column.width, column.right)
        pieces += [between, (cut, role)] if pieces else [(cut, role)]
    line.width = total(columns, gap)  # known: measured anew for every cell it was a third of a row
    return line


def aligned(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()
) -> list[str]:
    """The title line and a line per row, two spaces apart; the columns named in `right` end flush."""
    lines = [list(titles), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(cells(line[column]) for line in lines) for column in range(len(titles))]
    return [
        "  ".join(
            fit(cell, width, right=title in right)
            for title, cell, width in zip(titles, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
