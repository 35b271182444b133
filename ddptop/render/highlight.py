"""Matches of a search, marked in lines that were painted without knowing of it."""

from __future__ import annotations

import re

from ddptop.render.line import Line, Piece


def marked(piece: Piece, pattern: re.Pattern[str]) -> list[Piece]:
    """A piece, cut where it matches."""
    text, role = piece
    pieces: list[Piece] = []
    at = 0
    for found in pattern.finditer(text):
        if found.end() > found.start():
            pieces += [(text[at : found.start()], role), (found[0], "match")]
            at = found.end()
    return [part for part in (*pieces, (text[at:], role)) if part[0]]


def highlight(line: Line, pattern: re.Pattern[str] | None) -> Line:
    """The line with what matches in it marked, also across pieces. As wide as before."""
    text = str(line)
    if pattern is None or not pattern.search(text):
        return line
    inside = bytearray(len(text))
    for found in pattern.finditer(text):
        inside[found.start() : found.end()] = b"\1" * (found.end() - found.start())
    result = Line(ground=line.ground)
    result.target, result.spots, result.width = line.target, line.spots, line.width
    at = 0
    for piece, role in line.pieces:
        begin = at
        for here in range(at, at + len(piece)):
            last = here + 1 == at + len(piece)
            if last or inside[here + 1] != inside[here]:
                result.pieces.append((text[begin : here + 1], "match" if inside[here] else role))
                begin = here + 1
        at += len(piece)
    return result
