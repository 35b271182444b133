"""Blocks, braille and rules as shapes of an SVG, so that they meet whatever font a reader has."""

from __future__ import annotations

CELL_WIDTH = 8
"""Pixels."""

CELL_HEIGHT = 16

_FULL = (0, 0, CELL_WIDTH, CELL_HEIGHT)

_BOXES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "█": (_FULL,), "▓": (_FULL,), "▒": (_FULL,), "░": (_FULL,),
    **{sign: ((0, 16 - 2 * at, 8, 2 * at),) for at, sign in enumerate("▁▂▃▄▅▆▇", 1)},
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


def path_of(letter: str, count: int, left: int, top: int) -> str:
    """SVG path of `count` such letters in a row from a corner in pixels."""
    if is_dotted(letter):
        bits = ord(letter) - _BRAILLE
        cells = range(left + 1, left + 1 + count * CELL_WIDTH, CELL_WIDTH)
        dots = [at for bit, at in enumerate(_DOTS) if bits >> bit & 1]
        return "".join(f"M{cell + x} {top + y - 1}h0" for cell in cells for x, y in dots)
    return "".join(_boxes(box, count, left, top) for box in _BOXES[letter])


def _boxes(box: tuple[int, int, int, int], count: int, left: int, top: int) -> str:
    x, y, width, height = box
    if width == CELL_WIDTH:  # neighbours meet: one long rectangle
        width, count = width * count, 1
    rest = f"h{width}v{height}h{-width}z"
    return "".join(f"M{left + x + at * CELL_WIDTH} {top + y}{rest}" for at in range(count))
