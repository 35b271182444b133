"""Runs the app over a fake source without a terminal, or the keys and the picture alone, without the app."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from ddptop.render.text import ASCII
from ddptop.tui.app import Actions, DdptopApp
from ddptop.tui.gpu_past import GpuPast
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.picture import picture, without_frame
from tests.tui.fake import FakeSource
from tests.tui.screens import text_of

NEVER_HZ = 0.001
"""The timer does not fire within a test: pictures are asked for, so that nothing depends on time."""


class Sketch(Actions):
    """Keys and pictures as the app has them, without Textual: a hundredth of a second for a screen.

    `like`: another one, of the same frame and size, in which no key has been pressed: its first picture is
    this one's too.
    """

    def __init__(
        self,
        source: FakeSource,
        size: tuple[int, int],
        ascii_only: bool = False,
        like: Sketch | None = None,
    ) -> None:
        self.source, self.size, self.ascii_only = source, size, ascii_only
        self._one_at_a_time = threading.RLock()
        self.place, self.shown, self.frozen = Place(), None, False
        self.failures: list[str] = []
        self.runs, self.threads, self.left, self.clipboard = None, [], False, ""  # type: ignore[var-annotated]
        self.save_to, self._requested = None, ""
        self.gpu_past = GpuPast()
        if like is None:
            self.repaint()
        else:
            self.shown, self.lines = like.shown, like.lines
            self._layout, self._requested = like._layout, like._requested
            self.place.settle(self._layout)
            self.place.charts.kept.extend(like.place.charts.kept)

    def repaint(self) -> int:
        """Draw the picture; the place takes over its layout."""
        width, height = self.size
        self.shown = self.shown if self.frozen else self.source.latest()
        prompt = self.place.prompt
        self.gpu_past.notice(self.source.latest(), self.place.rank, self.shown if self.frozen else None)
        if self.shown is None:
            page = without_frame(self.place, self.source.status(), width, height, self.ascii_only)
        else:
            offered = self.palette(prompt.text) if prompt is not None and prompt.purpose == "palette" else ()
            alone = not any(thread.is_alive() for thread in self.threads)
            before = repr(self.place)
            page = picture(self.scene(), width, height, offered)
            assert not alone or repr(self.place) == before, "a picture changes nothing"
        self.lines, self._layout = page.lines, page.layout
        self.place.settle(page.layout)
        if (want := self.view.requested_detail(self.place)) != self._requested:
            self._requested = want
            self.source.request(want)
        return len(self.lines)

    def scene(self) -> Scene:
        """What is looked at."""
        assert self.shown is not None
        newest = self.source.latest()
        source = self.source
        return Scene(
            self.shown,
            self.place,
            ascii_only=self.ascii_only,
            frozen=self.frozen,
            newest=newest,
            status=source.status(),
            failure=source.failure(),
            gpu_past=self.gpu_past,
        )

    def press(self, *keys: str) -> str:
        """Press keys by Textual's names; the screen then."""
        for key in keys:
            with self._one_at_a_time:
                if self.place.prompt is not None:
                    letter = LETTERS.get(key, key if len(key) == 1 else None)
                    self.type_key(self.place.prompt, key, letter)
                else:
                    self.action_key(key)
        return self.text()

    def text(self) -> str:
        """The screen now."""
        with self._one_at_a_time:
            self.repaint()
            return self.picture_text()

    def picture_text(self) -> str:
        """The screen as it was painted last."""
        lines = (str(line).rstrip() for line in self.lines)
        return "".join(f"{line.translate(ASCII) if self.ascii_only else line}\n" for line in lines)

    def picture_svg(self) -> str:
        """Only Textual can."""
        return "<svg/>"

    def finish(self) -> None:
        """Notes it."""
        self.left = True

    def to_clipboard(self, text: str) -> None:
        """Notes it."""
        self.clipboard = text

    def themes(self) -> tuple[str, ...]:
        """Two."""
        return ("ddptop-dark", "ddptop-light")

    def change_setting(self, name: str, value: str) -> None:
        """There is no terminal here; ASCII is seen."""
        if name == "ascii":
            self.ascii_only = value == "on"

    def use_theme(self, name: str) -> None:
        """Nothing is coloured here."""

    def later(self, do: Callable[[], object]) -> None:
        """At once, but not while this thread draws: another one may ask for it."""
        with self._one_at_a_time:
            do()


LETTERS = {"space": " ", "percent_sign": "%", "slash": "/"}
"""What some keys type into a prompt."""


def sketch(source: FakeSource, size: tuple[int, int], *keys: str, ascii_only: bool = False) -> str:
    """The text of the screen after some keys, without the app."""
    return Sketch(source, size, ascii_only).press(*keys)


class Stage:
    """An open app in a test."""

    def __init__(self, app: DdptopApp, source: FakeSource, pilot: Pilot[None]) -> None:
        self.app, self.source, self.pilot = app, source, pilot

    async def press(self, *keys: str) -> str:
        """Press keys one after the other; the screen then."""
        for key in keys:
            await self.pilot.press(key)
        return await self.text()

    async def text(self) -> str:
        """The screen now."""
        await self.pilot.pause()
        self.app.repaint()
        await self.pilot.pause()
        return text_of(self.app)


def on_stage(
    source: FakeSource, size: tuple[int, int], act: Callable[[Stage], Awaitable[None]], **options: Any
) -> None:
    """Open the app at a size, act, close it."""

    async def run() -> None:
        app = DdptopApp(source, rate_hz=NEVER_HZ, **options)
        async with app.run_test(size=size) as pilot:
            await act(Stage(app, source, pilot))

    asyncio.run(run())


def screen(source: FakeSource, size: tuple[int, int], *keys: str, **options: Any) -> str:
    """The text of the screen after some keys."""
    seen: list[str] = []

    async def act(stage: Stage) -> None:
        await stage.text()
        seen.append(await stage.press(*keys))

    on_stage(source, size, act, **options)
    return seen[0]
