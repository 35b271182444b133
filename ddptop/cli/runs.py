"""The runs of this machine for the screen's picker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError

if TYPE_CHECKING:
    from ddptop.cli.find import Recorded
    from ddptop.sources.base import Source
    from ddptop.tui.runs import RunChoice

MOST_RECORDINGS = 200
"""Newest first: each is opened to tell its state."""


class MachineRuns:
    """Finds and opens live runs and recordings."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, int, int], RunChoice] = {}
        """What a recording told, by its path, size and time of the last write: not opened again for it."""

    def choices(self) -> Sequence[RunChoice]:
        """Live runs, then recordings, newest first. Raises ValueError where they cannot be looked up."""
        from ddptop.cli.catalog import of_live
        from ddptop.cli.find import live, recorded

        try:
            running = live()
            kept = recorded(running)[:MOST_RECORDINGS]
        except CliError as error:
            raise ValueError(str(error)) from None
        return [*map(of_live, running), *map(self._recording, kept)]

    def _recording(self, item: Recorded) -> RunChoice:
        from ddptop.cli.catalog import of_recording

        try:
            facts = item.path.stat()
        except OSError:
            return of_recording(item)
        key = (item.path, facts.st_size, facts.st_mtime_ns)
        known = self._read.get(key) or of_recording(item)
        if known.state != "live":  # whether one is still being written shows in no time of its file
            self._read[key] = known
        return known

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
