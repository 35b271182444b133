"""Frames out of a recording, as if the run were happening again.

Two recordings driven together, step by step, to compare two runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.recording.reader import Recording, RecordingError
from ddptop.sources.base import Source, error_line
from ddptop.sources.past import RecordedPast
from ddptop.sources.player import Player, gc_paused
from ddptop.sources.showing import Controls, Showing, moment_of_share, with_playback
from ddptop.sources.threads import new_thread, wait_for_ends

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from ddptop.frames.frame import Frame


def frame_of(recording: Recording, step: int | None) -> Frame:
    """The group at the last moment at which no step after `step` was known; None: at the end."""
    with gc_paused():
        player = Player(recording, next_ns=recording.end_ns if step is None else 0)
        if step is None:
            player.go_to(recording.end_ns)
        else:
            player.go_to_step(step)
    past = RecordedPast(recording)
    past.read_new()
    frame = past.complete_frame(player.make_frame(), player)
    return with_playback(frame, player, past.marks, playing=False, speed=1.0)


class ReplaySource:
    """A `Source` that plays a recording. Its thread owns the file; calls set its controls and return."""

    def __init__(
        self,
        path: Path,
        *,
        at: int | None = None,
        speed: float = 1.0,
        playing: bool = True,
        follow: bool = False,
    ) -> None:
        """Open the recording at its start, or at step `at`.

        `follow`: its writer may be on another host; it is shown from its end on, as it grows.
        Raises OSError, and RecordingError where the file is no recording.
        """
        self._recording = Recording.open(path, follow=follow)
        self._controls = Controls(playing, math.inf if follow else speed)
        self._frame: Frame | None = None
        self._trouble: str | None = None
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        if at is not None:
            # Queued before the thread starts: the first frame is of that place.
            self.seek(step=at)
        elif follow:
            self.seek(share=1.0)

    def start(self) -> None:
        """See Source."""
        self._thread = new_thread(self._run_thread, "ddptop-replay")
        self._thread.start()

    def latest(self) -> Frame | None:
        """See Source."""
        return self._frame

    def status(self) -> str | None:
        """See Source."""
        return self._trouble

    def failure(self) -> str | None:
        """See Source."""
        return self._failure

    def focus(self, rank: int | None) -> None:
        """See Source."""
        self._controls.set_controls(focus=rank)

    def request(self, text: str) -> None:
        """See Source."""
        self._controls.set_controls(want=text)

    def play(self, playing: bool | None = None) -> None:
        """See Source."""
        self._controls.set_playing(playing)

    def set_speed(self, factor: float) -> None:
        """See Source."""
        self._controls.set_controls(speed=factor)

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """See Source. Going by single steps holds the recording, as a person who counts steps expects."""
        if step is not None:
            self._controls.add_order(lambda player: player.go_to_step(step), instead=True)
        elif share is not None:
            self._controls.add_order(
                lambda player: player.go_to(moment_of_share(player.recording, share)), instead=True
            )
        elif by_steps is not None:
            self._controls.set_playing(False)
            self._controls.add_order(lambda player: player.go_by(by_steps), instead=False)

    def end_thread(self) -> None:
        """Tell the thread to end, and do not wait for it."""
        self._controls.end_replay()

    def close(self) -> None:
        """See Source. A thread that reads a long part keeps the file until it has ended."""
        self.end_thread()
        thread, self._thread = self._thread, None
        if thread is None or wait_for_ends([thread]):
            # Only then: a thread that still reads would read from whatever gets this descriptor next.
            self._recording.close()

    def _run_thread(self) -> None:
        """Show the recording; after an internal error hold it, and start over when something is asked for."""
        while not self._controls.closing:
            showing = None
            try:
                showing = Showing(self._recording, self._controls, self._publish_frame)
                showing.run_until_closed()
            # The file is gone or unreadable: starting over cannot help.
            except (OSError, RecordingError) as error:
                self._trouble = f"{self._recording.path}: {error}"
                return
            except Exception as error:  # noqa: BLE001  # shown, and the keys go on working
                self._controls.set_playing(False)
                self._controls.wake.clear()
                self._failure = error_line(error)
                # Held until a person asks for something: it would fail again by itself.
                self._controls.wake.wait()
                if showing is not None:
                    # Where it was, unless what was asked for goes somewhere else.
                    self._controls.return_to(showing.position_ns)

    def _publish_frame(self, frame: Frame) -> None:
        self._frame, self._failure = frame, None


class PairSource(Source):
    """The first recording's frames; `other` has the second one's, at the same step as soon as it is there.

    The second one is closed with the first.
    """

    def __init__(self, first: ReplaySource, second: ReplaySource) -> None:
        self._first = first
        self._second = second
        self._asked: int | None = None
        self._seen: tuple[Frame | None, Frame | None] = (None, None)
        self._shown: Frame | None = None

    def start(self) -> None:
        """See Source."""
        # The second one only follows the first.
        self._second.play(False)
        self._first.start()
        self._second.start()

    def latest(self) -> Frame | None:
        """The first recording's frame; a new object also when the second one has moved."""
        frame = self._first.latest()
        if frame is not None and frame.group.step is not None and frame.group.step != self._asked:
            self._asked = frame.group.step
            self._second.seek(step=self._asked)
        seen = (frame, self._second.latest())
        if seen[0] is not self._seen[0] or seen[1] is not self._seen[1]:
            # A new object, since a screen draws only when the object has changed.
            self._shown = frame if frame is None or frame is not self._seen[0] else replace(frame)
            self._seen = seen
        return self._shown

    def other(self) -> Frame | None:
        """The second recording's frame; None while there is none."""
        return self._second.latest()

    def status(self) -> str | None:
        """See Source."""
        return self._first.status() or self._second.status()

    def failure(self) -> str | None:
        """See Source."""
        return self._first.failure() or self._second.failure()

    def focus(self, rank: int | None) -> None:
        """See Source."""
        self._first.focus(rank)

    def request(self, text: str) -> None:
        """See Source."""
        self._first.request(text)

    def play(self, playing: bool | None = None) -> None:
        """See Source."""
        self._first.play(playing)

    def set_speed(self, factor: float) -> None:
        """See Source."""
        self._first.set_speed(factor)

    def seek(
        self, *, step: int | None = None, share: float | None = None, by_steps: int | None = None
    ) -> None:
        """See Source; a share is one of the first recording."""
        self._first.seek(step=step, share=share, by_steps=by_steps)

    def close(self) -> None:
        """See Source."""
        # Told first, so that both end at the same time.
        self._second.end_thread()
        self._first.close()
        self._second.close()
