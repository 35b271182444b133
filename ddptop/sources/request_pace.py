"""When a viewer asks the collector for its next frame."""

from __future__ import annotations

import time
from collections import deque
from statistics import median

POLL_MS = 100

ASK_AGAIN_S = 1.0
"""A credit may be lost with the collector that had it; a later one replaces it, so asking again is safe."""

CPU_SHARE, SLOWEST_S, COUNTED = 0.02, 0.9, 9
"""Share of a core that frames may take, of the 3 % of a viewer; longest pause between two frames; and number
of frames whose median cost counts, so that keys pressed meanwhile do not. With thousands of ranks a viewer
asks for fewer frames, but for one every SLOWEST_S."""

PAUSE_S = (0.5, 15.0)
"""First and longest pause while what arrives cannot be read; it doubles."""


class RequestPace:
    """Asks no more often than frames are taken, and than CPU_SHARE allows. Times are those of `monotonic`."""

    def __init__(self) -> None:
        self.slowest_s = SLOWEST_S
        """Longest pause that CPU_SHARE makes, or a frame that nobody takes; set before the start."""
        self.pause_s = 0.0
        """From one request to the next, if what to ask for does not change."""
        self.is_owed = False
        """Whether a frame was asked for that has not come."""
        self._asked_s = time.monotonic()
        self._asked_for = (-1, "")
        """The rank and the part that were asked for last."""
        self._costs_s, self._counted_s = deque([0.0] * COUNTED, COUNTED), time.process_time()

    def is_due(self, ask_for: tuple[int, str], now_s: float, *, is_taken: bool) -> bool:
        """Whether to ask now. `is_taken`: whether anybody has taken the last frame."""
        # A key that changes what to ask for makes a frame due at once.
        if ask_for != self._asked_for:
            return True
        # A frame that nobody has taken yet is not replaced: with few ranks there would be more than pictures.
        pause_s = self.pause_s if is_taken else self.slowest_s
        return now_s >= self._asked_s + (ASK_AGAIN_S if self.is_owed else pause_s)

    def note_request(self, ask_for: tuple[int, str], now_s: float) -> None:
        """Note that this was asked for."""
        self.is_owed, self._asked_s, self._asked_for = True, now_s, ask_for

    def note_frame(self, *, is_whole: bool) -> None:
        """Note that a frame has come. If part of its history is still missing, the rest is due at once."""
        if not is_whole:
            self.pause_s = 0.0
            return
        # CPU time of the whole process since the frame before: decoding and painting count alike.
        before_s, self._counted_s = self._counted_s, time.process_time()
        self._costs_s.append(self._counted_s - before_s)
        self.pause_s = min(self.slowest_s, median(self._costs_s) / CPU_SHARE)

    def note_unreadable(self) -> None:
        """Note that what has come cannot be read: ask more slowly, or each refresh would transfer another one
        in vain."""
        self.pause_s = min(2 * max(self.pause_s, PAUSE_S[0]), PAUSE_S[1])

    def ms_until_request(self, now_s: float) -> int:
        """How long to wait for a frame before the next request may be due."""
        left_s = self._asked_s + self.pause_s - now_s
        return POLL_MS if self.is_owed or left_s < 0 else min(POLL_MS, 1 + int(1000 * left_s))
