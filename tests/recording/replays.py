"""A recording replayed once, and looked at in several steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddptop.frames.frame import Frame
from ddptop.recording.reader import Recording
from ddptop.sources.past import RecordedPast
from ddptop.sources.player import Player
from ddptop.sources.replay import frame_of
from ddptop.sources.showing import with_playback


def frame_at(path: Path, step: int | None) -> Frame:
    """The group at the last moment at which no step after `step` was known; None: at the end."""
    with Recording.open(path) as recording:
        return frame_of(recording, step)


def replay_to_steps(path: Path, steps: Sequence[int]) -> Iterator[tuple[int, Player, RecordedPast]]:
    """Each step, and the replay when it is there. Of a small recording, reading on gives what starting over
    would give."""
    with Recording.open(path) as recording:
        player, past = Player(recording), RecordedPast(recording)
        past.read_new()
        for step in steps:
            player.go_to_step(step)
            yield step, player, past


def complete_frame(player: Player, past: RecordedPast, **requested: Any) -> Frame:
    """The frame there, as `frame_at` gives it, and what is requested of it."""
    frame = past.complete_frame(player.make_frame(**requested), player)
    return with_playback(frame, player, past.marks, playing=False, speed=1.0)
