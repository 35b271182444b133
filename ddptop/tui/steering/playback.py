"""Moving about in a recording, and holding the picture of a live run."""

from __future__ import annotations

from ddptop.tui.playing import faster, next_mark
from ddptop.tui.prompt import Prompt
from ddptop.tui.steering.host import Host


class PlaybackKeys(Host):
    """Actions on a recording."""

    def action_pause(self) -> None:
        """Hold the recording; where there is none, hold the picture."""
        if self.playback is not None:
            self.source.play()
        elif self.shown is not None:
            self.frozen = not self.frozen
        self.repaint()

    def action_step(self, by: int) -> None:
        """Some steps on or back in the recording."""
        if self.playback is not None:
            self.source.seek(by_steps=by)

    def action_mark(self, by: int) -> None:
        """The next mark of the recording, or the one before."""
        played = self.playback
        share = next_mark(played, by) if played is not None else None
        if share is not None:
            self.source.seek(share=share)

    def action_faster(self, by: int) -> None:
        """The next speed, or the one before."""
        played = self.playback
        if played is not None:
            self.source.set_speed(faster(played.speed, by))

    def action_scrub(self, share: float) -> None:
        """To a share of the recording."""
        if self.playback is not None:
            self.source.seek(share=min(1.0, max(0.0, share)))

    def action_go(self) -> None:
        """Ask for a place in the recording."""
        if self.playback is not None:
            self.place.prompt = Prompt("go to", "a step, 50%, a time of day 12:31, or 1h20m from the start")
            self.repaint()
