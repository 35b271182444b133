"""Errors of our own: they cost what was being done, not the collector or the agent."""

from __future__ import annotations

import sys
import traceback

from ddptop.protocol.outlets import print_text


class InternalErrors:
    """Counts exceptions of our own that were caught, and prints the first to stderr, the log of this process.

    A context manager: an exception within it is caught and counted.
    """

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        # Not BaseException: KeyboardInterrupt and SystemExit are not ours to keep.
        if isinstance(error, Exception):
            self.note_exception()
        return isinstance(error, Exception)

    def note_exception(self) -> None:
        """Count the exception that is being handled."""
        self.count += 1
        # The first only: one that repeats in every round would fill the disk with its traceback.
        if self.count == 1:
            print_text(traceback.format_exc(), file=sys.stderr, end="")
