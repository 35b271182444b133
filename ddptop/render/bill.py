"""The bill of a run as lines: the run without its losses, one bar and a table, and what others waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ddptop.frames.bill import (
    CLASSES,
    bill_of,
    dear_phrase,
    estimate_phrase,
    headline,
    ledger_place_phrase,
    round_to_sum,
    skew_cost_phrase,
)
from ddptop.frames.numbers import duration, fixed, percent
from ddptop.render.line import Line, Role, combine_roles, join_in_lines
from ddptop.render.phases import StepPart, draw_parts_bar
from ddptop.render.table import draw_head, draw_row, fit_columns, measured_column
from ddptop.render.text import fit_text, text_width, wrap_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.bill import Bill
    from ddptop.frames.columns import Column
    from ddptop.frames.ledger import Ledger
    from ddptop.protocol.vocabulary import LedgerClass
    from ddptop.render.line import Piece
    from ddptop.render.table import TableColumn

MAX_WAITED_FOR = 6
"""Rows of what others waited for; the rest is one row."""

GAP = 2

LEAST_TITLE = 10
"""Cells of a class's title on the narrowest page."""

LONGEST_S = 3_599.0
"""Its duration in words is the longest of a run below 100 hours."""

LOSS_INDENT = 2 + len(duration(LONGEST_S)) + 1
"""Cells of what the run would take, before what it would be without."""

LOSSES_TITLE = "What the run would take without its largest losses"

SHORT_LOSSES_TITLE = "Without its largest losses"

WAITED_TITLE = "What the others waited for"


def draw_bill(ledger: Ledger, width: int, ascii_only: bool, *, on_gpus: bool = False) -> list[Line]:
    """All of the bill; empty where no time has passed. Titles have the role `strong`."""
    bill = bill_of(ledger, on_gpus=on_gpus)
    if not bill.rows:
        return []
    lines = [*_draw_headline(bill, width), *_draw_estimate(ledger, width), *draw_losses(bill, width)]
    # Whom the others waited for comes before the classes: these may be more than fit on a page.
    waited = draw_waited_for(ledger, bill, width)
    lines += [*waited, Line()]
    return [*lines, draw_bill_bar(bill, width, ascii_only), *draw_classes(bill, width, ascii_only)]


def _draw_headline(bill: Bill, width: int) -> list[Line]:
    """The whole run in a sentence, on as many lines as it would have with the longest duration."""
    longest = headline(replace(bill, elapsed_s=LONGEST_S))
    sentence = headline(bill)
    parts = [sentence] if text_width(longest) <= width else sentence.replace(": ", ":\n").splitlines()
    return [Line(text, "strong") for part in parts for text in wrap_lines(part, width)]


def _draw_estimate(ledger: Ledger, width: int) -> list[Line]:
    """How much of the bill is an estimate; empty where that is no matter of dear steps."""
    phrase = estimate_phrase(ledger)
    return [Line(text, "dim") for text in wrap_lines(phrase, width)] if phrase else []


def draw_losses(bill: Bill, width: int) -> list[Line]:
    """What the run would take without its largest losses, below a title; empty where there are none. With a
    digit more in a duration nothing moves."""
    phrases = loss_phrases(bill)
    title = LOSSES_TITLE if text_width(LOSSES_TITLE) <= width else SHORT_LOSSES_TITLE
    lines = [Line(title, "strong").cut(width)] if phrases else []
    for lasts, without in phrases:
        first, *following = wrap_lines(without, width - LOSS_INDENT)
        lines.append(Line(f"{lasts:>{LOSS_INDENT - 1}} ").add(first))
        lines += [Line(" " * LOSS_INDENT + part) for part in following]
    return lines


def draw_waited_for(ledger: Ledger, bill: Bill, width: int) -> list[Line]:
    """What the others waited for, by rank and place; empty where nothing is known of it."""
    columns, n_rows = waited_columns(ledger, bill)
    if not n_rows:
        return []
    title = f"{WAITED_TITLE}: {skew_cost_phrase(ledger.run)}"
    lines = [Line(text, "strong") for text in wrap_lines(title, width)]
    return [*lines, *_draw_table(columns, n_rows, width)]


