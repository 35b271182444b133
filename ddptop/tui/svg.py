"""A picture as an SVG that loads nothing, no font either, and has every cell in its place.

Blocks, braille and rules are drawn as shapes, so that neighbours meet in whatever font a reader has.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ddptop.render.text import text_width

if TYPE_CHECKING:
    from rich.style import Style

    from ddptop.render.line import Line
    from ddptop.tui.theme import Palette

CELL_WIDTH = 8
"""Pixels."""

CELL_HEIGHT = 16

_FULL = (0, 0, CELL_WIDTH, CELL_HEIGHT)

_BOXES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "█": (_FULL,), "▓": (_FULL,), "▒": (_FULL,), "░": (_FULL,),
    **{sign: ((0, 16 - 2 * at, 8, 2 * at),) for at, sign in enumerate("▁▂▃▄▅▆▇", 1)},
    "▀": ((0, 0, 8, 8),),
    **{sign: ((0, 0, at, 16),) for at, sign in enumerate("▏▎▍▌▋▊▉", 1)},
    "▐": ((4, 0, 4, 16),), "▪": ((1, 5, 6, 6),), "·": ((3, 7, 2, 2),),
    "─": ((0, 7, 8, 1),), "━": ((0, 7, 8, 2),), "╌": ((1, 7, 2, 1), (5, 7, 2, 1)),
    "┄": ((0, 7, 2, 1), (3, 7, 2, 1), (6, 7, 1, 1)), "│": ((3, 0, 1, 16),), "┃": ((3, 0, 2, 16),),
    "┊": ((3, 1, 1, 3), (3, 6, 1, 3), (3, 11, 1, 3)), "├": ((3, 0, 1, 16), (4, 7, 4, 1)),
    "┤": ((3, 0, 1, 16), (0, 7, 3, 1)), "┬": ((0, 7, 8, 1), (3, 8, 1, 8)), "┴": ((0, 7, 8, 1), (3, 0, 1, 7)),
    "┼": ((0, 7, 8, 1), (3, 0, 1, 16)), "‖": ((2, 2, 1, 12), (5, 2, 1, 12)),
}  # fmt: skip
"""Left, top, width and height of each rectangle of a sign, in pixels within its cell."""

INK: dict[str, float] = {"▓": 0.75, "▒": 0.55, "░": 0.35}
"""Opacity of the shades; all other shapes are solid."""

_BRAILLE = 0x2800

_DOTS = ((1, 3), (1, 7), (1, 11), (5, 3), (5, 7), (5, 11), (1, 15), (5, 15))
"""Where each bit of a braille sign has its dot: the middle of it, one pixel further right and up."""


def is_drawn(letter: str) -> bool:
    """Whether a letter is a shape rather than text."""
    return letter in _BOXES or _BRAILLE < ord(letter) <= _BRAILLE + 0xFF


def is_dotted(letter: str) -> bool:
    """Whether a shape is made of dots, drawn by the ends of lines without length."""
    return letter not in _BOXES


def path_of(letter: str, count: int, x_left: int, top: int) -> str:
    """SVG path of `count` such letters in a row from a corner in pixels."""
    if is_dotted(letter):
        bits = ord(letter) - _BRAILLE
        cells = range(x_left + 1, x_left + 1 + count * CELL_WIDTH, CELL_WIDTH)
        dots = [place for bit, place in enumerate(_DOTS) if bits >> bit & 1]
        return "".join(f"M{cell + x} {top + y - 1}h0" for cell in cells for x, y in dots)
    return "".join(_draw_boxes(box, count, x_left, top) for box in _BOXES[letter])


def _draw_boxes(box: tuple[int, int, int, int], count: int, x_left: int, top: int) -> str:
    x, y, width, height = box
    if width == CELL_WIDTH:  # neighbours meet: one long rectangle
        width, count = width * count, 1
    sides = f"h{width}v{height}h{-width}z"
    return "".join(f"M{x_left + x + index * CELL_WIDTH} {top + y}{sides}" for index in range(count))


MARGIN = 12
"""Pixels around the picture."""

BASELINE = 12
"""Pixels from the top of a cell to the foot of its letters."""

FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,Liberation Mono,monospace"

_WORDS = re.compile(r"[!-~]+(?: [!-~]+)*")
"""What any of those fonts sets in cells of one width; single spaces lie within."""


@dataclass
class _Drawing:
    """What is drawn, gathered by colour: that keeps the file small."""

    grounds: list[str] = field(default_factory=list)
    texts: dict[tuple[str, bool, bool], list[str]] = field(default_factory=lambda: defaultdict(list))
    """By colour, bold and underlined."""
    shapes: dict[tuple[str, float, bool], list[str]] = field(default_factory=lambda: defaultdict(list))
    """By colour, opacity and whether they are dots."""


def draw_svg(lines: Sequence[Line], columns: int, palette: Palette, title: str = "") -> str:
    """The lines as they are on a screen of so many columns. `palette`: one of full colour, not of 16."""
    drawing = _Drawing()
    for row, line in enumerate(lines):
        _draw_text(drawing, line, MARGIN + row * CELL_HEIGHT, columns, palette)
    width, height = columns * CELL_WIDTH + 2 * MARGIN, len(lines) * CELL_HEIGHT + 2 * MARGIN
    frame = f'x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
    ground, edge = _draw_ground(palette.fill("")), _find_colour(palette.style("rule"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<title>{escape(title)}</title>" if title else "",
            "<style>.m{text-anchor:middle}</style>",
            f'<rect {frame} fill="{ground}" stroke="{edge}"/>',
            *drawing.grounds,
            f'<g font-family="{FONTS}" font-size="13.3">',
            *_escape_text(drawing),
            "</g>\n</svg>\n",
        ]
    )


def svg_row(line: Line, columns: int, palette: Palette) -> str:
    """One line as elements of an SVG whose top is 0, for a picture that has the same line in several places.

    Empty where nothing is drawn.
    """
    drawing = _Drawing()
    _draw_text(drawing, line, 0, columns, palette)
    return "".join([*drawing.grounds, *_escape_text(drawing)])


def _draw_text(drawing: _Drawing, line: Line, top: int, columns: int, palette: Palette) -> None:
    if line.ground:
        fill = _draw_ground(palette.fill(line.ground))
        size = f'width="{columns * CELL_WIDTH}" height="{CELL_HEIGHT}"'
        drawing.grounds.append(f'<rect x="{MARGIN}" y="{top}" {size} fill="{fill}"/>')
    x_left = MARGIN
    for text, role in line.pieces:
        style = palette.style(role, line.ground)
        if role == "badge" or ("/" in role and style.bgcolor is not None):
            size = f'width="{text_width(text) * CELL_WIDTH}" height="{CELL_HEIGHT}"'
            drawing.grounds.append(f'<rect x="{x_left}" y="{top}" {size} fill="{_draw_ground(style)}"/>')
        letters = drawing.texts[_find_colour(style), bool(style.bold), bool(style.underline)]
        for begin, run in _split_runs(palette.letters(text, role)):
            x = x_left + begin * CELL_WIDTH
            if style.bgcolor is not None and style.color == style.bgcolor:
                continue  # a sign in the colour of its ground: it tells what the ground is, in text
            if is_drawn(run[0]):
                kind = (_find_colour(style), INK.get(run[0], 1.0), is_dotted(run[0]))
                drawing.shapes[kind].append(path_of(run[0], len(run), x, top))
            else:
                letters.append(_draw_letters(run, x, top + BASELINE))
        x_left += text_width(text) * CELL_WIDTH


def _split_runs(text: str) -> Iterator[tuple[int, str]]:
    """First cell and letters of each word, of each row of one shape, and of each other letter."""
    cell, index = 0, 0
    while index < len(text):
        if (word := _WORDS.match(text, index)) is not None:
            run = word[0]
        elif is_drawn(text[index]):
            run = "".join(itertools.takewhile(text[index].__eq__, text[index:]))
        else:
            run = text[index]
        if run != " ":
            yield cell, run
        cell, index = cell + text_width(run), index + len(run)


def _draw_letters(run: str, x: int, y: int) -> str:
    """A word stretched to its cells, or another letter in the middle of its own."""
    width = text_width(run) * CELL_WIDTH
    if len(run) > 1:
        return f'<text x="{x}" y="{y}" textLength="{width}">{escape(run)}</text>'
    return f'<text class="m" x="{x + width // 2}" y="{y}">{escape(run)}</text>'


def _escape_text(drawing: _Drawing) -> Iterator[str]:
    for (colour, opacity, dotted), paths in drawing.shapes.items():
        ink = f' opacity="{opacity}"' if opacity < 1 else ""
        dots = f'fill="none" stroke="{colour}" stroke-width="2.4" stroke-linecap="round"'
        how = dots if dotted else f'fill="{colour}"'
        yield f'<path {how}{ink} d="{"".join(paths)}"/>'
    for (colour, bold, under), letters in drawing.texts.items():
        if letters:
            weight = ' font-weight="bold"' if bold else ""
            line = ' text-decoration="underline"' if under else ""
            yield f'<g fill="{colour}"{weight}{line}>{"".join(letters)}</g>'


def _find_colour(style: Style) -> str:
    return style.color.get_truecolor().hex if style.color is not None else "#808080"


def _draw_ground(style: Style) -> str:
    return style.bgcolor.get_truecolor().hex if style.bgcolor is not None else "#000000"
