"""A collector that was started again takes the run up where the one before it was cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddptop.protocol.messages import Hello, Received
from ddptop.recording.format import RecordingError
from ddptop.recording.reader import Recording
from ddptop.transport.discovery import read_run_file

ROWS = 40_000
"""Step rows that are read again, over all ranks, for figures and charts: about two seconds of work."""

STEPS = (300, 20_000)
"""Least and most steps among them: what the medians are taken over, and all that a chart can show."""


@dataclass(frozen=True)
class Earlier:
    """What a collector before this one left of the same run."""

    path: Path | None
    """Where the run is recorded, or is to be."""
    started_at: float | None
    """Unix seconds; None: there was none, this is the run's first collector."""
    recording: Recording | None
    """To be gone on with."""

    def records(self) -> Iterator[Received]:
        """The end of its recording: everything that still matters, oldest first."""
        if self.recording is None:
            return
        worlds = (
            item.message.world_size for item in self.recording.lasting() if isinstance(item.message, Hello)
        )
        least, most = STEPS
        yield from self.recording.tail(steps=min(most, max(least, ROWS // max(worlds, default=1))))


@contextmanager
def earlier(directory: Path, path: Path | None, run_id: str) -> Iterator[Earlier]:
    """Look for what is left of this run: its run file, and its recording.

    `path`: the recording, where the run file does not say.
    """
    run = read_run_file(directory)
    if run is not None and run.run_id != run_id:
        run = None
    started_at = None if run is None else run.started_at
    if run is not None and run.recording is not None:
        path = Path(run.recording)
    recording = _open(path)
    try:
        if recording is not None and recording.run.run_id == run_id:
            yield Earlier(path, started_at, recording)
        else:
            yield Earlier(path, started_at, None)
    finally:
        if recording is not None:
            recording.close()


def _open(path: Path | None) -> Recording | None:
    try:
        return Recording.open(path) if path is not None else None
    except (OSError, RecordingError):
        return None
