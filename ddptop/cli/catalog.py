"""What `ddptop ls` tells of a run: a line for a person, an object for a program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.render.table import aligned
from ddptop.tui.runs import RunChoice as Entry

if TYPE_CHECKING:
    from ddptop.cli.find import Recorded
    from ddptop.host.runs import RunFile


def of_live(run: RunFile) -> Entry:
    """The entry of a live run."""
    path = str(run.recording) if run.recording is not None else None
    return Entry(run.name, run.run_id, True, "live", run.world_size or None, run.script, run.started_at, path)


def of_recording(item: Recorded) -> Entry:
    """The entry of a recording. One that cannot be read is listed too, with the reason."""
    from ddptop.recording.reader import Recording, RecordingError

    path = str(item.path)
    try:
        with Recording.open(item.path) as recording:
            run, state = recording.run, recording.latest_run.state
            if state == "live" and not recording.growing:
                state = "lost"
            ranks, damage = recording.world_size, recording.damage
    except (RecordingError, OSError) as error:
        note = error.strerror if isinstance(error, OSError) else str(error)
        return Entry(item.name, "", False, "unreadable", None, "", None, path, note)
    return Entry(item.name, run.run_id, False, state, ranks, run.script, run.unix_ns / 1e9, path, damage)


def recorded_id(path: Path) -> str:
    """Id of the run that a recording is of; empty for what cannot be read."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        with Recording.open(path) as recording:
            return recording.run.run_id
    except (RecordingError, OSError):
        return ""


def is_readable(path: Path) -> bool:
    """Whether the file is a recording that can be opened."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        Recording.open(path).close()
    except (RecordingError, OSError):
        return False
    return True


def table(entries: Sequence[Entry]) -> list[str]:
    """A title line and a line per entry."""
    now = time.time()
    rows = [
        [
            entry.state,
            entry.name,
            "-" if entry.ranks is None else str(entry.ranks),
            Path(entry.script).name or "-",
            "-" if entry.started_at is None else age(now - entry.started_at),
            entry.path or "-",
        ]
        for entry in entries
    ]
    titles = ["STATE", "NAME", "RANKS", "SCRIPT", "AGE", "RECORDING"]
    return aligned(titles, rows, frozenset({"RANKS", "AGE"}))


def as_json(entry: Entry) -> dict[str, object]:
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


def age(seconds: float) -> str:
    """How long ago, in one unit: 45s, 12m, 3h, 9d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
