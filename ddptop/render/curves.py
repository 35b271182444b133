"""Charts in cells: stacked areas in eighths of a cell, and curves in braille dots over them; or in ASCII."""

from __future__ import annotations

import itertools
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.render.line import Line, Piece, Role, combine_roles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.render.chart import Scale

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of a braille cell by dot column and dot row (Unicode 2800 block)."""

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

    def draw_points(self, values: Column, scale: Scale) -> None:
        """One dot for each value, joined to none."""
        self._put_dots(self._find_dots(values, scale) == np.arange(self.height * 4)[:, None])

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


_BRAILLE = " " + "".join(chr(0x2800 + bits) for bits in range(1, 256))


def _choose_letter(bits: int) -> str:
    filled = [row for row, mask in enumerate(_ROW_BITS) if bits & mask]
    if len(filled) > 2:
        return "|"
    middle = sum(filled) / len(filled)
    return '"' if middle < 1 else "_" if middle > 2.5 else "-"


EIGHTHS = 8
"""Heights of a cell that block signs tell apart."""

LOWER_BLOCKS = " ▁▂▃▄▅▆▇█"

_LOWER_ASCII = ' __---"":'


def draw_areas(
    parts: Column,
    scale: Scale,
    height: int,
    looks: Sequence[Piece],
    curves: Sequence[tuple[Canvas, Role]] = (),
) -> list[Line]:
    """(parts, columns) values on top of each other, the first at the bottom, each in its sign and role; over
    them curves, the first of them on top.

    The upper edge of the whole is exact to an eighth of a cell, and so is every edge between two parts where
    no third one lies in the same cell: a cell has two colours, so the smallest of three gives way. A column
    in which a part is not known is a gap. A sign that is ASCII draws whole rows. `height` lines, the topmost
    first.
    """
    ascii_only = all(sign.isascii() for sign, _ in looks)
    edges = _area_edges(parts, scale, height, whole_rows=ascii_only and len(looks) > 1)
    lines = []
    for row, cells in enumerate(_area_rows(edges, height, looks, ascii_only)):
        for canvas, role in reversed(curves):
            _put_curve(cells, canvas.row(row), role, ascii_only)
        runs = itertools.groupby(cells, key=attrgetter("role"))
        lines.append(Line().signs(("".join(cell.sign for cell in run), role) for role, run in runs))
    return lines


def _area_edges(parts: Column, scale: Scale, height: int, whole_rows: bool) -> Indices:
    """(parts + 1, columns) where each part ends, in eighths of a cell from the bottom; the last is the top.

    What is known has at least one eighth.
    """
    is_known = np.isfinite(parts).all(axis=0)
    parts = np.where(is_known, parts, 0.0)
    if whole_rows:
        edges = EIGHTHS * _row_edges(parts, scale, height)
    else:
        sums = np.cumsum(parts if len(parts) == 1 else np.maximum(parts, 0.0), axis=0)
        share = np.clip((sums - scale.low) / (scale.high - scale.low), 0.0, 1.0)
        edges = np.rint(share * height * EIGHTHS).astype(np.int64)
        edges[-1] = np.maximum(edges[-1], 1)
    return np.vstack([np.where(is_known, edges, 0), np.full(parts.shape[1], height * EIGHTHS)])


def _row_edges(parts: Column, scale: Scale, height: int) -> Indices:
    """(parts, columns) where each part ends, in whole rows from the bottom.

    The parts share the rows of the whole column: each has its whole rows, and those that are left over go to
    the largest remainders. So a part never has more rows than a larger one.
    """
    exact = np.maximum(parts, 0.0) * (height / scale.high)
    n_rows = np.floor(exact)
    left_over = np.rint(exact.sum(axis=0)) - n_rows.sum(axis=0)
    # The rank of each part by its remainder: argsort of argsort.
    place = np.argsort(np.argsort(n_rows - exact, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(np.minimum(np.cumsum(n_rows + (place < left_over), axis=0), height), np.int64)


class _Cell(NamedTuple):
    sign: str
    role: Role
    ground: Role | None = None
    """The colour behind the dots of a curve in this cell; None: that of the screen."""


def _area_rows(edges: Indices, height: int, looks: Sequence[Piece], ascii_only: bool) -> list[list[_Cell]]:
    """The cells of each row of areas, the topmost first."""
    ground = len(looks)
    # (rows, parts and ground, columns) eighths of each cell.
    foot = EIGHTHS * np.arange(height)[::-1, None, None]
    inside = np.diff(np.clip(edges - foot, 0, EIGHTHS), axis=1, prepend=0)
    # The upper edge of the whole is kept: beside the parts, the ground counts as the largest.
    weight = inside.copy()
    weight[:, ground] += np.where(inside[:, ground] > 0, EIGHTHS, 0)
    two = np.argsort(-weight, axis=1, kind="stable")[:, :2]
    alone = np.take_along_axis(inside, two[:, 1:], axis=1)[:, 0] == 0
    lower = np.where(alone, two[:, 0], two.min(axis=1))
    upper = np.where(alone, two[:, 0], two.max(axis=1))
    below = np.maximum(upper - 1, 0)[:, None]
    share = np.take_along_axis(np.cumsum(inside, axis=1), below, axis=1)[:, 0]
    rows = [
        list(zip(*row, strict=True))
        for row in zip(lower.tolist(), upper.tolist(), share.tolist(), strict=True)
    ]
    drawn = {triple: _area_cell(*triple, looks, ascii_only) for triple in set().union(*rows)}
    return [[drawn[triple] for triple in row] for row in rows]


def _area_cell(lower: int, upper: int, share: int, looks: Sequence[Piece], ascii_only: bool) -> _Cell:
    """A cell with `share` eighths of one part below another; the part after the last is the ground."""
    ground = len(looks)
    if lower == ground:
        return _Cell(" ", "text")
    sign, role = looks[lower]
    if lower == upper:
        return _Cell(sign, combine_roles(role, role), role)
    if ascii_only:
        return _Cell(_LOWER_ASCII[share], role)
    behind = None if upper == ground else looks[upper][1]
    is_low = share > EIGHTHS // 2
    return _Cell(
        LOWER_BLOCKS[share],
        role if behind is None else combine_roles(role, behind),
        role if is_low else behind,
    )


def _put_curve(cells: list[_Cell], bits: bytes, role: Role, ascii_only: bool) -> None:
    """Draw the dots of a row over its cells."""
    for column, dots in enumerate(bits[: len(cells)]):
        if dots and ascii_only:
            cells[column] = _Cell(_choose_letter(dots), role)
        elif dots:
            ground = cells[column].ground
            # Dim dots are seen on the ground of the screen and on a quiet area, and on nothing lighter.
            shown: Role = "ink" if role == "dim" and ground not in (None, "area") else role
            cells[column] = _Cell(
                _BRAILLE[dots], role if ground is None else combine_roles(shown, ground), ground
            )
