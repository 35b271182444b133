"""Two recordings driven together, step by step, to compare two runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.sources.base import Source

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame
    from ddptop.sources.replay import ReplaySource


class PairSource(Source):
    """The first recording's frames; `other` has the second one's, at the same step as soon as it is there.

    The second one is closed with the first.
    """

    def __init__(self, first: ReplaySource, second: ReplaySource) -> None:
        self._first = first
        self._second = second
        self._asked: int | None = None
        self._seen: tuple[Frame | None, Frame | None] = (None, None)
        self._shown: Frame | None = None

    def start(self) -> None:
        """See Source."""
        self._second.play(False)
        self._first.start()
        self._second.start()

    def latest(self) -> Frame | None:
        """The first recording's frame; a new object also when the second one has moved."""
        frame = self._first.latest()
        if frame is not None and frame.group.step is not None and frame.group.step != self._asked:
            self._asked = frame.group.step
            self._second.seek(step=self._asked)
        seen = (frame, self._second.latest())
        if seen[0] is not self._seen[0] or seen[1] is not self._seen[1]:
            self._shown = frame if frame is None or frame is not self._seen[0] else replace(frame)
            self._seen = seen
        return self._shown

    def other(self) -> Frame | None:
        """The second recording's frame; None while there is none."""
        return self._second.latest()

    def status(self) -> str | None:
        """See Source."""
        return self._first.status() or self._second.status()

    def failure(self) -> str | None:
        """See Source."""
        return self._first.failure() or self._second.failure()

    def focus(self, rank: int | None) -> None:
        """See Source."""
        self._first.focus(rank)

    def want(self, text: str) -> None:
        """See Source."""
        self._first.want(text)

    def play(self, playing: bool | None = None) -> None:
        """See Source."""
        self._first.play(playing)

    def set_speed(self, factor: float) -> None:
        """See Source."""
        self._first.set_speed(factor)

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """See Source; a share is one of the first recording."""
        self._first.seek(step=step, share=share, by_steps=by_steps)

    def close(self) -> None:
        """See Source."""
        self._first.close()
        self._second.close()
