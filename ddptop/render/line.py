"""A line of text in pieces, each with a role that the theme turns into a colour.

The signs of states and severities, so that no state is shown by colour alone; marking of search matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from rich.cells import cell_len, set_cell_size

from ddptop.frames.conditions import PROBLEM_STATES, STATES, tone_of
from ddptop.protocol.outlets import ANSI_COLOURS
from ddptop.protocol.texts import printable
from ddptop.render.text import text_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ddptop.frames.activity import LongActivity
    from ddptop.protocol.vocabulary import Severity

Role: TypeAlias = Literal[
    "text", "dim", "faint", "strong", "accent", "good", "warn", "bad", "badge", "match", "rule",
    "data", "forward", "backward", "wait", "transfer", "optimizer", "other",
    "sync", "torch", "area", "edge", "work", "ink", "heat0", "heat1", "heat2", "heat3",
]  # fmt: skip
"""What a piece means; never what it looks like. `bad` is for stalled, lost and failed alone. `area`: below a
curve; `edge`: the curve; `work`: in a bar, what is left without the waste. `heat0` to `heat3`: levels of a
heat map below a warning. `ink`: letters on a coloured ground, which take the ground's opposite."""

Ground: TypeAlias = Literal["", "cursor", "banner", "key", "word", "opened"]
"""The background of a whole line; `key`, `word` and `opened`: of a key in the last lines of the screen, of
what it does, and of the view that is open."""

_SEEN_WHEN_BLANK = frozenset(("badge", "match"))


def combine_roles(front: Role, ground: Role | Ground) -> Role:
    """The role of a cell in two colours: its letter in that of `front`, on the colour of `ground`.

    A sign over its own role looks solid, and is still there in text and where there are no colours.
    """
    return cast("Role", f"{front}/{ground}")


_AREA_AND_EDGE = combine_roles("area", "edge")


def without_colours(text: str, role: Role) -> str:
    """What a piece is in text: a cell in two shades of one area is solid, for there is no gap in it."""
    return "█" * len(text) if role == _AREA_AND_EDGE else text


def is_seen_when_blank(role: Role) -> bool:
    """Whether a role has a ground or a line of its own; a blank of any other has no colour."""
    return role in _SEEN_WHEN_BLANK or "/" in role


Piece: TypeAlias = "tuple[str, Role]"


def paint_text(text: str, role: str, color: bool) -> str:
    """The text in the ANSI colour of a role; unchanged without `color` and for a role that has none."""
    return f"\x1b[{ANSI_COLOURS[role]}m{text}\x1b[0m" if color and role in ANSI_COLOURS else text


Spot: TypeAlias = "tuple[int, int, object]"
"""First cell, the cell after the last, and what a click there does: the application knows what that is."""


