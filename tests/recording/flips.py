"""What is read of a recording in which a single bit is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ddptop.analysis.reducer import Reducer
from ddptop.recording.reader import Recording, RecordingError
from tests.made_up_run import feed_runs


class Read(NamedTuple):
    """What a reader got out of a file."""

    steps: int
    """Complete ones, by the reducer."""
    told: bool
    """That something is wrong was said: it is no recording, it is damaged, or records are lost."""


def read(path: Path) -> Read:
    """Read all of it, as a report does."""
    reducer = Reducer(history_points=100_000)
    try:
        with Recording.open(path) as recording:
            feed_runs(reducer, recording)
            damage = recording.damage
    except (RecordingError, OSError):
        return Read(0, True)
    return Read(
        reducer.state.history_end, damage is not None or any(m.lost_records for m in reducer.state.ranks)
    )


def flipped(whole: bytes, path: Path, count: int, seed: int) -> Iterator[Read]:
    """The same file with one bit of it wrong, again and again."""
    chance = random.Random(seed)
    for _ in range(count):
        broken = bytearray(whole)
        broken[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        yield read(path)
