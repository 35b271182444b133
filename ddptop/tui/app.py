"""The application: a timer, a place, and the keys that move it. Views draw, the source knows."""

from __future__ import annotations

import sys
import termios
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, Event, Key, MouseScrollDown, MouseScrollUp, Paste
from textual.theme import Theme

from ddptop.analysis.frames import Frame
from ddptop.sources.base import Source
from ddptop.tui.keys import KEYS
from ddptop.tui.paint.line import Line
from ddptop.tui.painted import Painted
from ddptop.tui.scene import Place, Scene
from ddptop.tui.steer import Steer
from ddptop.tui.theme import DEFAULT_THEME, THEMES, Palette
from ddptop.tui.views.empty import empty
from ddptop.tui.views.footer import footer
from ddptop.tui.views.picture import picture

WHEEL_LINES = 3

GONE_EVERY_S = 0.5
"""Between two looks at whether the terminal is still there: Textual reads a dead one in a tight loop."""


class DdptopApp(Steer, App[None]):
    """The dashboard over a source of frames.

    `rate_hz`: pictures a second. `theme`: one of ours (`ddptop-dark`, `ddptop-light`, `ddptop-cvd`) or of
    Textual's. Raises ValueError for a theme that there is not.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        # Priority: they are then handled in the order in which they were pressed, before any widget.
        *(Binding(key.keys, key.action, key.help, show=False, priority=True) for key in KEYS),
        Binding("ctrl+c", "quit", "leave", show=False, priority=True),
    ]
    CSS = "Painted { width: 100%; height: 100%; }"

    def __init__(
        self,
        source: Source,
        *,
        rate_hz: float = 4.0,
        ascii_only: bool = False,
        theme: str | None = None,
        mouse: bool = True,
    ) -> None:
        super().__init__()
        self.source = source
        self.place = Place()
        self.shown: Frame | None = None
        self.frozen = False
        self._told: tuple[Frame | None, str | None] = (None, None)
        self._period_s = 1.0 / rate_hz
        self._ascii_only = ascii_only
        self._mouse = mouse
        for own in THEMES:
            self.register_theme(own)
        if theme is not None and theme not in self.available_themes:
            names = dict.fromkeys([*(own.name for own in THEMES), *self.available_themes])
            raise ValueError(f"there is no theme {theme!r}; choose from {', '.join(names)}")
        self.theme = theme or DEFAULT_THEME
        self._palette = Palette(self.current_theme)

    async def run_async(self, **options: Any) -> None:
        """As App's, with the mouse left to the terminal where that was asked for."""
        await super().run_async(**{**options, "mouse": self._mouse and options.get("mouse", True)})

    def compose(self) -> ComposeResult:
        """One picture."""
        yield Painted(self._ascii_only, self.repaint)

    async def on_event(self, event: Event) -> None:
        """An open prompt takes the keys before any binding sees them."""
        prompt = self.place.prompt
        if prompt is not None and isinstance(event, Key):
            self.type_key(prompt, event.key, event.character)
        elif prompt is not None and isinstance(event, Paste):
            prompt.paste(event.text)
            self.typed(prompt)
        else:
            await super().on_event(event)

    def on_mount(self) -> None:
        """Start to pull frames."""
        self.theme_changed_signal.subscribe(self, self._new_theme)
        self.set_interval(self._period_s, self.tick)
        if terminal_is_there():
            self.set_interval(GONE_EVERY_S, self._leave_if_alone)

    def _leave_if_alone(self) -> None:
        """A terminal may go without a hang-up reaching us (`setsid`, `nohup`): nobody is left to press q."""
        if not terminal_is_there():
            self.exit()

    def tick(self) -> int:
        """Repaint if the source has something new: a held recording costs nothing."""
        told = (self.source.latest(), self.source.status())
        if told[0] is self._told[0] and told[1] == self._told[1]:
            return 0
        self._told = told
        return self.repaint()

    def repaint(self) -> int:
        """Draw the lines that differ from those on the screen; returns how many these were."""
        canvas = self.query_one(Painted)
        width, height = canvas.size
        return canvas.show_lines(self._lines(width, height), self._palette) if width and height else 0

    def _lines(self, width: int, height: int) -> list[Line]:
        newest = self.source.latest()
        if not self.frozen or self.shown is None:
            self.shown = newest
        if self.shown is None:
            lines = empty(self.source.status(), width, height - 1, self._ascii_only)
            return [*lines, *(Line() for _ in range(height - 1 - len(lines))), footer(None, width)]
        return picture(self.scene(newest), width, height)

    def scene(self, newest: Frame | None = None) -> Scene:
        """What is looked at now. Only with a frame."""
        assert self.shown is not None
        status = self.source.status()
        return Scene(self.shown, self.place, self._ascii_only, self.frozen, newest, status)

    def on_click(self, event: Click) -> None:
        """Choose what was clicked; a second click on a rank opens its page."""
        target = self.query_one(Painted).target_at(event.screen_y)
        if target is not None:
            self.choose(target, event.chain > 1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        self.action_move(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        self.action_move(-WHEEL_LINES)

    def _new_theme(self, theme: Theme) -> None:
        self._palette = Palette(theme)
        self.repaint()


def terminal_is_there() -> bool:
    """Whether the standard input is a terminal that answers; one that hung up gives EIO."""
    try:
        termios.tcgetattr(sys.__stdin__)  # type: ignore[arg-type]  # None raises TypeError
    except (termios.error, OSError, TypeError, ValueError):
        return False
    return True
