"""Keys of a recording: speed, position, the next mark. Freezing, saving and copying the picture."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.sources.saving import save_page
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.prompt import Prompt
from ddptop.tui.settings import describe_change

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame, Playback

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, math.inf)
"""Infinite: as fast as it can be read."""

NEAR_MARK = 1e-3
"""Share of a recording around the current position in which a mark counts as reached."""

DAY_S = 86_400

_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?$")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?$")


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """A position in a recording: a step, or a share (0..1) of its duration."""

    step: int | None = None
    share: float | None = None


def speed_word(speed: float) -> str:
    """`4x`, `0.25x`, `max`."""
    return "max" if speed == math.inf else f"{speed:g}x"


def next_speed(speed: float, by: int) -> float:
    """The next speed of the ladder, or the one before."""
    if by > 0:
        return min((step for step in SPEEDS if step > speed), default=SPEEDS[-1])
    return max((step for step in SPEEDS if step < speed), default=SPEEDS[0])


def next_mark(played: Playback, by: int) -> float | None:
    """Share of the duration of the next mark, or of the one before; None: there is none."""
    if played.duration_s <= 0:
        return None
    position = played.position_s / played.duration_s
    if by > 0:
        return min((share for share, _ in played.marks if share > position + NEAR_MARK), default=None)
    return max((share for share, _ in played.marks if share < position - NEAR_MARK), default=None)


def parse_target(text: str, frame: Frame) -> SeekTarget | None:
    """The position that a text names; None where it names none, or nothing is being replayed.

    A step (`12,480`), a percentage (`50%`), a time since the recording began (`1h20m`, `90s`), or a time of
    day as the bar shows it (`12:31`, `12:31:07`): the first one at or after the recording's beginning.
    """
    played, plain = frame.playback, text.strip().lower().replace(",", "").replace("_", "")
    if played is None or not plain:
        return None
    if plain.isdecimal():
        return SeekTarget(step=int(plain))
    if plain.endswith("%"):
        return _parse_percentage(plain[:-1])
    clock = _CLOCK.match(plain)
    if clock is not None:
        seconds = _since_begin(clock, frame.unix_s - played.position_s)
    else:
        parts = _PARTS.match(plain)
        if parts is None or not any(parts.groups()):
            return None
        seconds = sum(
            float(part or 0) * unit for part, unit in zip(parts.groups(), (3600, 60, 1), strict=True)
        )
    if seconds is None or played.duration_s <= 0:
        return None
    return SeekTarget(share=min(1.0, seconds / played.duration_s))


def _parse_percentage(text: str) -> SeekTarget | None:
    try:
        share = float(text) / 100
    except ValueError:
        return None
    return SeekTarget(share=share) if 0 <= share <= 1 else None


def _since_begin(clock: re.Match[str], begin_s: float) -> float | None:
    """Seconds from the recording's beginning to this time of day, on the same day or the next."""
    hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    begin = time.localtime(begin_s)
    passed = begin.tm_hour * 3600 + begin.tm_min * 60 + begin.tm_sec + begin_s % 1
    target = hours * 3600 + minutes * 60 + seconds
    if clock.group(3) is None and target <= passed < target + 60:
        return 0.0  # the minute in which it begins
    return (target - passed) % DAY_S


class PlaybackActions(ActionsBase):
    """Actions on a recording."""

    def action_pause(self) -> None:
        """Pause the recording; without one, freeze the screen."""
        if self.playback is not None:
            self.source.play()
        elif self.shown is not None:
            self.frozen = not self.frozen
        self.repaint()

    def action_step(self, by: int) -> None:
        """Some steps forward or back in the recording."""
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
            self.source.set_speed(next_speed(played.speed, by))

    def action_scrub(self, share: float) -> None:
        """Go to a share of the recording."""
        if self.playback is not None:
            self.source.seek(share=min(1.0, max(0.0, share)))

    def action_go(self) -> None:
        """Ask for a position in the recording."""
        if self.playback is not None:
            self.place.prompt = Prompt("go to", "a step, 50%, a time of day 12:31, or 1h20m from the start")
            self.repaint()


class SaveActions(ActionsBase):
    """Saving, copying, and the theme."""

    def action_save(self) -> None:
        """Write the screen into a text file and an SVG, on the stall page all that is known of the stall."""
        if self.shown is None:
            return
        run, view, moment = self.shown.run.name, self.place.view, self.shown.unix_s
        text = self.view.text_to_save(self.shown) or self.picture_text()
        try:
            path = save_page(run, view, moment, text, folder=self.save_to)
            save_page(run, view, moment, self.picture_svg(), suffix=".svg", folder=self.save_to)
        except OSError as error:
            self.show_note(f"not saved: {error}")
        else:
            self.show_note(f"saved to {path} and .svg")

    def action_copy(self) -> None:
        """The screen's text to the clipboard, by the terminal (OSC 52): that works through ssh too."""
        self.to_clipboard(self.picture_text())
        self.show_note("copied to the terminal's clipboard")

    def action_setting(self, name: str, value: str) -> None:
        """Change a setting until the screen is left; without a value say where it is set."""
        if name == "log":
            self.place.charts.log_loss = {"on": True, "off": False}.get(value)
        elif value:
            self.change_setting(name, value)
        self.show_note(describe_change(name, value))

    def action_theme(self, name: str) -> None:
        """Draw with this theme from now on, also next time."""
        self.use_theme(name)
        self.show_note(f"theme {name}, kept for later runs")