class Line:
    """One line of a view, written from left to right.

    `target` is what a click on it selects (a rank, a place in a list); None where nothing is.
    `spots` are parts of it that do something else when clicked.
    """

    __slots__ = ("ground", "pieces", "spots", "target", "width")

    def __init__(self, text: str = "", role: Role = "text", *, ground: Ground = "") -> None:
        self.pieces: list[Piece] = []
        self.width = 0
        self.ground: Ground = ground
        self.target: int | None = None
        self.spots: tuple[Spot, ...] = ()
        if text:
            self.add(text, role)

    def add(self, text: str, role: Role = "text") -> Line:
        """Append a piece."""
        if text:
            self.pieces.append((text, role))
            self.width += len(text) if text.isascii() else cell_len(text)  # some thousand times a picture
        return self

    def signs(self, pieces: Iterable[Piece]) -> Line:
        """Append pieces whose letters are one cell wide each: a chart has thousands of them."""
        for piece in pieces:
            self.pieces.append(piece)
            self.width += len(piece[0])
        return self

    def extend(self, line: Line) -> Line:
        """Append all pieces of another line, with what a click on them does."""
        if line.spots:
            first = self.width
            self.spots += tuple([(begin + first, end + first, act) for begin, end, act in line.spots])
        self.pieces += line.pieces
        self.width += line.width
        return self

    def spot(self, begin: int, end: int, action: object) -> Line:
        """Let a click on the cells from `begin` up to `end` do something."""
        self.spots = (*self.spots, (begin, end, action))
        return self

    def pad(self, column: int) -> Line:
        """Blank up to a column; nothing where the line is already that long."""
        return self.add(" " * (column - self.width))

    def cut(self, width: int) -> Line:
        """At most `width` cells of this line; an ellipsis says that there was more."""
        if self.width <= width:
            return self
        shorter = Line(ground=self.ground)
        shorter.target = self.target
        shorter.spots = tuple(
            (begin, min(end, width), act) for begin, end, act in self.spots if begin < width
        )
        for text, role in self.pieces:
            room = width - shorter.width
            if text_width(text) < room:
                shorter.add(text, role)
                continue
            # `set_cell_size` never cuts a letter of two cells in half.
            return shorter.add(set_cell_size(text, room - 1) + "…" if room > 0 else "", role)
        return shorter

    def runs(self) -> list[Piece]:
        """The pieces in as few as look the same: every change of colour is some 30 bytes to the terminal."""
        runs: list[Piece] = []
        shown: str = ""
        shown_role: Role = "text"
        for text, role in self.pieces:
            if shown and role != shown_role:
                # A blank of another role looks the same, so it can join its neighbour.
                blank_alike = not (is_seen_when_blank(role) or is_seen_when_blank(shown_role))
                if blank_alike and text.isspace():
                    role = shown_role
                elif not (blank_alike and shown.isspace()):
                    runs.append((shown, shown_role))
                    shown = ""
            shown, shown_role = shown + text, role
        return [*runs, (shown, shown_role)] if shown else runs

    def cleaned(self) -> Line:
        """This line where all its letters are safe, else one in which they are: what a terminal is sent."""
        if all(text.isprintable() for text, _ in self.pieces):
            return self
        line = Line(ground=self.ground)
        line.target, line.spots = self.target, self.spots
        for text, role in self.pieces:
            line.add(printable(text), role)
        return line

    def on_own_ground(self) -> Line:
        """This line with its ground under its pieces alone, so that others can follow on the usual ground."""
        if self.ground:
            behind = self.ground
            self.pieces = [
                (text, role if "/" in role else cast("Role", f"{role}/{behind}"))
                for text, role in self.pieces
            ]
            self.ground = ""
        return self

    def mapped(self, change: Callable[[str], str]) -> Line:
        """This line in letters that a function changes cell for cell; it cannot be clicked."""
        line = Line(ground=self.ground)
        for text, role in self.pieces:
            line.add(change(text), role)
        return line

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.pieces == other.pieces and self.ground == other.ground

    __hash__ = None  # type: ignore[assignment]  # a line is written piece by piece

    def __str__(self) -> str:
        return "".join(without_colours(text, role) for text, role in self.pieces)


def draw_rule(width: int, left_text: str = "", right_text: str = "") -> Line:
    """A horizontal rule, with words set into it: on the left the first clauses that fit, on the right all or
    none."""
    if right_text and text_width(left_text.partition(" · ")[0]) + text_width(right_text) + 8 > width:
        right_text = ""
    line, tail = Line(), text_width(right_text) + 4 if right_text else 0
    while " · " in left_text and text_width(left_text) + tail + 4 > width:
        left_text = left_text.rpartition(" · ")[0]
    if left_text:
        line.add("── ", "rule").add(left_text, "dim").add(" ", "rule")
    line.add("─" * (width - line.width - tail), "rule")
    if right_text:
        line.add(" ").add(right_text, "dim").add(" ──", "rule")
    return line.cut(width)


def join_parts(parts: list[Line], width: int, gap: int = 2) -> Line:
    """Parts on one line, in order, up to the first that does not fit any more."""
    line = Line()
    for part in parts:
        if not part.width:
            continue
        if line.width + (gap if line.width else 0) + part.width > width:
            break
        line.add(" " * gap if line.width else "").extend(part)
    return line


