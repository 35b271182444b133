"""Scalars that a script logs: the newest of each name, until the publisher takes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ddptop.protocol.messages import Logged, Scalar

MAX_NAMES = 64
"""Names in flight: a script that makes a new one in every step must not grow."""


class LoggedScalars:
    """Written by the training thread, taken by the publisher. A name is written whole: no lock is needed."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, Any]] = {}

    def note(self, name: str, value: Any, step: int) -> None:
        """A float, or on a GPU a value that is still on its way."""
        if name in self._newest or len(self._newest) < MAX_NAMES:
            self._newest[name] = (step, value)

    def take(self, read: Callable[[Any], float | None] | None) -> Logged | None:
        """What was logged since the last call. `read` gives a GPU's value, None while it is not there yet."""
        values: dict[str, Scalar] = {}
        newest = 0
        for name in list(self._newest):
            step, value = self._newest.pop(name)
            if not isinstance(value, float):
                found = read(value) if read is not None else None
                if found is None:
                    self._newest.setdefault(name, (step, value))
                    continue
                value = found
            values[name] = value if math.isfinite(value) else None
            newest = max(newest, step)
        return Logged(newest, values) if values else None
