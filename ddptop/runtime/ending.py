"""Why this process ends, found out while it does."""

from __future__ import annotations

import sys
from typing import NamedTuple

from ddptop.protocol.evidence import Stack
from ddptop.runtime.evidence import REASON_CHARACTERS
from ddptop.runtime.stacks import traceback_stack

FINISHED = "finished"


class Ending(NamedTuple):
    """The reason in words (`finished`, `ValueError: no such file`, `exit code 3`), and the traceback."""

    reason: str
    trace: Stack | None


_of_child: list[Ending] = []
"""At most one: how the `run()` of this child of multiprocessing ended, if by an exception."""


def ending() -> Ending:
    """Of this process, from atexit or from multiprocessing's finalizers.

    A script's uncaught exception has been printed by then and is kept in `sys.last_value`. A child of
    multiprocessing runs its finalizers while the exception is still in flight, from Python 3.13 on after
    it; mp.spawn has already turned it into a SystemExit there. The code of a script's `sys.exit(3)` is
    known to the launcher alone.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return _of_child[0] if _of_child else _ending_by(error)


def keep_for_child(error: BaseException) -> None:
    """Keep what `error` says, not the error itself, for `ending()` of this child of multiprocessing."""
    _of_child[:] = [_ending_by(error)]


def _ending_by(error: BaseException | None) -> Ending:
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return Ending(FINISHED, None)
        if error.__context__ is None or error.__suppress_context__:
            code = error.code if isinstance(error.code, int) else 1
            return Ending(f"exit code {code}", traceback_stack(error.__traceback__))
        error = error.__context__
    if error is None:
        return Ending(FINISHED, None)
    return Ending(in_words(error), traceback_stack(error.__traceback__))


def in_words(error: BaseException) -> str:
    """`ValueError: message`, as the last line of a traceback has it."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may do anything
        text = ""
    return (f"{kind}: {text}" if text else kind)[:REASON_CHARACTERS]
