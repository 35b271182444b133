"""The widget that shows lines: by the Line API, and only those that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from operator import ne, or_
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import CompositorUpdate
from textual.color import Color
from textual.events import Resize
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from ddptop.render.line import Ground, Line, Piece, Role, Spot, is_seen_when_blank
from ddptop.render.text import ASCII
from ddptop.tui.theme import Palette


class WithoutColour(LineFilter):
    """Takes colours out of lines, and leaves bold, dim, reverse and underline."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Segments without colours."""
        return [
            Segment(text, None if style is None else style.without_color, control)
            for text, style, control in segments
        ]


CSI = "\x1b["
"""Begin of an escape sequence."""

NEAR = 6
"""Unchanged cells between two changed ones that are sent with them: moving the cursor costs as many bytes."""


def changed_spans(before: Line, after: Line, width: int) -> list[tuple[int, int]]:
    """First cell, and the cell after the last one, of each part of a line that changed.

    All of it where its ground changed or letters are not one cell wide each.
    """
    (old_letters, old_roles), (new_letters, new_roles) = _cells_of(before, width), _cells_of(after, width)
    # Cells can be counted by letters only where every letter is one cell wide.
    if before.ground != after.ground or not len(old_letters) == len(new_letters) == width:
        return [(0, width)]
    spans: list[tuple[int, int]] = []
    is_changed = map(or_, map(ne, old_letters, new_letters), map(ne, old_roles, new_roles))
    for x in compress(range(width), is_changed):
        if old_letters[x] != new_letters[x] or _find_seen_role(
            old_letters[x], old_roles[x]
        ) != _find_seen_role(new_letters[x], new_roles[x]):
            near = spans and x - spans[-1][1] <= NEAR
            spans.append((spans.pop()[0] if near else x, x + 1))
    return spans


def _cells_of(line: Line, width: int) -> tuple[str, list[Role]]:
    """Letter and role of each cell, blanks up to `width`; fewer where a letter is not one cell wide."""
    text = "".join([piece for piece, _ in line.pieces])
    if len(text) != line.width:
        return "", []
    roles: list[Role] = []
    for piece, role in line.pieces:
        roles += [role] * len(piece)
    return text.ljust(width), roles + [FILL] * (width - len(roles))


def _find_seen_role(letter: str, role: Role) -> Role:
    """The role that is seen: a blank of most roles has no colour."""
    return FILL if letter == " " and not is_seen_when_blank(role) else role


FILL: Role = "text"
"""Role of the cells after a line's last letter."""


class Written(CompositorUpdate):
    """Escape sequences and letters that Textual writes to the terminal as they are."""

    def __init__(self, text: str) -> None:
        self.text = text

    def render_segments(self, console: Console) -> str:
        """The text."""
        return self.text


