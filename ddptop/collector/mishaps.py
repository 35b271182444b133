"""Failures of our own arithmetic: each costs one message or one frame, never the collector."""

from __future__ import annotations

import sys
import traceback

ARITHMETIC = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a message that passed every check could still set off in the reducer."""


class Mishaps:
    """Counts them, and tells of the first one on stderr, which is the collector's log."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Count the exception that is being handled."""
        self.count += 1
        if self.count == 1:
            traceback.print_exc(file=sys.stderr)