def draw_rank_bills(
    ledger: Ledger, bill: Bill, width: int, most: int, ascii_only: bool, *, tall: int = 1
) -> list[Line]:
    """A bar for all ranks and one for each, at most `most` of them: where its time went, with the classes in
    the order of the bill. Of more ranks those that waited least, for which the others waited. `tall`: lines
    of a bar."""
    waited_s = ledger.seconds_of("waiting")
    ranks = np.arange(len(waited_s)) if len(waited_s) <= most else np.argsort(waited_s, kind="stable")[:most]
    seconds = np.array([ledger.seconds_of(cast("LedgerClass", row.key)) for row in bill.rows])
    label = max(map(len, (ALL_RANKS, *(f"rank {rank}" for rank in ranks)))) + 1
    lines: list[Line] = []
    for name, spent_s in (
        (ALL_RANKS, seconds.sum(axis=1)),
        *((f"rank {rank}", seconds[:, rank]) for rank in ranks),
    ):
        for is_first in (True, *[False] * (tall - 1)):
            line = Line(fit_text(name if is_first else "", label), "dim").add("│", "rule")
            room = width - line.width
            edges = _find_edges(spent_s, room)
            shares_pct = 100 * np.diff(edges) / room
            lines.append(line.extend(_draw_classes_bar(bill, edges, shares_pct, ascii_only, is_first)))
    return lines


ALL_RANKS = "all ranks"


def _find_edges(spent_s: Column, width: int) -> Column:
    """(rows of the bill + 1,) in cells, of which `spent_s` are shares."""
    edges = np.concatenate([[0.0], np.cumsum(np.nan_to_num(spent_s))])
    return np.asarray(edges * (width / edges[-1] if edges[-1] > 0 else 0.0))


def _draw_classes_bar(
    bill: Bill, edges: Column, shares_pct: Column, ascii_only: bool, has_texts: bool = True
) -> Line:
    """`edges`: (rows of the bill + 1,) in cells; `shares_pct`: of the rows."""
    parts = [StepPart(row.title, *_look(row.key)) for row in bill.rows]
    shares = list(map(percent, shares_pct.tolist()))
    texts = [(f"{part.name} {share}", share) for part, share in zip(parts, shares, strict=True)]
    return draw_parts_bar(edges, parts, texts if has_texts else None, ascii_only)


def draw_bill_bar(bill: Bill, width: int, ascii_only: bool) -> Line:
    """All classes on one line of whole cells, for text without colours too, with their shares."""
    edges = np.rint(_find_edges(np.array([row.rank_seconds for row in bill.rows]), width))
    return _draw_classes_bar(bill, edges, np.array([row.share_pct for row in bill.rows]), ascii_only)


def class_look(key: str, ascii_only: bool) -> Piece:
    """The sign of a class, in solid colour."""
    glyph, plain, role = _look(key)
    return plain if ascii_only else glyph, combine_roles(role, role)


def _look(key: str) -> tuple[str, str, Role]:
    words = CLASSES[key]
    return words.glyph, words.plain, cast("Role", words.role)


def draw_short_bill(bill: Bill, width: int, height: int, ascii_only: bool) -> list[Line]:
    """The bar, and the shares of its classes, the largest first, on as many lines as are left below it."""
    shares = [
        Line(*class_look(row.key, ascii_only)).add(f" {row.title} ", "dim").add(percent(row.share_pct))
        for row in bill.rows
    ]
    return [draw_bill_bar(bill, width, ascii_only), *join_in_lines(shares, width)][:height]


