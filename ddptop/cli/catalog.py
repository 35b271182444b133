"""What `ddptop ls` tells of a run: a line for a person, an object for a program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.table import aligned
from ddptop.protocol.messages import Hello, Run

if TYPE_CHECKING:
    from ddptop.cli.find import Recorded
    from ddptop.recording.reader import Recording
    from ddptop.transport.rundir import RunFile

FIRST_RECORDS = 256
"""A rank's HELLO is among the first records: the collector's RUN comes first, then the ranks as they join."""

LAST_NS = 10_000_000_000
"""The collector's last word on the run stands within this time of the end, if it had one."""


@dataclass(frozen=True)
class Entry:
    """One run. None: not known."""

    name: str
    id: str
    live: bool
    state: str
    """live; of a recording: finished, failed, lost (nobody saw the end) or unreadable."""
    ranks: int | None
    script: str
    started_at: float | None
    """Unix seconds."""
    path: str | None
    """The recording."""
    note: str | None = None
    """Why the recording cannot be read, or what of it is missing."""


def of_live(run: RunFile) -> Entry:
    """The entry of a live run."""
    path = str(run.recording) if run.recording is not None else None
    return Entry(run.name, run.run_id, True, "live", run.world_size or None, run.script, run.started_at, path)


def of_recording(item: Recorded) -> Entry:
    """The entry of a recording. One that cannot be read is listed too, with the reason."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        recording = Recording.open(item.path)
        first, last = recording.run, _last_run(recording)
    except (RecordingError, OSError) as error:
        note = error.strerror if isinstance(error, OSError) else str(error)
        return Entry(item.name, "", False, "unreadable", None, "", None, str(item.path), note)
    return Entry(
        name=item.name,
        id=first.run_id,
        live=False,
        state="lost" if last.state == "live" else last.state,
        ranks=_world_size(recording),
        script=first.script,
        started_at=first.unix_ns / 1e9,
        path=str(item.path),
        note=recording.damage,
    )


def recorded_id(path: Path) -> str:
    """Id of the run that a recording is of; empty for what cannot be read."""
    from ddptop.recording.reader import Recording, RecordingError

    try:
        return Recording.open(path).run.run_id
    except (RecordingError, OSError):
        return ""


def _world_size(recording: Recording) -> int | None:
    messages = (received.message for received in islice(recording.records(), FIRST_RECORDS))
    return next((message.world_size for message in messages if isinstance(message, Hello)), None)


def _last_run(recording: Recording) -> Run:
    newest = recording.run
    for received in recording.records(from_ns=recording.end_ns - LAST_NS):
        if isinstance(received.message, Run):
            newest = received.message
    return newest


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
