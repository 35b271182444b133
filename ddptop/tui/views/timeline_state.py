"""What the timeline shows: the step, the lane under the cursor, and the part of the time axis."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.detail import TimelineRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.detail import Timeline

MAX_ZOOM = 12
"""4096 times: a step of a second then shows a quarter of a millisecond."""


FOLLOWED_S, HELD_S = 2.0, 30.0
"""Seconds for which a step of a live run that is followed is shown: at least, as none can be read that is
replaced sooner; and at most, where none comes that looks like it."""

USUAL = 2.0
"""A step that takes so many times as long as the median, or as much less, is not a usual one."""

FILLED, ROOM = 0.7, 1.1
"""The time axis stays as it is while a step fills this share of it; a new axis has room for a longer step."""


class Moment(NamedTuple):
    """When a live run has finished a step, and what it is like then."""

    unix_s: float
    run_state: object
    """In another state another step is shown at once."""
    usual_ms: float | None
    """The median step."""

    def is_usual(self, step: Timeline) -> bool:
        """Whether a step takes about as long as most do."""
        return self.usual_ms is None or self.usual_ms / USUAL <= step.step_ms <= self.usual_ms * USUAL


@dataclass
class TimelineState:
    """Step, lane and cut of the time axis."""

    rank: int = 0
    """The lane under the cursor."""
    step: int | None = None
    """The step that was picked; None: the newest."""
    held: Timeline | None = None
    """The picked step as it was last seen: it stays when the collector has long given it up. Until the picked
    step comes: the one that was seen before it."""
    held_incarnation: int = 0
    """The elastic restart that the step on hold is of."""
    followed: Timeline | None = None
    """The newest step as it was when it was taken over, which stays for a while."""
    followed_at_s: float = 0.0
    """When that was, in seconds since 1970."""
    followed_while: object = None
    """What the run was like then."""
    axis_ms: float = 0.0
    """The length of the time axis of a whole step; 0: none was drawn."""
    drawn: tuple[str, ...] = field(default=(), repr=False)
    """The last picture."""
    level: int = 0
    """The axis shows 1 / 2**level of the step."""
    begin: float = 0.0
    """Where it begins, as a share of the axis of a whole step."""
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
        if self.step is None:
            self.held = seen
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

    def follow(
        self, newest: Timeline, moment: Moment, is_like_shown: Callable[[TimelineState], bool]
    ) -> TimelineState:
        """This state with the step that is shown while the newest one of a live run is followed.

        The newest step replaces it after FOLLOWED_S if that changes little of the picture, as most steps of a
        run do that goes on as before. A usual one replaces an unusual one then, and any other after HELD_S.
        Nothing is followed while the frames still have a step that was picked before.
        """
        if newest.picked:
            return replace(self, followed=None)
        followed, shown_s = self.followed, moment.unix_s - self.followed_at_s
        taken = replace(self, followed=newest, followed_at_s=moment.unix_s, followed_while=moment.run_state)
        if followed is None or followed.step > newest.step or moment.run_state != self.followed_while:
            return taken
        has_lane, wants_lane = (
            any(lane.rank == self.rank for lane in step.lanes) for step in (followed, newest)
        )
        if (wants_lane and not has_lane) or shown_s < 0.0:
            return taken
        if shown_s < FOLLOWED_S:
            return self
        was_usual, is_usual = moment.is_usual(followed), moment.is_usual(newest)
        is_due = shown_s >= HELD_S or (is_usual and not was_usual)
        return taken if is_due or (is_usual >= was_usual and is_like_shown(taken)) else self

    def settle_axis(self, span_ms: float) -> TimelineState:
        """This state with an axis for a step: the last one, if the step fits it."""
        if FILLED * self.axis_ms <= span_ms <= self.axis_ms:
            return self
        return replace(self, axis_ms=ROOM * span_ms)

    def hold(self, newest: Timeline, incarnation: int) -> TimelineState:
        """This state with the picked step as the newest frame has it, or else as it was."""
        if self.step is None:
            return replace(self, held=None)
        return replace(self, held=newest, held_incarnation=incarnation) if self.step == newest.step else self

    def shown(self, newest: Timeline) -> Timeline:
        """The picked step, from `newest` or as it was last seen, and the one before it until it comes;
        otherwise `newest`."""
        if self.step is None and self.followed is not None:
            return replace(self.followed, kept=newest.kept)
        if self.step in (None, newest.step) or self.held is None:
            return newest
        has_or_awaits_it = self.held.step == self.step or self.step in newest.kept
        return replace(self.held, kept=newest.kept) if has_or_awaits_it else newest

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
