"""A collector that was started again takes the run up where the one before it was cut off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddptop.protocol.messages import Received
from ddptop.recording.reader import Recording, RecordingError
from ddptop.transport.discovery import read_run_file

RESUME_STEPS = 20_000
"""Steps that are read again, for the figures and the charts: 50 s at 400 steps/s, an hour and more of steps
that a person would call long; two seconds of work."""


@dataclass(frozen=True)
class Earlier:
    """What a collector before this one left of the same run."""

    started_at: float | None
    """Unix seconds; None: there was none, this is the run's first collector."""
    resume: bool
    """There is a recording to go on with."""
    records: tuple[Received, ...]
    """Its end: everything that still matters, oldest first."""

    @property
    def seen(self) -> dict[int, int]:
        """Session -> highest number recorded: what a rank may send again and must not be kept twice."""
        seen: dict[int, int] = {}
        for received in self.records:
            seen[received.session] = max(received.seq, seen.get(received.session, 0))
        return seen


def earlier(directory: Path, recording: Path | None, run_id: str) -> Earlier:
    """Look for what is left of this run: its run file, and its recording if that is this run's."""
    run = read_run_file(directory)
    started_at = run.started_at if run is not None and run.run_id == run_id else None
    resume, records = _recorded(recording, run_id)
    return Earlier(started_at, resume, tuple(records))


def _recorded(path: Path | None, run_id: str) -> tuple[bool, Iterable[Received]]:
    if path is None:
        return False, ()
    try:
        recording = Recording.open(path)
        if recording.run.run_id != run_id:
            return False, ()
        return True, recording.tail(steps=RESUME_STEPS)
    except (OSError, RecordingError):
        return False, ()