def join_in_lines(parts: Iterable[Line], width: int) -> list[Line]:
    """Parts on as few lines as they need, in order; none of them is left out."""
    lines: list[Line] = []
    for part in parts:
        if lines and lines[-1].width + 2 + part.width <= width:
            lines[-1].add("  " if part.width else "").extend(part)
        elif part.width:
            lines.append(Line().extend(part.cut(width)))
    return lines


def side_by_side(left_lines: list[Line], right_lines: list[Line], column: int) -> list[Line]:
    """Two blocks of lines next to each other; the right one starts at `column`."""
    count = max(len(left_lines), len(right_lines))
    rows = []
    for index in range(count):
        line = Line()
        if index < len(left_lines):
            line.extend(left_lines[index].cut(column))
        if index < len(right_lines):
            line.pad(column).extend(right_lines[index])
        rows.append(line)
    return rows


def split_matches(piece: Piece, pattern: re.Pattern[str]) -> list[Piece]:
    """A piece, cut where it matches."""
    text, role = piece
    pieces: list[Piece] = []
    end = 0
    for hit in pattern.finditer(text):
        # An expression such as `x*` also matches nothing, between any two letters.
        if hit.end() > hit.start():
            pieces += [(text[end : hit.start()], role), (hit[0], "match")]
            end = hit.end()
    return [part for part in (*pieces, (text[end:], role)) if part[0]]


def highlight_matches(line: Line, pattern: re.Pattern[str] | None) -> Line:
    """The line with what matches in it marked, also across pieces. As wide as before."""
    text = str(line)
    if pattern is None or not pattern.search(text):
        return line
    # A match may begin in one piece and end in the next, so letters are marked, not pieces.
    inside = bytearray(len(text))
    for hit in pattern.finditer(text):
        inside[hit.start() : hit.end()] = b"\1" * (hit.end() - hit.start())
    result = Line(ground=line.ground)
    result.target, result.spots, result.width = line.target, line.spots, line.width
    first = 0
    for piece, role in line.pieces:
        begin = first
        for letter in range(first, first + len(piece)):
            last = letter + 1 == first + len(piece)
            if last or inside[letter + 1] != inside[letter]:
                result.pieces.append((text[begin : letter + 1], "match" if inside[letter] else role))
                begin = letter + 1
        first += len(piece)
    return result


_WORDS: dict[str, tuple[str, Role]] = {
    **{state: (words.sign, words.tone) for state, words in STATES.items()},
    "ended": ("○", "dim"),
    "here": ("●", "dim"),
    "missing": ("○", "warn"),
}
"""States, and words for ranks whose state is due to another rank, or while ranks are missing."""

_SEVERITIES: Mapping[Severity, str] = {"info": "●", "warning": "▲", "critical": "■"}


def of_state(state: str) -> tuple[str, Role]:
    """Sign and role of a run's or a rank's state."""
    return _WORDS.get(state, ("?", "warn"))


def of_activities(activities: Sequence[LongActivity]) -> tuple[str, Role]:
    """Sign and role of a run in these activities: of a warning where a signal has stopped a rank."""
    return ("▲", "warn") if activities[0].kind == "stopped" else ("○", "accent")


def of_severity(severity: Severity, kind: str = "") -> tuple[str, Role]:
    """Sign and role of an alert or a logged event."""
    role = tone_of(kind, severity)
    return "■" if role == "bad" else _SEVERITIES.get(severity, "●"), role


def worst_state(states: Sequence[str]) -> str | None:
    """The worst state among some ranks; None while all are well."""
    present = set(states)
    return next((state for state in PROBLEM_STATES if state in present), None)


def worst_sign(states: Sequence[str]) -> tuple[str, Role]:
    """Sign and role of the worst state among some ranks; a blank while all are well."""
    worst = worst_state(states)
    return (" ", "text") if worst is None else of_state(worst)
