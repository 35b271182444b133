"""METRICS.md with the rows of figures as their declarations have them."""

from __future__ import annotations

import re

from ddptop.frames.figures import FIGURES, Figure
from ddptop.render.metrics import TEXT_FIELDS

HEAD = re.compile(r"\| figure(?:, in one step| of a rank)? \|")
"""How tables of a rank's figures begin. Of each figure the first row is made from its declaration."""

ROW = re.compile(r"\| (`([^`]+)`(?: of a rank)?) \|")
NAMES = "| name | column | in words |\n|---|---|---|\n"


def metrics_document(text: str) -> str:
    """The document with the formulas and names of all declared figures. One that has no row yet gets it at
    the end of the table of ranks and processes."""
    unwritten = {figure.documented_as: figure for figure in FIGURES if figure.formula}
    listed = {match[2] for line in text.splitlines() if (match := ROW.match(line))}
    lines: list[str] = []
    n_columns, in_table, is_of_processes = 0, False, False
    for line in text.splitlines():
        if HEAD.match(line):
            in_table, n_columns, is_of_processes = True, line.count(" | ") + 1, "of a rank" in line
        elif in_table and not line.startswith("|"):
            new = [figure for name, figure in unwritten.items() if name not in listed and is_of_processes]
            lines += [_row(f"`{figure.documented_as}`", figure, n_columns) for figure in new]
            in_table = False
        match = ROW.match(line) if in_table else None
        figure = unwritten.pop(match[2], None) if match else None
        lines.append(_row(match[1], figure, n_columns) if match and figure else line)
    before, _, after = "\n".join([*lines, ""]).partition(NAMES)
    names = [f"| `{one.documented_as}` | {one.title} | {one.called} |" for one in FIGURES if one.title]
    names += [f"| `{name}` | {title} | {name} |" for title, name in TEXT_FIELDS.items()]
    return before + NAMES + "\n".join(names) + after[after.index("\n\n") :]


def _row(name: str, figure: Figure, n_columns: int) -> str:
    source = f" `{figure.source}` |" if n_columns == 3 else ""
    return f"| {name} | {figure.formula} |{source}"