def class_columns(bill: Bill, signs: Sequence[str] = (), width: int | None = None) -> list[TableColumn]:
    """A row for each class and one for all. `signs`: of the classes, before their titles; `width`: of the
    page, to which titles are cut."""
    titles = [*(row.title for row in bill.rows), "in all"]
    if signs:
        titles = [f"{sign:<2}{title}" for sign, title in zip([*signs, ""], titles, strict=True)]
    shares = [row.share_pct for row in bill.rows]
    most = None if width is None else max(LEAST_TITLE, width - len("100.0") - GAP)
    return [
        measured_column("class", titles, 9, right=False, most=most),
        measured_column(bill.unit, [*(row.amount for row in bill.rows), bill.total], 5),
        measured_column("%", [*map(fixed, shares), fixed(sum(shares))], 8),
    ]


def waited_columns(ledger: Ledger, bill: Bill) -> tuple[list[TableColumn], int]:
    """What the others waited for, the largest first, the smaller ones in one row, and one for all; and how
    many rows these are. Together they are what the class `waiting` has."""
    waiting = next((row for row in bill.rows if row.key == "waiting"), None)
    shown = ledger.run.waited_for[:MAX_WAITED_FOR]
    if waiting is None or not shown:
        return [], 0
    total_s, total = waiting.rank_seconds, float(waiting.amount.replace(",", ""))
    # Those that look alike stand in the order of the ranks: else they would change places with every step.
    rows = sorted(shown, key=lambda row: (-round(total * row.rank_seconds / total_s, 1), row.rank))
    seconds = [row.rank_seconds for row in rows]
    seconds.append(max(0.0, total_s - sum(seconds)))
    amounts = round_to_sum([total * value / total_s for value in seconds], 1)
    shares = round_to_sum([waiting.share_pct * value / total_s for value in seconds], 1)
    names, places = [f"rank {row.rank}" for row in rows], [ledger_place_phrase(row.place) for row in rows]
    when = [dear_phrase(row) for row in rows]
    if amounts[-1] or shares[-1]:
        names, places, when = [*names, "others"], [*places, ""], [*when, ""]
    n_rows = len(names)
    # As wide as the longest of those that may be shown next: rows come and go, and the columns stay.
    longest = max((ledger_place_phrase(row.place) for row in ledger.run.waited_for), key=len)
    columns = [
        measured_column("rank", [*names, "in all"], 9, right=False),
        measured_column("where", [*places, "", longest], 6, right=False),
        measured_column(bill.unit, [*map(fixed, amounts[:n_rows]), waiting.amount], 7),
        measured_column("%", [*map(fixed, shares[:n_rows]), fixed(waiting.share_pct)], 8),
        measured_column("when", [*when, ""], 5, right=False, most=None),
    ]
    return columns, n_rows + 1


LEAST_LEFT_S = 0.05
"""A run that made no step is all start-up: without it, nothing is left."""


def loss_phrases(bill: Bill) -> list[tuple[str, str]]:
    """`42.5 s`, `without rank 0 after the optimizer (50% less)`; without those that would come and go with
    the last digit of the durations, and those that are all of the run."""
    least_s = 1.0 if bill.elapsed_s < 3600 else 60.0
    return [
        (
            duration(loss.elapsed_s),
            f"without {loss.what} ({percent(100 * loss.gives_back_s / bill.elapsed_s)} less)",
        )
        for loss in bill.losses
        if loss.gives_back_s >= least_s and loss.elapsed_s >= LEAST_LEFT_S
    ]


def draw_classes(bill: Bill, width: int, ascii_only: bool) -> list[Line]:
    """A row for each class behind its sign, and one for all."""
    looks = [class_look(row.key, ascii_only) for row in bill.rows]
    lines = _draw_table(class_columns(bill, [sign for sign, _ in looks], width), len(looks) + 1, width)
    for line, (sign, look) in zip(lines[1:], looks, strict=False):
        text, role = line.pieces[0]
        line.pieces[:1] = [(sign, look), (text[len(sign) :], role)]
    return lines


def _draw_table(columns: Sequence[TableColumn], n_rows: int, width: int) -> list[Line]:
    chosen = fit_columns(columns, width, GAP)
    lines = [draw_head(chosen, GAP), *(draw_row(chosen, row, GAP) for row in range(n_rows))]
    return [line.cut(width) for line in lines]
