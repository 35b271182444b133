"""Columns that line up, for a terminal, a mail or `awk`."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.tui.paint.text import cells, clean, fit


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
