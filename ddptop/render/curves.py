"""Curves in braille dots, two columns and four rows to a cell; or in ASCII. Stacked areas in signs."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.line import Line, Piece, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.render.chart import Scale

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of a braille cell by dot column and dot row (Unicode 2800 block)."""

UNDER = 0x42
"""A cell below a curve."""

BELOW = (chr(0x2800 + UNDER), ":")
"""Its letter, and in ASCII."""

_ROW_BITS = (0x09, 0x12, 0x24, 0xC0)


class Canvas:
    """Dots of one series."""

    def __init__(self, width: int, height: int) -> None:
        self.height = height
        self._cells = [bytearray(width) for _ in range(height)]

    def draw_curve(self, values: Column, scale: Scale) -> None:
        """One value per dot column; neighbours are joined by upright strokes, NaN leaves a gap."""
        before: int | None = None
        for x, y in enumerate(self._find_dots(values, scale).tolist()):
            if y < 0:
                before = None
                continue
            # The stroke stops one short of its neighbour, which has a dot there already.
            if before is None or before == y or abs(before - y) == 1:
                self._cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
            else:
                self._draw_stroke(x, y, before + (1 if y > before else -1))
            before = y

    def draw_between(self, low: Column, high: Column, scale: Scale) -> None:
        """Every dot from one curve up to the other; both as in `draw_curve`."""
        under, over = self._find_dots(low, scale), self._find_dots(high, scale)
        rows = np.arange(self.height * 4)[:, None]
        self._put_dots((over <= rows) & (rows <= under) & (over >= 0))

    def draw_points(self, values: Column, scale: Scale) -> None:
        """One dot for each value, joined to none."""
        self._put_dots(self._find_dots(values, scale) == np.arange(self.height * 4)[:, None])

    def draw_area(self, values: Column, scale: Scale) -> None:
        """One dot in four below a curve: light enough for the curve to stand out without colour."""
        tops, rows = self._find_dots(values, scale), np.arange(self.height * 4)[:, None]
        self._put_dots((rows > tops) & (tops >= 0) & (rows % 2 == 1) & (np.arange(len(tops)) % 2 == 0))

    def _put_dots(self, dots: Mask) -> None:
        """Set dots: (rows of dots, dot columns)."""
        # A braille cell is two dots wide; an odd last column is filled up.
        dots = np.pad(dots, ((0, 0), (0, dots.shape[1] % 2))).reshape(self.height, 4, -1, 2)
        bits = (dots * np.array(_DOTS).T[:, None]).sum(axis=(1, 3))
        for cells, row in zip(self._cells, bits.tolist(), strict=True):
            cells[:] = bytes(map(int.__or__, cells, row))

    def _find_dots(self, values: Column, scale: Scale) -> Indices:
        """Row of dots for each value, from the top; -1 where there is no value."""
        bottom = self.height * 4 - 1
        rows = bottom - np.rint((np.clip(values, scale.low, scale.high) - scale.low) * self._per_unit(scale))
        return np.where(np.isfinite(values), rows, -1.0).astype(np.int64)

    def _per_unit(self, scale: Scale) -> float:
        return (self.height * 4 - 1) / (scale.high - scale.low)

    def _draw_stroke(self, x: int, begin: int, end: int) -> None:
        for dot in range(min(begin, end), max(begin, end) + 1):
            self._cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]

    def row(self, y: int) -> bytes:
        """Bits of the cells of one row."""
        return bytes(self._cells[y])


def draw_rows(main: Canvas, behind: Canvas, role: Role, ascii_only: bool, shaded: bytes) -> list[Line]:
    """Both series in one picture: a cell takes the colour of the main one where that has dots.

    `shaded`: 1 for each column of cells whose background is in the colour of a warning.
    """
    rows = range(main.height)
    return [Line().signs(_split_runs(main.row(y), behind.row(y), role, ascii_only, shaded)) for y in rows]


@lru_cache(maxsize=512)
def _split_runs(front: bytes, back: bytes, role: Role, ascii_only: bool, shaded: bytes) -> list[Piece]:
    """A row in letters. Most rows of a curve are as they were in the picture before."""
    if not (any(front) or any(back)):
        return [(" " * len(front), "faint")]
    runs: list[Piece] = []
    letters: list[str] = []
    run_role: Role = "faint"
    for bits, dim, shade in zip(front, back, shaded, strict=True):
        if bits | dim:
            cell_role: Role = role if bits else "warn" if shade else "faint"
            if cell_role != run_role:
                if letters:
                    runs.append(("".join(letters), run_role))
                letters, run_role = [], cell_role
        if ascii_only:
            letters.append(
                _choose_letter(bits) if bits else BELOW[1] if dim == UNDER else "'" if dim else " "
            )
        else:
            letters.append(_BRAILLE[bits or dim])
    return [*runs, ("".join(letters), run_role)]


_BRAILLE = " " + "".join(chr(0x2800 + bits) for bits in range(1, 256))


def _choose_letter(bits: int) -> str:
    filled = [row for row, mask in enumerate(_ROW_BITS) if bits & mask]
    if len(filled) > 2:
        return "|"
    middle = sum(filled) / len(filled)
    return '"' if middle < 1 else "_" if middle > 2.5 else "-"


def draw_stack(parts: Column, scale: Scale, height: int, looks: Sequence[Piece]) -> list[Line]:
    """(parts, columns) values on top of each other, the first at the bottom, each in its sign and role.

    The parts share the rows of the whole column: each has its whole rows, and those that are left over go to
    the largest remainders. So a part never has more rows than a larger one. A column with a NaN is a gap.
    `height` lines, the topmost first.
    """
    exact = np.maximum(parts, 0.0) * (height / scale.high)
    # A column in which one part is not known is left empty: the others alone would look like a fast step.
    exact = np.where(np.isnan(exact).any(axis=0), 0.0, exact)
    n_rows = np.floor(exact)
    left_over = np.rint(exact.sum(axis=0)) - n_rows.sum(axis=0)
    # The rank of each part by its remainder: argsort of argsort.
    place = np.argsort(np.argsort(n_rows - exact, axis=0, kind="stable"), axis=0, kind="stable")
    edges = np.minimum(np.cumsum(n_rows + (place < left_over), axis=0), height)
    lines = []
    for row in reversed(range(height)):
        runs = itertools.groupby((edges <= row).sum(axis=0).tolist())
        shown = ((len(list(run)), *([*looks, (" ", "text")][look])) for look, run in runs)
        lines.append(Line().signs((sign * cells, role) for cells, sign, role in shown))
    return lines
