"""What the timeline shows: the step, the lane under the cursor, and the part of the time axis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddptop.frames.detail import TimelineRequest

if TYPE_CHECKING:
    from ddptop.frames.detail import Timeline

MAX_ZOOM = 12
"""4096 times: a step of a second then shows a quarter of a millisecond."""


FOLLOWED_S = 2.0
"""Seconds between two pictures of the newest steps of a live run, in the timeline and the heat map."""


@dataclass
class TimelineState:
    """Step, lane and cut of the time axis."""

    rank: int = 0
    """The lane under the cursor."""
    step: int | None = None
    """The step that was picked; None: the newest."""
    held: Timeline | None = None
    """The picked step as it was last seen: it stays when the collector has long given it up."""
    followed: Timeline | None = None
    """The newest step as it was when it was taken over, which stays for a while."""
    followed_at_s: float = 0.0
    """When that was, in seconds since 1970."""
    level: int = 0
    """The axis shows 1 / 2**level of the step."""
    begin: float = 0.0
    """Where it begins, as a share of the step."""
    all_reduces: bool = False
    """The all-reduces of every lane, not only of the one under the cursor."""

    @property
    def share(self) -> float:
        """How much of the step is seen."""
        return float(0.5**self.level)

    def zoom(self, by: int) -> None:
        """Twice as near for each, or half; the middle stays where it is."""
        middle = self.begin + self.share / 2
        self.level = min(max(self.level + by, 0), MAX_ZOOM)
        self._show_from(middle - self.share / 2)

    def fit(self) -> None:
        """The whole step."""
        self.level, self.begin = 0, 0.0

    def pan(self, by: int) -> None:
        """To the right by quarters of what is seen."""
        self._show_from(self.begin + by * self.share / 4)

    def pick(self, by: int, shown: Timeline | None, *, stuck: bool = False) -> None:
        """Pick a kept step, some steps forward or back. It is held until `release`.

        `stuck`: the newest step is one that is under way, after all that are kept.
        """
        if shown is None or not shown.kept:
            return
        if stuck and self.step is None:
            self.step = shown.kept[by] if -len(shown.kept) <= by < 0 else None
            return
        if stuck and by > 0 and self.step == shown.kept[-1]:
            self.release()
            return
        seen = shown if self.followed is None else self.followed
        current = seen.step if self.step is None else self.step
        index = sum(step < current for step in shown.kept)
        if by < 0 and index == 0:
            return
        if by > 0 and (index == len(shown.kept) or shown.kept[index] != current):
            index -= 1  # the current step is not kept: the next one is already at `index`
        self.step = shown.kept[min(max(index + by, 0), len(shown.kept) - 1)]

    def release(self) -> bool:
        """Follow the newest step again; False where that was so already."""
        was_held, self.step, self.held, self.followed = self.step is not None, None, None, None
        return was_held

    def follow(self, newest: Timeline, now_s: float, *, is_live: bool) -> TimelineState:
        """This state with the step that is shown while the newest one is followed: of a live run a new one
        every FOLLOWED_S, as none can be read that is replaced four times a second. In a recording, whose
        steps one goes through, always the newest."""
        if self.step is not None or not is_live:
            return replace(self, followed=None)
        followed = self.followed
        has_lane = followed is not None and any(lane.rank == self.rank for lane in followed.lanes)
        wants_lane = any(lane.rank == self.rank for lane in newest.lanes)
        is_fresh = 0.0 <= now_s - self.followed_at_s < FOLLOWED_S
        if (
            followed is not None
            and is_fresh
            and followed.step <= newest.step
            and (has_lane or not wants_lane)
        ):
            return self
        return replace(self, followed=newest, followed_at_s=now_s)

    def to_hold(self, newest: Timeline) -> Timeline | None:
        """The picked step to hold from now on: as the newest frame has it, else as it was; None: none."""
        if self.step is None:
            return None
        return newest if self.step == newest.step else self.held

    def shown(self, newest: Timeline) -> Timeline:
        """The picked step, from `newest` or as it was last seen; otherwise `newest`."""
        if self.step is None and self.followed is not None:
            return replace(self.followed, kept=newest.kept)
        if self.step in (None, newest.step) or self.held is None or self.held.step != self.step:
            return newest
        return replace(self.held, kept=newest.kept)

    def move(self, by: int, world: int) -> None:
        """The cursor some lanes down."""
        self.rank = min(max(self.rank + by, 0), max(0, world - 1))

    def toggle_all(self) -> None:
        """All-reduces of every lane, or of one."""
        self.all_reduces = not self.all_reduces

    def request(self) -> str:
        """What frames have to contain for this view."""
        return str(TimelineRequest(self.step, self.rank))

    def _show_from(self, begin: float) -> None:
        self.begin = min(max(begin, 0.0), 1.0 - self.share)
