"""Foreign text made safe for one line of a terminal, and text measured in terminal cells."""

from __future__ import annotations

import re
import unicodedata

from rich.cells import cell_len, set_cell_size

_LONGER = {"±": "+/-", "…": "...", "→": "->", "≤": "<=", "≥": ">="}

_SIGNS = {
    "●": "*", "◌": "o", "■": "#", "▲": "^", "▸": ">", "◂": "<", "✓": "=", "✗": "x", "✖": "X", "○": "o",
    "–": "-", "—": "-", "·": "|", "−": "-", "×": "x", "µ": "u", "≈": "~", "…": ".", "±": "~", "─": "-",
    "°": " ", "▌": "|", "◆": "@", "◇": "?", "┊": "!", "═": "=", "└": "+", "┌": "+", "┘": "+", "┐": "+",
    "│": "|", "┃": "|", "├": "|", "┤": "|", "┴": "-", "┬": "-", "┼": "+", "━": "_", "┄": "'", "‖": "|",
    "▴": "^", "▾": "v", "▶": ">", "▐": "|", "█": "#", "⏵": ">", "↑": "^", "↓": "v", "←": "<", "→": ">",
}  # fmt: skip

ASCII = {ord(sign): plain for sign, plain in _SIGNS.items()}
"""Cell for cell: a line keeps its width when it is translated."""

_DROPPED = frozenset({"Mn", "Me"})
"""Combining marks: terminals disagree on their width, which shifts everything to their right."""

_REPLACED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, escapes, bidi overrides, joiners: they move the cursor, colour, reorder or glue."""


def text_width(text: str) -> int:
    """Width in terminal cells: 2 for wide characters."""
    return len(text) if text.isascii() else cell_len(text)


def clean_text(text: str, ascii_only: bool = False) -> str:
    """A foreign text in which a question mark replaces everything that could disturb a terminal."""
    if text.isascii() and text.isprintable():
        return text
    text = "".join(map(_replace_harmful, unicodedata.normalize("NFC", text)))
    return to_ascii(text) if ascii_only else text


def to_ascii(text: str) -> str:
    """The nearest ASCII; may be longer, so it comes before any measuring."""
    for sign, plain in _LONGER.items():
        text = text.replace(sign, plain)
    return text.translate(ASCII).encode("ascii", "replace").decode("ascii")


def fit_text(text: str, width: int, right: bool = False) -> str:
    """Exactly `width` cells: padded on one side, or cut with an ellipsis."""
    have = text_width(text)
    if have <= width:
        blank = " " * (width - have)
        return blank + text if right else text + blank
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


_FIGURE_AT_END = re.compile(r"(?<!\S)[^\sA-Za-z]*\d$")


def cut_at_word(text: str, width: int) -> str:
    """At most `width` cells: cut with an ellipsis after a word that is no figure, or within the first one. A
    place, `train.py:6`, is no figure."""
    if text_width(text) <= width:
        return text
    cut = text
    while " " in cut and (text_width(cut) + 1 > width or _FIGURE_AT_END.search(cut)):
        cut = cut.rpartition(" ")[0].rstrip(" ·:;,(")
    return f"{cut}…" if text_width(cut) < width else fit_text(text, width)


def fit_tail(text: str, width: int) -> str:
    """A text of exactly `width` cells, cut at the front: names of hosts differ at their end."""
    if text_width(text) > width > 0:
        text = "…" + text[-width:]  # no letter is narrower than a cell, so no more of them fit
        while text_width(text) > width:
            text = "…" + text[2:]
    return fit_text(text, width)


def wrap_lines(text: str, width: int, most: int | None = None) -> list[str]:
    """Lines of at most `width` cells, broken at spaces where there are any; a `·` between two is left out.
    The last of `most` lines ends with an ellipsis where there is more."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if text_width(joined) <= width:
            line = joined
            continue
        lines += [line.removesuffix(" ·")] if line else []
        line = "" if word == "·" else word
    lines += [line] if line else []
    if most is not None and len(lines) > most:
        last = lines[most - 1] if most else ""
        while " " in last and text_width(last) + 2 > width:
            last = last.rpartition(" ")[0]
        lines = [*lines[: most - 1], fit_text(f"{last} …", width).rstrip()] if most else []
    return lines


def wrap_clauses(text: str, width: int) -> list[str]:
    """Broken between its clauses, which a `·` parts, where that takes no more lines than between words."""
    clauses: list[str] = []
    for clause in text.split(" · "):
        if clauses and text_width(joined := f"{clauses[-1]} · {clause}") <= width:
            clauses[-1] = joined
        else:
            clauses.append(clause)
    words = wrap_lines(text, width)
    return clauses if len(clauses) <= len(words) and max(map(text_width, clauses)) <= width else words


def _replace_harmful(letter: str) -> str:
    category = unicodedata.category(letter)
    if category in _DROPPED:
        return ""
    return "?" if category in _REPLACED else letter
