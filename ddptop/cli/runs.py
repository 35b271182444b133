"""The runs of this machine: as `ddptop ls` lists them, and as the screen offers and opens them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError
from ddptop.cli.find import RecordingEntry, collected_elsewhere, find_live, find_recorded
from ddptop.protocol.messages import RECORDING_STOPPED
from ddptop.render.table import align_texts
from ddptop.tui.runs import RunChoice

if TYPE_CHECKING:
    from ddptop.host.runs import RunFile
    from ddptop.sources.base import Source


def of_live(run: RunFile) -> RunChoice:
    """The entry of a live run."""
    path = str(run.recording) if run.recording is not None else None
    note = None if run.collector_host is None else f"collected on {run.collector_host or 'another host'}"
    return RunChoice(
        run.name, run.run_id, True, "live", run.world_size or None, run.script, run.started_at, path, note
    )


def of_recording(item: RecordingEntry) -> RunChoice:
    """The entry of a recording. One that cannot be read is listed too, with the reason."""
    from ddptop.recording.reader import Recording, RecordingError

    path = str(item.path)
    try:
        with Recording.open(item.path) as recording:
            run = recording.run
            state: str = recording.latest_run.state
            # A recording without a writer and without an end is that of a collector that was killed.
            if state == "live" and not recording.growing:
                state = "lost"
            ranks = recording.world_size
            note = recording.stop_note or recording.damage
    except (RecordingError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return RunChoice(item.name, "", False, "unreadable", None, "", None, path, reason)
    return RunChoice(item.name, run.run_id, False, state, ranks, run.script, run.unix_ns / 1e9, path, note)


def table_lines(entries: Sequence[RunChoice]) -> list[str]:
    """A title line and a line per entry."""
    now_s = time.time()
    rows = [
        [
            entry.state,
            entry.name,
            "-" if entry.ranks is None else str(entry.ranks),
            Path(entry.script).name or "-",
            "-" if entry.started_at is None else short_age(now_s - entry.started_at),
            _describe_place(entry),
        ]
        for entry in entries
    ]
    titles = ["STATE", "NAME", "RANKS", "SCRIPT", "AGE", "RECORDING"]
    return align_texts(titles, rows, frozenset({"RANKS", "AGE"}))


def _describe_place(entry: RunChoice) -> str:
    """Where a run is recorded or collected, and why the recording stopped before the end."""
    if entry.note is not None and entry.note.startswith(RECORDING_STOPPED):
        return f"{entry.path} ({entry.note})"
    return (entry.note if entry.live else None) or entry.path or "-"


def run_as_json(entry: RunChoice) -> dict[str, object]:
    """The entry as `ddptop ls --json` gives it."""
    return {
        "name": entry.name,
        "id": entry.id or None,
        "live": entry.live,
        "state": entry.state,
        "world_size": entry.ranks,
        "script": entry.script or None,
        "started_at": entry.started_at,
        "recording": entry.path,
        "note": entry.note,
    }


def short_age(seconds: float) -> str:
    """How long ago, in one unit: 45s, 12m, 3h, 9d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{round(max(0.0, seconds))}s"


MAX_RECORDINGS = 200
"""The newest: each is opened to know its state."""


class MachineRuns:
    """Finds and opens live runs and recordings."""

    def __init__(self) -> None:
        self._read: dict[tuple[Path, int, int], RunChoice] = {}
        """Entries by path, size and time of the last write: a recording is not opened twice."""

    def choices(self) -> Sequence[RunChoice]:
        """Live runs, then recordings, newest first. Raises ValueError where they cannot be looked up."""
        try:
            running = find_live()
            kept = find_recorded(running)[:MAX_RECORDINGS]
        except CliError as error:
            raise ValueError(str(error)) from None
        return [*map(of_live, running), *map(self._choice_of_recording, kept)]

    def _choice_of_recording(self, item: RecordingEntry) -> RunChoice:
        try:
            facts = item.path.stat()
        except OSError:
            return of_recording(item)
        key = (item.path, facts.st_size, facts.st_mtime_ns)
        choice = self._read.get(key) or of_recording(item)
        if choice.state != "live":  # whether one is still being written shows in no time of its file
            self._read[key] = choice
        return choice

    def open(self, choice: RunChoice) -> Source:
        """A live run, or the end of a recording. Raises ValueError where it is neither any more."""
        from ddptop.recording.reader import Recording, RecordingError
        from ddptop.sources.live import LiveSource
        from ddptop.sources.replay import ReplaySource

        try:
            runs = [run for run in find_live() if run.run_id == choice.id] if choice.live else []
        except CliError as error:
            raise ValueError(str(error)) from None
        if runs and runs[0].collector_host is not None:
            raise ValueError(collected_elsewhere(runs[0]))
        if runs:
            return LiveSource(runs[0])
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
