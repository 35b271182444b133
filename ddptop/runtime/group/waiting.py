"""Waiting on a store in small looks, not in one blocking call, so that Ctrl-C gets through."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from ddptop.runtime.guard import say

FIRST_S, LONGEST_S = 0.005, 0.5
"""Pauses between two looks: short for what is nearly there, long for a download, a compile, a slow node."""

TELL_S = 15.0
"""Ranks of one job start within seconds of one another; who waits longer should know what for."""


class Note:
    """Tells the user once, on stderr, what a long wait is for: nobody should sit before a silent screen."""

    def __init__(self) -> None:
        self._due: float | None = time.monotonic() + TELL_S

    def when_long(self, words: str) -> None:
        """To be called again and again: the first words after TELL_S are told."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            say(words)


def pauses(within_s: float | None = None) -> Iterator[None]:
    """Yield at once, then after longer and longer pauses, for `within_s` seconds (None: for ever)."""
    end = None if within_s is None else time.monotonic() + within_s
    pause = FIRST_S
    while True:
        yield
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(pause)
        pause = min(LONGEST_S, pause * 1.5)


def for_keys(store: Any, keys: Sequence[str], within_s: float | None = None) -> bool:
    """Wait until a store has all keys; False when `within_s` seconds were not enough."""
    return any(store.check(list(keys)) for _ in pauses(within_s))
