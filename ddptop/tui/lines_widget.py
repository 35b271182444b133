"""The widget that shows lines: by the Line API, and only those that have changed."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.strip import Strip
from textual.theme import Theme
from textual.widget import Widget

from ddptop.render.line import Line, Spot
from ddptop.render.text import ASCII
from ddptop.tui.theme import Palette


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
        self._strips: list[Strip] = []

    def show_lines(self, lines: list[Line], palette: Palette) -> int:
        """Replace the picture; returns how many lines were redrawn."""
        width = self.size.width
        whole = palette is not self._palette or len(lines) != len(self._lines)
        self._palette = palette
        # Lines that look the same may yet mean something else when clicked: they are kept, not drawn.
        changed = [at for at, line in enumerate(lines) if whole or line != self._lines[at]]
        if whole:
            self._strips = [Strip.blank(0)] * len(lines)
        for at in changed:
            self._strips[at] = self._strip(lines[at], width, palette)
        self._lines = lines
        if whole:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, at, width, 1) for at in changed))
        return len(changed)

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

    def text(self) -> str:
        """The picture as text, a line each, without blanks at their ends."""
        return "".join(f"{self._plain(str(line)).rstrip()}\n" for line in self._lines)

    def svg(self, theme: Theme, title: str) -> str:
        """The picture as an SVG in a theme's colours, also where the terminal has 16 or none."""
        from ddptop.tui.svg import svg

        return svg([line.mapped(self._plain) for line in self._lines], self.size.width, Palette(theme), title)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Textual asks for some lines.

        Widget's own method handles borders, padding, tints and links around each line and copies its segments
        three times: most of Textual's time for a picture, and this widget has none of them.
        """
        strips = [self.render_line(y) for y in crop.line_range]
        for line_filter in self.get_line_filters():  # NO_COLOR
            if not isinstance(line_filter, ANSIToTruecolor):  # a palette has no such colours while that is on
                strips = [strip.apply_filter(line_filter, self.background_colors[1]) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One line."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, Style.null())  # textual's NO_COLOR filter needs a style

    def _strip(self, line: Line, width: int, palette: Palette) -> Strip:
        segments = [
            Segment(self._plain(text), palette.style(role, line.ground)) for text, role in line.runs()
        ]
        segments.append(Segment(" " * max(0, width - line.width), palette.fill(line.ground)))
        return Strip(segments, max(width, line.width))

    def _plain(self, text: str) -> str:
        return text.translate(ASCII) if self._ascii_only else text
