"""The runs that the screen can open: what it needs of the code that finds and opens them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ddptop.sources.base import WithoutPlayback

if TYPE_CHECKING:
    from ddptop.sources.base import Source


@dataclass(frozen=True, slots=True)
class RunChoice:
    """One run. None: not known."""

    name: str
    id: str
    live: bool
    state: str
    """live; of a recording: finished, failed, lost (without an end), unreadable; live while it grows."""
    ranks: int | None
    script: str
    started_at: float | None
    """Unix seconds."""
    path: str | None
    """The recording."""
    note: str | None = None
    """Why it cannot be opened, or what of it is missing."""


class Runs(Protocol):
    """Finds and opens runs. Both may be slow: they are called in a thread."""

    def choices(self) -> Sequence[RunChoice]:
        """All runs, live ones first, then the newest. Raises ValueError with the reason where there is
        none."""

    def open(self, choice: RunChoice) -> Source:
        """A source of its frames, not yet started. Raises ValueError with the reason why not."""


class NoSource(WithoutPlayback):
    """The source before a run is chosen: no frames, and a line with what to do."""

    def start(self) -> None:
        """Nothing to start."""

    def latest(self) -> None:
        """Never a frame."""

    def status(self) -> str:
        """What to do."""
        return "choose a run: Enter opens it"

    def failure(self) -> str | None:
        """Nothing to fail."""
        return None

    def focus(self, rank: int | None) -> None:
        """Nothing to focus."""

    def request(self, text: str) -> None:
        """Nothing to ask for."""

    def close(self) -> None:
        """Nothing to end."""
