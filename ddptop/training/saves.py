"""How long the training thread saves checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from ddptop.training.guard import guard, hide_frame

now = time.monotonic_ns

REPORTED_NS = 10_000_000
"""Saves are reported once they have lasted so long together: a script may save many small files."""


class Saves:
    """Times the calls of torch's functions that save. A save within a save is a part of it."""

    def __init__(self) -> None:
        self.since_ns = 0
        """When the training thread entered the save that it is in; 0: it is in none."""
        self._unreported_ns = 0

    def wrap_save(
        self, thread: int, report: Callable[[int], None], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return `original` timed where it runs on `thread`. `report` is called with ns of saves."""

        def save(*args: Any, **kwargs: Any) -> Any:
            is_timed = get_ident() == thread and not self.since_ns
            if is_timed:
                self.since_ns = now()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if is_timed:
                    self._end_save(report)

        return save

    def _end_save(self, report: Callable[[int], None]) -> None:
        self._unreported_ns += now() - self.since_ns
        self.since_ns = 0
        if self._unreported_ns < REPORTED_NS:
            return
        try:
            report(self._unreported_ns)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        self._unreported_ns = 0
