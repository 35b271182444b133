"""Waiting on a store in small looks, not in one blocking call, so that Ctrl-C gets through."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

FIRST_S, LONGEST_S = 0.005, 0.5
"""Pauses between two looks: short for what is nearly there, long for a download, a compile, a slow node."""


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
