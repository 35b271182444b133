"""The runs of this machine for the screen's picker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError

if TYPE_CHECKING:
    from ddptop.sources.base import Source
    from ddptop.tui.runs import RunChoice

MOST_RECORDINGS = 200
"""Newest first: each is opened to tell its state."""


class MachineRuns:
    """Finds and opens live runs and recordings."""

    def choices(self) -> Sequence[RunChoice]:
        """Live runs, then recordings, newest first. Raises ValueError where they cannot be looked up."""
        from ddptop.cli.catalog import of_live, of_recording
        from ddptop.cli.find import live, recorded

        try:
            running = live()
            kept = recorded(running)[:MOST_RECORDINGS]
        except CliError as error:
            raise ValueError(str(error)) from None
        return [*map(of_live, running), *map(of_recording, kept)]

    def open(self, choice: RunChoice) -> Source:
        """A live run, or the end of a recording. Raises ValueError where it is neither any more."""
        from ddptop.cli.find import live
        from ddptop.recording.reader import Recording, RecordingError
        from ddptop.sources.live import LiveSource
        from ddptop.sources.replay import ReplaySource

        try:
            found = [run for run in live() if run.run_id == choice.id] if choice.live else []
        except CliError as error:
            raise ValueError(str(error)) from None
        if found:
            return LiveSource(found[0])
        if choice.path is None:
            raise ValueError(f"{choice.name} has ended and left no recording")
        path = Path(choice.path)
        try:
            Recording.open(path).close()
        except (RecordingError, OSError) as error:
            raise ValueError(f"{choice.name} cannot be opened: {error}") from None
        source = ReplaySource(path, playing=False)
        source.seek(share=1.0)
        return source
