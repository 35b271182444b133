"""The application: a timer that pulls frames, the keys and the mouse. Views draw, a source has the frames."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import (
    Click,
    Event,
    Key,
    MouseDown,
    MouseMove,
    MouseScrollDown,
    MouseScrollUp,
    MouseUp,
    Paste,
)
from textual.filter import LineFilter
from textual.theme import Theme

from ddptop.frames.frame import Frame
from ddptop.protocol.outlets import safe_text
from ddptop.render.line import Spot
from ddptop.render.text import clean_text
from ddptop.sources.base import Source, error_line
from ddptop.tui.actions import Actions
from ddptop.tui.all_views import VIEWS
from ddptop.tui.gpu_past import GpuPast
from ddptop.tui.keys import COMMON_KEYS, RECORDING_KEYS, Action, Do
from ddptop.tui.lines_widget import LinesWidget, WithoutColour
from ddptop.tui.runs import Runs
from ddptop.tui.scene import Page, Place, Scene
from ddptop.tui.terminal import Attention, ScreenDriver, ended_by_signals, terminal_is_there
from ddptop.tui.theme import DEFAULT_THEME, THEMES, Palette, in_colours
from ddptop.tui.views.picture import picture, without_frame

WHEEL_LINES = 3

TERMINAL_CHECK_S = 0.5
"""Time between two checks that the terminal is still there: Textual reads a closed one in a tight loop."""

FIRST_POLL_S, FIRST_POLLS = 0.05, 40
"""Interval and number of polls for the first frame: a user waits for it."""


NO_ORDER = "this page has no other order"

WITHOUT_EFFECT = {
    Do.MOVE: "the list ends here",
    Do.PAGE: "the list ends here",
    Do.TO_END: "the list ends here",
    Do.VIEW: "this view is open",
    Do.LEAVE: "there is nothing to go back to",
    Do.OPEN: "there is nothing to open here",
    Do.SORT: NO_ORDER,
    Do.INVERT: NO_ORDER,
    Do.SIDEWAYS: "nothing is beside this",
    Do.WHY: "this page explains the verdict",
}
"""What is said where one of these changes nothing on the screen: a key is always answered at once."""

ENDS = tuple(key for key in COMMON_KEYS if key.action.do is Do.TO_END)
"""In a recording they go to its begin and end."""

Guide: TypeAlias = Callable[[Frame], str]


class DdptopApp(Actions, App[None]):
    """The dashboard over a source of frames.

    `rate_hz`: pictures a second. `theme`: one of ours (their names begin with `ddptop-`) or of
    Textual's. `place`: where to begin. `runs`: where other runs are found. `save_to`: folder for
    the key `s`. `guide`: explains a frame in a line above the keys. Raises ValueError for an unknown
    theme. The caller closes the source that is shown in the end (`source`).
    """

    ENABLE_COMMAND_PALETTE = False  # ours takes every key at once and has ranks and runs
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", "stop", show=False, priority=True),
    ]
    CSS = "LinesWidget { width: 100%; height: 100%; }"

    def __init__(
        self,
        source: Source,
        *,
        rate_hz: float = 4.0,
        ascii_only: bool = False,
        theme: str | None = None,
        mouse: bool = True,
        bell: bool = True,
        place: Place | None = None,
        runs: Runs | None = None,
        save_to: Path | None = None,
        guide: Guide | None = None,
    ) -> None:
        super().__init__()
        self._guide = guide
        self.source = source
        self.runs = runs
        self.save_to = save_to
        self._dragged: Spot | None = None
        self.threads = []
        self.failures = []
        self.place = Place() if place is None else place
        if hasattr(source, "other"):
            self.place.open("runs")
        self.shown: Frame | None = None
        self.frozen = False
        self.chosen_theme: str | None = None
        """The theme that was chosen on the screen itself."""
        self._last_seen: tuple[Frame | None, str | None, str | None] = (None, None, None)
        self._requested = ""
        self._n_drawn = 0
        self._gpu_past = GpuPast()
        self._period_s = 1.0 / rate_hz
        self._ascii_only = ascii_only
        self._mouse = mouse
        self._attention = Attention() if bell else None
        for our_theme in THEMES:
            self.register_theme(our_theme)
        if theme is not None and theme not in self.available_themes:
            raise ValueError(f"there is no theme {theme!r}; choose from {', '.join(self.themes())}")
        self.theme = theme or DEFAULT_THEME
        self._basic = self.console.color_system == "standard" and not self.no_color
        if self._basic:
            self.ansi_color = True  # or textual would turn the terminal's colours into its own
        self.shown_palette = self._palette_of(self.current_theme)

    async def run_async(self, **options: Any) -> None:
        """As App's, with the mouse left to the terminal where that was asked for."""
        if terminal_is_there():
            for name in ("COLUMNS", "LINES"):  # exported, they would hide every resize from Textual
                os.environ.pop(name, None)
        with ended_by_signals(self._end_with):
            await super().run_async(**{**options, "mouse": self._mouse and options.get("mouse", True)})

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The filters of a line that Textual applies. For NO_COLOR its own would turn colours grey, as on
        lines that a resize uncovers."""
        return [WithoutColour()] if self.no_color else super().get_line_filters()

    def get_driver_class(self) -> type[Driver]:
        """Textual's for this platform, adjusted."""
        usual = super().get_driver_class()
        return ScreenDriver if usual is LinuxDriver else usual

    def _end_with(self, code: int) -> None:
        self.exit(return_code=code)

    def _fatal_error(self) -> None:
        """End the screen after an internal error, which the command says in one line.

        Textual prints a traceback with the values of all local variables.
        """
        if self._exception is not None:
            self.failures.append(f"the screen has ended by an {error_line(self._exception)}")
        self._close_messages_no_wait()

    def compose(self) -> ComposeResult:
        """One picture."""
        yield LinesWidget(self._ascii_only, self.repaint)

    async def on_event(self, event: Event) -> None:
        """An open prompt, else the open view, takes the keys before Textual does, but Ctrl-C and Ctrl-Z."""
        prompt = self.place.prompt
        if prompt is not None and isinstance(event, Key) and event.key not in ("ctrl+c", "ctrl+z"):
            self.type_key(prompt, event.key, event.character)
        elif prompt is not None and isinstance(event, Paste):
            prompt.paste(event.text)
            self.typed(prompt)
        # Not as bindings of Textual's: those belong to the class, and views bring their own keys.
        elif isinstance(event, Key) and (VIEWS.has_key(event.key) or event.is_printable):
            self.action_key(event.key)
        else:
            await super().on_event(event)

    def on_mount(self) -> None:
        """Start to pull frames."""
        self.theme_changed_signal.subscribe(self, self._new_theme)
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._ticks = self.set_interval(self._period_s, self.tick)
        if self.source.latest() is None:
            self._first_polls = self.set_interval(FIRST_POLL_S, self._poll_first_frame, repeat=FIRST_POLLS)
        if self.view.lists_runs and self.runs is not None:
            self.look_up()
        if terminal_is_there():
            self.set_interval(TERMINAL_CHECK_S, self._check_terminal)

    def _check_terminal(self) -> None:
        """Exit when the terminal is closed; with `setsid` or `nohup` no SIGHUP is sent."""
        if not terminal_is_there():
            self.exit()

    def _poll_first_frame(self) -> None:
        if self.source.latest() is not None:
            self._first_polls.stop()
            self.tick()

    def tick(self) -> int:
        """Repaint if the source has something new: a paused recording costs nothing."""
        seen = (self.source.latest(), self.source.status(), self.source.failure())
        # A frame is compared by identity: a source gives the same object until something is new.
        if seen[0] is self._last_seen[0] and seen[1:] == self._last_seen[1:]:
            return 0
        self._last_seen = seen
        called = "" if self._attention is None or seen[0] is None else self._attention.see(seen[0])
        # Written by the driver, so that it cannot come in the middle of an escape sequence of a picture.
        if called and self._driver is not None and not self.is_headless:
            self._driver.write(called)
        self._gpu_past.notice(seen[0], self.place.rank, self.shown if self.frozen else None)
        if not self.frozen:
            self.follow_start(seen[0])
        return self.repaint()

    def repaint(self) -> int:
        """Draw the lines that differ from those on the screen; returns how many these were."""
        canvas = self.query_one(LinesWidget)
        width, height = canvas.size
        drawn = 0
        if width and height:
            page = self._draw_page(width, height)
            self.place.settle(page.layout)
            drawn = canvas.show_lines(page.lines, self.shown_palette)
            self._n_drawn += drawn
        if (want := self.view.requested_detail(self.place)) != self._requested:
            self._requested = want
            self.source.request(want)
        return drawn

    def _draw_page(self, width: int, height: int) -> Page:
        newest = self.source.latest()
        if not self.frozen or self.shown is None:
            self.shown = newest
        if self.shown is None:
            status = self.source.failure() or self.source.status()
            return without_frame(self.place, status, width, height, self._ascii_only)
        prompt = self.place.prompt
        offered = self.palette(prompt.text) if prompt is not None and prompt.purpose == "palette" else ()
        return picture(self.scene(newest), width, height, offered)

    def scene(self, newest: Frame | None = None) -> Scene:
        """What is shown now. Only with a frame."""
        assert self.shown is not None
        second_frame = getattr(self.source, "other", None)
        return Scene(
            self.shown,
            self.place,
            ascii_only=self._ascii_only,
            frozen=self.frozen,
            newest=newest,
            status=self.source.status(),
            failure=self.source.failure(),
            where=getattr(self.source, "where", ""),
            other=second_frame() if second_frame is not None else None,
            guide="" if self._guide is None else self._guide(self.shown),
            gpu_past=self._gpu_past,
        )

    def action_key(self, name: str) -> None:
        """Do what a key does on every screen; where it has changed nothing, say why."""
        n_of_note, n_drawn = int(self.place.note != ""), self._n_drawn  # a note that goes is a line
        requested = self._requested
        key = VIEWS.meaning(name, self.place.view, replay=self.playback is not None)
        super().action_key(name)
        # Another moment, or a detail that was asked for, comes with a later frame.
        comes_later = self._requested != requested or (self.playback and key in (*RECORDING_KEYS, *ENDS))
        if key is None or self._n_drawn > n_drawn + n_of_note or self.place.note or comes_later:
            return
        if key.action.do in WITHOUT_EFFECT:
            self.show_note(WITHOUT_EFFECT[key.action.do])
        elif callable(key.action.do):
            self.show_note(f"{key.shown} changes nothing now: {key.help}")

    def finish(self) -> None:
        """Leave the screen."""
        self.exit()

    def action_interrupt(self) -> None:
        """Leave the screen as an interrupted command: Ctrl-C."""
        self._end_with(128 + signal.SIGINT)

    def later(self, do: Callable[[], object]) -> None:
        """From any thread: do something in the screen's own."""
        self.call_later(do)

    def picture_text(self) -> str:
        """The screen as text."""
        return self.query_one(LinesWidget).text()

    def picture_svg(self) -> str:
        """The screen as an SVG."""
        name = self.shown.run.name if self.shown is not None else ""
        return self.query_one(LinesWidget).svg(
            in_colours(self.current_theme), f"ddptop {clean_text(name)}".strip()
        )

    def to_clipboard(self, text: str) -> None:
        """Copy a text by the terminal (OSC 52)."""
        self.copy_to_clipboard(safe_text(text))

    def themes(self) -> tuple[str, ...]:
        """Ours, then Textual's."""
        return tuple(dict.fromkeys([*(our_theme.name for our_theme in THEMES), *self.available_themes]))

    def use_theme(self, name: str) -> None:
        """Draw with this theme."""
        self.theme = self.chosen_theme = name

    def change_setting(self, name: str, value: str) -> None:
        """Set the rate, ASCII or the bell from now on."""
        if name == "rate":
            self._ticks.stop()
            self._ticks = self.set_interval(1.0 / float(value), self.tick)
        elif name == "ascii":
            self._ascii_only = value == "on"
            self.query_one(LinesWidget).use_ascii(self._ascii_only)
        elif name == "bell":
            self._attention = Attention() if value == "on" else None

    def _new_theme(self, theme: Theme) -> None:
        self.shown_palette = self._palette_of(theme)
        self.repaint()

    def _palette_of(self, theme: Theme) -> Palette:
        return Palette(theme, self._basic, plain=self.no_color)

    def on_mouse_down(self, event: MouseDown) -> None:
        """A click on the bar of a recording goes to a place in it; the bar follows the mouse from then on."""
        spot = self.query_one(LinesWidget).spot_at(event.screen_x, event.screen_y)
        if spot is not None and spot[2] == Do.SCRUB():
            self._dragged = spot
            self._drag_bar(event.screen_x)

    def on_mouse_move(self, event: MouseMove) -> None:
        """The bar of a recording follows while its button is held; so does the crosshair of the charts."""
        if self._dragged is not None:
            self._drag_bar(event.screen_x)
        elif event.button and self.view.hover(self.place, event.screen_x - self.place.inset, event.screen_y):
            self.repaint()

    def on_mouse_up(self, event: MouseUp) -> None:
        """The bar no longer follows."""
        self._dragged = None

    def on_click(self, event: Click) -> None:
        """A spot, a cell of a chart or of the heat map, or a row; a second click on a row opens it."""
        x, y = event.screen_x, event.screen_y
        painted = self.query_one(LinesWidget)
        spot, target = painted.spot_at(x, y), painted.target_at(y)
        if spot is not None:
            action = spot[2]
            if isinstance(action, Action) and action.do is not Do.SCRUB:
                self.place.note = ""
                self.act(action)
        elif self.place.prompt is not None:
            return
        elif not self.view.click(self, x - self.place.inset, y, twice=event.chain > 1) and target is not None:
            self.choose(target, event.chain > 1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        self.action_move(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        self.action_move(-WHEEL_LINES)

    def _drag_bar(self, x: int) -> None:
        assert self._dragged is not None
        begin, end, _ = self._dragged
        # The middle of the cell under the mouse.
        share = (x - begin + 0.5) / max(1, end - begin)
        self.act(Do.SCRUB(min(1.0, max(0.0, share))))
