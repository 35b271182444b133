"""The boundary between ddptop and the training loop: our failures stop here, are counted and shown."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from ddptop.protocol.limits import MUTE_AFTER
from ddptop.protocol.outlets import print_text
from ddptop.protocol.texts import printable

_PACKAGE = f"{__file__.rsplit(os.sep, 2)[0]}{os.sep}"


class Guard:
    """Counts exceptions of ddptop's own code that were caught on the training thread."""

    __slots__ = ("count", "first")

    def __init__(self) -> None:
        self.count = 0
        self.first: str | None = None

    def caught(self, error: BaseException) -> None:
        """Count one failure and keep the text of the first.

        Raises it again where it is not ours: what a signal handler of the user's raises (a time limit)
        appears in whatever the training thread runs just then.
        """
        if _of_a_signal_handler(error):
            raise error
        self.count += 1
        if self.first is None:
            self.first = type(error).__name__
            with contextlib.suppress(Exception):  # a __str__ of the user's may do anything
                self.first += f": {error}"

    @property
    def muted(self) -> bool:
        """Whether the recorder has given up."""
        return self.count >= MUTE_AFTER


guard = Guard()
"""The guard of this process; a forked child inherits the count of its parent."""


def run_after_fork(*steps: Callable[[], object]) -> None:
    """Run every one of `steps` in a forked child, whatever the others raise.

    Python prints what an at-fork handler raises. So our own failures are counted only. An interruption is
    raised again when all is done.
    """
    interruption: BaseException | None = None
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the training boundary
            with contextlib.suppress(Exception):
                guard.caught(error)
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt
            interruption = error
    if interruption is not None:
        raise interruption


def _of_a_signal_handler(error: BaseException) -> bool:
    """Whether one of Python's own signal handlers is in the traceback."""
    handlers = {code for number in signal.valid_signals() for code in _code_of(signal.getsignal(number))}
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_code in handlers:
            return True
        entry = entry.tb_next
    return False


def _code_of(handler: Any) -> Iterator[CodeType]:
    """The code of a function, a method, a `functools.partial` or an object with `__call__`."""
    handler = getattr(handler, "func", handler)
    code = getattr(handler, "__code__", None) or getattr(type(handler).__call__, "__code__", None)
    if isinstance(code, CodeType):
        yield code


def hide_frame(error: BaseException) -> None:
    """Take the calling wrapper's frame out of the traceback of `error`, just before a bare `raise`.

    A bare `raise` adds no entry of its own, so the user sees the traceback that plain DDP would have
    given. On Python 3.10 the re-raise keeps its own copy and the frame stays visible.
    """
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next  # None where a function of C++ has raised


def hide_frames(error: BaseException) -> None:
    """`hide_frame`, and the frames of this package that follow: an interruption may come in any of them."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def report_once(text: str) -> None:
    """Print once, as one line on stderr, that ddptop cannot do its work here."""
    if text not in _reported:
        _reported.add(text)
        print_line(f"{text}; training goes on without it")


def print_line(text: str) -> None:
    """Print one line on stderr; nothing where that is closed, which must not end a training."""
    if sys.stderr is not None:  # print would take stdout in its place
        with contextlib.suppress(OSError, ValueError):
            print_text(printable(f"ddptop: {text}"), file=sys.stderr, flush=True)


_reported: set[str] = set()
