"""Errors that end a command: a line for the user, an exit code for programs."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import IntEnum

from ddptop.protocol.outlets import print_text


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    """No such run or recording."""
    REFUSED = 4
    """Wrong permission or key."""
    UNKNOWN = 5
    """The recordings cannot tell what was asked (`check`)."""
    HUNG_UP = 129
    """128 + SIGHUP, as shells have it: the terminal was closed."""
    INTERRUPTED = 130
    """128 + SIGINT: Ctrl-C."""
    TERMINATED = 143
    """128 + SIGTERM."""


class CliError(Exception):
    """Ends the command with one line on stderr: what is wrong, and what to do about it."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


def note(text: str) -> None:
    """Print a line on stderr, cleaned of what foreign text could do to a terminal.

    Nothing where stderr is closed.
    """
    if sys.stderr is not None:  # print would take stdout in its place
        with suppress(OSError, ValueError):
            print_text(f"ddptop: {text}", file=sys.stderr, flush=True)
