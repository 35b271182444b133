"""Moving about in a recording, and holding the picture of a live run."""

from __future__ import annotations

from ddptop.tui.prompt import Prompt
from ddptop.tui.steering.host import Host

SLOWEST, FASTEST = 0.25, 64.0
"""Playback speeds; powers of two between them."""

NEAR_MARK = 1e-3
"""Share of a recording around the present place in which a mark counts as reached already."""


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
        if played is None or played.duration_s <= 0:
            return
        here = played.position_s / played.duration_s
        shares = sorted(share for share, _ in played.marks)
        ahead = [share for share in shares if share > here + NEAR_MARK]
        behind = [share for share in shares if share < here - NEAR_MARK]
        if by > 0 and ahead:
            self.source.seek(share=ahead[0])
        elif by < 0 and behind:
            self.source.seek(share=behind[-1])

    def action_faster(self, by: int) -> None:
        """Twice or half the speed."""
        played = self.playback
        if played is not None:
            self.source.set_speed(min(FASTEST, max(SLOWEST, played.speed * 2.0**by)))

    def action_scrub(self, share: float) -> None:
        """To a share of the recording."""
        if self.playback is not None:
            self.source.seek(share=min(1.0, max(0.0, share)))

    def action_go(self) -> None:
        """Ask for a place in the recording."""
        if self.playback is not None:
            self.place.prompt = Prompt("go to", "a step, or a share of the recording such as 50%")
            self.repaint()
