"""The documents that list figures, with the rows and keys that declarations give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from ddptop.export.columns import TABLES as EXPORTED_TABLES
from ddptop.frames.figures import (
    BUCKET_FIGURES,
    FIGURES,
    GROUP_FIGURES,
    HOST_FIGURES,
    PROCESS_GROUP_FIGURES,
    TEXT_FIGURES,
    Figure,
)
from ddptop.frames.schema import schema

TABLES: tuple[tuple[str, tuple[Figure, ...], bool], ...] = (
    (r"\| figure(?:, in one step)? \|", FIGURES, False),
    (r"\| figure of a rank \|", (*TEXT_FIGURES, *FIGURES), True),
    (r"\| field of `hosts` \|", HOST_FIGURES, True),
    (r"\| field of `buckets` \|", BUCKET_FIGURES, True),
    (r"\| field of `process_groups` \|", PROCESS_GROUP_FIGURES, True),
    (r"\| figure of `group` \|", GROUP_FIGURES, False),
    (r"\| other figure of `group` \|", GROUP_FIGURES, True),
)
"""How tables of figures begin, the figures that they may have, and whether one that has no row yet gets it
there, at the end."""

ROW = re.compile(r"\| (`([^`]+)`(?: of a rank)?) \|")
NAMES = "| name | column | in words |\n|---|---|---|\n"


def metrics_document(text: str) -> str:
    """The document with the formulas and names of all declared figures, each in the first row of its name."""
    listed = set(_declared_rows(text))
    written: set[int] = set()
    lines: list[str] = []
    table: tuple[tuple[Figure, ...], bool] | None = None
    n_columns = 0
    for line in text.splitlines():
        for head, figures, takes_new in TABLES:
            if re.match(head, line):
                table, n_columns = (figures, takes_new), line.count(" | ") + 1
        if table is not None and not line.startswith("|"):
            new = [one for one in table[0] if table[1] and one.formula and id(one) not in listed]
            lines += [_row(f"`{figure.documented_as}`", figure, n_columns) for figure in new]
            listed |= {id(figure) for figure in new}
            table = None
        match = ROW.match(line) if table is not None else None
        figure = _figure_of(table[0], match[2]) if table is not None and match else None
        if match and figure is not None and figure.formula and id(figure) not in written:
            written.add(id(figure))
            line = _row(match[1], figure, n_columns)
        lines.append(line)
    before, _, after = "\n".join([*lines, ""]).partition(NAMES)
    named = [figure for figure in (*FIGURES, *TEXT_FIGURES) if figure.title]
    names = [f"| `{figure.documented_as}` | {figure.title} | {figure.called} |" for figure in named]
    return before + NAMES + "\n".join(names) + after[after.index("\n\n") :]


def _declared_rows(text: str) -> Iterator[int]:
    """The ids of the figures that have a row of their own."""
    figures: tuple[Figure, ...] = ()
    for line in text.splitlines():
        begun = [declared for head, declared, _ in TABLES if re.match(head, line)]
        figures = begun[0] if begun else figures if line.startswith("|") else ()
        match = ROW.match(line)
        figure = _figure_of(figures, match[2]) if match else None
        if figure is not None:
            yield id(figure)


def _figure_of(figures: tuple[Figure, ...], name: str) -> Figure | None:
    return next((figure for figure in figures if figure.documented_as == name), None)


def _row(name: str, figure: Figure, n_columns: int) -> str:
    source = f" `{figure.source}` |" if n_columns == 3 else ""
    return f"| {name} | {figure.formula} |{source}"


def export_document(text: str) -> str:
    """The page of the export with a row for each column. What a row says stays; a new one says the
    formula."""
    formulas = {figure.key: figure.formula for figure in FIGURES}
    for table in EXPORTED_TABLES:
        before, head, rest = text.partition(f"### `{table.name}`: {table.row}\n\n")
        rows, blank, after = rest.partition("\n\n")
        titles, rule, *lines = rows.splitlines()
        meanings = {line.split("`")[1]: line.split(" | ", 3)[3].removesuffix(" |") for line in lines}
        lines = [
            f"| `{column.name}` | {column.kind} | {column.unit} | "
            f"{meanings.get(column.name) or formulas[column.name]} |"
            for column in table.columns
        ]
        end = "\n" if rows.endswith("\n") else blank
        text = before + head + "\n".join([titles, rule, *lines]) + end + after
    return text


def snapshot_document(text: str) -> str:
    """The page of the snapshot with all keys of ranks, buckets, process groups and hosts; a new one comes
    after the key that it follows in JSON."""
    parts = schema()["properties"]
    for part in ("ranks", "buckets", "process_groups", "hosts"):
        begin = text.index(f'\n "{part}": ')
        end = text.index('\n "', begin + 1)
        listed = text[begin:end]
        for before, key in pairwise(parts[part]["items"]["properties"]):
            if f'"{key}"' not in listed:
                listed = listed.replace(f'"{before}"', f'"{before}","{key}"', 1)
        text = text[:begin] + listed + text[end:]
    return text
