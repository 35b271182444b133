"""Curves in braille dots, two columns and four rows to a cell; or in ASCII."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddptop.tui.paint.line import Line, Role

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.tui.paint.chart import Scale

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of a braille cell by dot column and dot row (Unicode 2800 block)."""

_ROW_BITS = (0x09, 0x12, 0x24, 0xC0)


class Canvas:
    """Dots of one series."""

    def __init__(self, width: int, height: int) -> None:
        self.height = height
        self._cells = [[0] * width for _ in range(height)]

    def curve(self, values: Column, scale: Scale) -> None:
        """One value per dot column; neighbours are joined by upright strokes, NaN leaves a gap."""
        bottom = self.height * 4 - 1
        per_unit = bottom / (scale.high - scale.low)
        before: int | None = None
        for x, value in enumerate(values.tolist()):
            if not math.isfinite(value):
                before = None
                continue
            y = bottom - round((min(max(value, scale.low), scale.high) - scale.low) * per_unit)
            # The stroke stops one short of its neighbour, which has a dot there already.
            begin = y if before is None or before == y else before + (1 if y > before else -1)
            for dot in range(min(begin, y), max(begin, y) + 1):
                self._cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
            before = y

    def between(self, low: Column, high: Column, scale: Scale) -> None:
        """Every dot from one curve to the other; both as in `curve`."""
        bottom = self.height * 4 - 1
        per_unit = bottom / (scale.high - scale.low)
        for x, (under, over) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            if not (math.isfinite(under) and math.isfinite(over)):
                continue
            top, last = (
                bottom - round((min(max(value, scale.low), scale.high) - scale.low) * per_unit)
                for value in (over, under)
            )
            for dot in range(top, last + 1):
                self._cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]

    def row(self, y: int) -> list[int]:
        """Bits of the cells of one row."""
        return self._cells[y]


def rows(main: Canvas, behind: Canvas | None, role: Role, ascii_only: bool) -> list[Line]:
    """Both series in one picture: a cell takes the colour of the main one where that has dots."""
    lines = []
    for y in range(main.height):
        back = behind.row(y) if behind is not None else [0] * len(main.row(y))
        line = Line()
        for text, piece_role in _runs(main.row(y), back, role, ascii_only):
            line.add(text, piece_role)
        lines.append(line)
    return lines


def _runs(front: list[int], back: list[int], role: Role, ascii_only: bool) -> list[tuple[str, Role]]:
    runs: list[tuple[str, Role]] = []
    for bits, dim in zip(front, back, strict=True):
        both: Role = role if bits else "faint"
        letter = (_plain(bits) if bits else "'" if dim else " ") if ascii_only else _braille(bits | dim)
        if runs and (runs[-1][1] == both or letter == " "):
            runs[-1] = (runs[-1][0] + letter, runs[-1][1])
        else:
            runs.append((letter, both))
    return runs


def _braille(bits: int) -> str:
    return chr(0x2800 + bits) if bits else " "


def _plain(bits: int) -> str:
    filled = [row for row, mask in enumerate(_ROW_BITS) if bits & mask]
    if len(filled) > 2:
        return "|"
    middle = sum(filled) / len(filled)
    return '"' if middle < 1 else "_" if middle > 2.5 else "-"