class LinesWidget(Widget):
    """Shows the lines that it was given last."""

    can_focus = False
    ALLOW_SELECT = False

    def __init__(self, ascii_only: bool, on_new_size: Callable[[], object]) -> None:
        """`on_new_size` is called when the widget has taken another size, to be shown lines that fit it."""
        super().__init__()
        self._on_new_size = on_new_size
        self._ascii_only = ascii_only
        self._palette: Palette | None = None
        self._lines: list[Line] = []
        self._codes: dict[tuple[Role, Ground], str] = {}
        self._to_draw = True
        """Whether Textual is to draw all of it: until then parts of it are of no use."""

    def use_ascii(self, ascii_only: bool) -> None:
        """Draw with ASCII characters only, or with all: the next picture is drawn as a whole."""
        self._ascii_only, self._palette = ascii_only, None

    def show_lines(self, lines: list[Line], palette: Palette) -> int:
        """Replace the picture; returns how many lines were redrawn."""
        width = self.size.width
        before = [] if palette is not self._palette or len(lines) != len(self._lines) else self._lines
        # A line like that before it is as clean.
        lines = [line if before and line == before[row] else line.cleaned() for row, line in enumerate(lines)]
        # Lines that look the same may yet mean something else when clicked: they are kept, not drawn.
        changed = [row for row, line in enumerate(lines) if not before or line != before[row]]
        if palette is not self._palette:
            self._codes = {}
        self._palette, self._lines = palette, lines
        if not before or self._to_draw:
            self._to_draw = True
            self.refresh()
        elif changed:
            self._draw_changes(before, changed, width, palette)
        return len(changed)

    def _draw_changes(self, before: list[Line], changed: list[int], width: int, palette: Palette) -> None:
        """Send the cells in which these lines differ from those before.

        Textual's own update sends a line from its begin, and a colour with every piece of it.
        """
        sequences: list[str] = []
        code = ""
        for row in changed:
            line = self._lines[row]
            spans = changed_spans(before[row], line, width)
            pieces = [*line.runs(), (" " * (width - line.width), FILL)] if spans else []
            for begin, end in spans:
                sequences.append(f"{CSI}{row + 1};{begin + 1}H")
                for text, role in self._cut_pieces(pieces, begin, end, width):
                    if (new := self._find_code(role, line.ground)) != code:
                        sequences.append(new)
                        code = new
                    sequences.append(self._to_ascii(palette.letters(text, role)))
        if sequences:
            # Typed as Any: Textual does not annotate its own updates as what `_display` takes.
            written: Any = Written("".join([*sequences, f"{CSI}0m"]))
            self.app._display(self.screen, written)

    def _cut_pieces(self, pieces: list[Piece], begin: int, end: int, width: int) -> Iterator[Piece]:
        """What is in some cells of a line; all of it where letters are not one cell wide each."""
        cell = 0
        for text, role in pieces:
            if (begin, end) == (0, width):
                yield text, role
            elif part := text[max(0, begin - cell) : max(0, end - cell)]:
                yield part, role
            cell += len(text)
            if cell >= end and end < width:
                return

    def _find_code(self, role: Role, ground: Ground) -> str:
        """The escape sequence for the look of a role, whatever was in force before."""
        if (role, ground) not in self._codes:
            assert self._palette is not None
            strip = self._filter_strips([Strip([Segment("x", self._palette.style(role, ground))])])[0]
            code = strip.render(self.app.console).partition("x")[0]
            self._codes[role, ground] = f"{CSI}0;{code.removeprefix(CSI)}" if code else f"{CSI}0m"
        return self._codes[role, ground]

    def on_resize(self, event: Resize) -> None:
        """The new size is in force here: the app receives the event before its widgets are laid out."""
        self.forget()
        self._on_new_size()

    def forget(self) -> None:
        """Redraw everything next time: the width has changed."""
        self._lines, self._palette = [], None

    def target_at(self, y: int) -> int | None:
        """What a click on this line selects."""
        return self._lines[y].target if 0 <= y < len(self._lines) else None

    def spot_at(self, x: int, y: int) -> Spot | None:
        """What else a click on this cell does."""
        spots = self._lines[y].spots if 0 <= y < len(self._lines) else ()
        return next((spot for spot in spots if spot[0] <= x < spot[1]), None)

    @property
    def lines(self) -> list[Line]:
        """The picture's lines, as they were given."""
        return self._lines

    def text(self) -> str:
        """The picture as text, a line each, without blanks at their ends."""
        return "".join(f"{self._to_ascii(str(line)).rstrip()}\n" for line in self._lines)

    def svg(self, theme: Theme, title: str) -> str:
        """The picture as an SVG in a theme's colours, also where the terminal has 16 or none."""
        from ddptop.tui.svg import draw_svg

        return draw_svg(
            [line.mapped(self._to_ascii) for line in self._lines], self.size.width, Palette(theme), title
        )

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual asks for some lines.

        Widget's own method handles borders, padding, tints and links around each line and copies its segments
        three times: most of Textual's time for a picture, and this widget has none of them.
        """
        self._to_draw = False
        strips = self._filter_strips([self.render_line(y) for y in crop.line_range])
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def _filter_strips(self, strips: list[Strip]) -> list[Strip]:
        for line_filter in self.get_line_filters():  # NO_COLOR
            if not isinstance(line_filter, ANSIToTruecolor):  # a palette has no such colours while that is on
                strips = [strip.apply_filter(line_filter, self.background_colors[1]) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One line."""
        if self._palette is None or y >= len(self._lines):
            return Strip.blank(self.size.width, Style.null())  # textual's NO_COLOR filter needs a style
        line, palette = self._lines[y], self._palette
        segments = [
            Segment(self._to_ascii(palette.letters(text, role)), palette.style(role, line.ground))
            for text, role in line.runs()
        ]
        segments.append(Segment(" " * max(0, self.size.width - line.width), palette.fill(line.ground)))
        return Strip(segments, max(self.size.width, line.width))

    def _to_ascii(self, text: str) -> str:
        return text.translate(ASCII) if self._ascii_only else text
