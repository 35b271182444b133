"""Runs the app over a fake source without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from ddptop.tui.app import DdptopApp
from tests.tui.fake import FakeSource
from tests.tui.screens import text_of

NEVER_HZ = 0.001
"""The timer does not fire within a test: pictures are asked for, so that nothing depends on time."""


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
