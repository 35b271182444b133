"""The thread of a replay: it advances the clock of the recording, follows the controls, makes the frames."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ddptop.frames.frame import Playback
from ddptop.protocol.limits import NS
from ddptop.sources.past import Backfill, RecordedPast
from ddptop.sources.player import Player

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.recording.reader import Recording
    from ddptop.sources.past import Marks

Order: TypeAlias = "Callable[[Player], None]"

FRAME_S = 0.125
"""Time between two frames while something moves: a screen at 4 Hz never waits for one."""
READ_S = 0.1
"""Longest time without a frame while the clock runs faster than the file can be read."""
FOLLOW_S = 0.5
"""Time between two checks of a growing file: its writer flushes every quarter of a second."""
BACKFILL_S = 0.02
"""The early history is read in pieces this long and with pauses as long: the screen needs the GIL."""
MIN_SPEED, MAX_SPEED = 0.01, 10_000.0
"""Least and largest speed. Beyond it there is only `math.inf`: as fast as the file can be read, nothing left
out."""


class Controls:
    """The controls of a replay, set from any thread."""

    def __init__(self, playing: bool, speed: float) -> None:
        self.wake = threading.Event()
        self.closing = False
        self.playing = playing
        self.speed = 1.0
        self.focus: int | None = None
        self.want = ""
        self._orders: list[Order] = []
        self._absolute = False
        """Whether the first order sets an absolute position."""
        self._lock = threading.Lock()
        self.set_controls(speed=speed)

    def set_controls(
        self, *, speed: float | None = None, focus: int | None = -1, want: str | None = None
    ) -> None:
        """Set the speed, the rank (None: none) with single steps, or the requested part of frames."""
        if speed is not None:
            self.speed = speed if speed == math.inf else min(MAX_SPEED, max(MIN_SPEED, speed))
        # -1 stands for "not given", as None means no rank.
        if focus != -1:
            self.focus = focus
        if want is not None:
            self.want = want
        self.wake.set()

    def set_playing(self, playing: bool | None) -> None:
        """Run or hold; None toggles."""
        with self._lock:
            self.playing = not self.playing if playing is None else playing
        self.wake.set()

    def add_order(self, order: Order, *, instead: bool) -> None:
        """Queue an order, or replace the queued ones (`instead`)."""
        with self._lock:
            # An absolute place stays one with relative moves behind it.
            self._absolute = instead or (self._absolute and bool(self._orders))
            self._orders = [order] if instead else [*self._orders, order]
        self.wake.set()

    def return_to(self, t_ns: int) -> None:
        """Go to a moment before the queued orders, unless the first of them sets an absolute position."""
        with self._lock:
            if not (self._orders and self._absolute):
                self._orders.insert(0, lambda player: player.go_to(t_ns))

    def take_orders(self) -> list[Order]:
        """The orders that have not been carried out yet."""
        with self._lock:
            orders, self._orders = self._orders, []
        return orders

    def end_replay(self) -> None:
        """End the replay."""
        self.closing = True
        self.wake.set()


class Showing:
    """The work of the replay's thread, from the first frame to the last."""

    def __init__(self, recording: Recording, controls: Controls, publish: Callable[[Frame], None]) -> None:
        self._recording = recording
        self._controls = controls
        self._publish = publish
        self._player = Player(recording)
        self._past = RecordedPast(recording)
        self._skip_speed: float | None = None
        """The speed at which reading could not keep up: the clock then skips from frame to frame."""
        self._behind = False
        """Whether it plays more slowly than it should."""
        self._backfill: Backfill | None = None
        self._clock_s = self._followed_s = 0.0

    @property
    def position_ns(self) -> int:
        """The position in the recording."""
        return self._player.position_ns

    def run_until_closed(self) -> None:
        """Show until the controls are closed. Raises OSError when the file cannot be read any more."""
        self._clock_s = time.monotonic()
        self._past.read_new()
        while not self._controls.closing:
            self._controls.wake.clear()
            for order in self._controls.take_orders():
                order(self._player)
            self._move_clock()
            self._follow_file()
            self._publish(self._make_frame())
            self._wait_for_next()

    def _move_clock(self) -> None:
        """Advance the clock of the recording by the wall-clock time since the last call."""
        before, self._clock_s = self._clock_s, time.monotonic()
        if not self._controls.playing:
            self._behind = False
            return
        self._advance_clock(self._clock_s - before, self._controls.speed)
        if self._player.at_end and not self._recording.may_grow:
            # At the end it holds, so that going back and playing works as from any place.
            self._controls.playing = False

    def _advance_clock(self, passed_s: float, speed: float) -> None:
        """Advance the recording by `passed_s` seconds of wall time at this speed.

        What cannot be read in time is skipped. The clock stays right, and the figures at the new position are
        computed from the steps before it. If those steps reach back to the present position, a skip would
        save no reading: then the recording plays more slowly, and the frame says so.
        """
        player, until = self._player, self._clock_s + READ_S
        if speed == math.inf:
            player.read_on(self._recording.end_ns, until=until)
            return
        goal_ns = min(player.position_ns + int(passed_s * speed * NS), self._recording.end_ns)
        # A speed that was too fast once is taken to be so until it changes.
        if self._skip_speed != speed or not player.skip_saves_reading(goal_ns):
            self._skip_speed = None
            player.read_on(goal_ns, until=until)
        self._behind = player.position_ns < goal_ns
        if self._behind and player.skip_saves_reading(goal_ns):
            self._behind, self._skip_speed = False, speed
            player.jump_to(goal_ns)

    def _follow_file(self) -> None:
        now_s = time.monotonic()
        if self._recording.may_grow and now_s - self._followed_s >= FOLLOW_S:
            self._followed_s = now_s
            if self._recording.refresh():
                self._past.read_new()

    def _make_frame(self) -> Frame:
        player, controls = self._player, self._controls
        frame = player.make_frame(focus=controls.focus, want=controls.want)
        frame = self._past.complete_frame(frame, player)
        if not player.from_start:
            # Made at the first jump only: whoever plays from the start needs none.
            if self._backfill is None:
                self._backfill = Backfill(self._recording)
            frame = replace(frame, history=self._backfill.prepend_history(frame.history))
        return with_playback(
            frame,
            player,
            self._past.marks,
            playing=controls.playing,
            speed=controls.speed,
            behind=self._behind,
        )

    def _wait_for_next(self) -> None:
        """Wait until the next frame is due or a control is set; the early history is read meanwhile."""
        reading = self._controls.playing and not self._player.at_end
        at_once = reading and self._controls.speed == math.inf
        end_s = time.monotonic() + (BACKFILL_S if at_once else FRAME_S)
        backfill = self._backfill
        busy = self._controls.playing or self._recording.may_grow
        while backfill is not None and not backfill.is_done and time.monotonic() < end_s:
            busy = True  # one more frame is due, to show what was read
            backfill.read_on(BACKFILL_S)
            if self._controls.wake.wait(BACKFILL_S):
                return
        # Without anything that moves it sleeps until a control is set.
        self._controls.wake.wait(max(0.0, end_s - time.monotonic()) if busy else None)


def with_playback(
    frame: Frame, player: Player, marks: Marks, *, playing: bool, speed: float, behind: bool = False
) -> Frame:
    """The frame with its position in the recording."""
    recording = player.recording
    damage = [recording.damage] if recording.damage else []
    if player.refused:
        damage.append(f"{player.refused:,} messages could not be applied")
    duration_s = (recording.end_ns - recording.start_ns) / NS
    playback = Playback(
        position_s=(player.position_ns - recording.start_ns) / NS,
        duration_s=duration_s,
        step=player.step,
        first_step=recording.first_step,
        last_step=recording.last_step,
        playing=playing,
        speed=speed,
        growing=recording.growing,
        damage="; ".join(damage) or None,
        marks=marks.marks_by_share(duration_s),
        behind=behind,
    )
    return replace(frame, playback=playback)


def moment_of_share(recording: Recording, share: float) -> int:
    """The moment at this share (0..1) of the recording's duration."""
    part = min(1.0, max(0.0, share))
    return recording.start_ns + int(part * (recording.end_ns - recording.start_ns))
