"""The one interface between screens and what they show."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame, RunInfo


class Source(Protocol):
    """Provides frames. All methods return at once and may be called from any thread.

    A frame is always complete, with all the history: a screen accumulates nothing.
    """

    def start(self) -> None:
        """Begin to read, in a thread of its own."""

    def latest(self) -> Frame | None:
        """The newest frame, or None while there is none yet. The same object until there is a newer one."""

    def status(self) -> str | None:
        """Why no frame comes, in one line for a person; None: frames come."""

    def failure(self) -> str | None:
        """The internal error that stopped the source's thread, in one line; None while the thread works.

        The thread starts over at the next request to play or to seek, or by itself after a second.
        """

    def focus(self, rank: int | None) -> None:
        """Request the single steps of this rank in coming frames."""

    def request(self, text: str) -> None:
        """Request one more part of coming frames, by a text that `ddptop.frames.detail` describes; empty:
        none."""

    def play(self, playing: bool | None = None) -> None:
        """Run or hold the recording; None toggles. Live: nothing."""

    def set_speed(self, factor: float) -> None:
        """Playback speed, 1 = as it was. Live: nothing."""

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """Go to a step, to a share of the duration (0..1), or some steps on or back. Live: nothing."""

    def close(self) -> None:
        """End the thread and free what it holds; may be called twice. A thread that is busy for longer than
        `threads.LEAVE_S` is not waited for."""


class WithoutPlayback:
    """A source that shows what is now: it cannot be held, played or moved."""

    def play(self, playing: bool | None = None) -> None:
        """Nothing to play."""

    def set_speed(self, factor: float) -> None:
        """Nothing to play."""

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """Nothing to play."""


def is_over(run: RunInfo) -> bool:
    """Whether nothing follows. Failed ranks may be started again: only the exit code is final."""
    return run.state == "finished" or (run.state == "failed" and run.exit_code is not None)


def error_line(error: BaseException) -> str:
    """An internal error in one line: its type and text, and the line of code that raised it."""
    # In one line: it stands where a screen has room for one.
    text = " ".join(str(error).split())
    calls = traceback.extract_tb(error.__traceback__)
    place = f" at {calls[-1].filename.rsplit('/', 1)[-1]}:{calls[-1].lineno}" if calls else ""
    return f"internal error: {type(error).__name__}{': ' + text if text else ''}{place}"
