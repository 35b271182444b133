"""The terminal below the screen: whether it is there, signals that end the screen, stopping and going on.

`ScreenDriver` adjusts Textual's driver for Linux and macOS (8.2), and uses its private names `_file`,
`_writer_thread` and `_must_signal_resume`.

`letters_in_their_cells` sets a terminal mode that Textual does not.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from textual.drivers.linux_driver import LinuxDriver

ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""A closed terminal, `kill -INT`, `kill`: the screen ends orderly, with 128 + the signal's number."""


class LastingStream:
    """A terminal's stream to which writing does not fail: one that was closed receives nothing.

    Textual's writer thread would end with the error, and its callers would wait for it forever.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError):
            self._stream.flush()


class ScreenDriver(LinuxDriver):
    """Textual's driver, for terminals that are closed, and for SIGSTOP, which no process can prepare for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self._file is not None  # without stderr no screen is opened
        self._file = cast("Any", LastingStream(self._file))

    def resume_application_mode(self) -> None:
        """After SIGCONT: take the terminal again.

        After SIGSTOP the terminal still has the screen's modes, or the shell has changed them: they are put
        back first, or Textual would keep the screen's modes as those to restore at the end.
        """
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.suspend_application_mode()
            self._must_signal_resume = True  # the picture is drawn again
        super().resume_application_mode()


def terminal_is_there() -> bool:
    """Whether the standard input is a terminal that answers; one that hung up gives EIO."""
    try:
        termios.tcgetattr(sys.__stdin__)  # type: ignore[arg-type]  # None raises TypeError
    except (termios.error, OSError, TypeError, ValueError):
        return False
    return True


@contextmanager
def ended_by_signals(end: Callable[[int], object]) -> Iterator[None]:
    """In the block, a signal of ENDING calls `end(128 + its number)` from the running event loop.

    A signal that is ignored (nohup, a background job) stays ignored. After the first one, those that follow
    are ignored: a closing terminal sends several, and closing must not be interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in ENDING}
    handled = [number for number in ENDING if before[number] is not signal.SIG_IGN]
    came: list[int] = []

    def on_signal(number: int) -> None:
        came.append(number)
        if len(came) == 1:
            end(128 + number)

    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if came else before[number])


AS_PUT = "\x1b[8l"
"""Each letter stays in its cell: BDSM of ECMA-48 reset, as the terminal working group's BiDi recommendation
has it (VTE, mintty). Other terminals ignore it; those that set right-to-left words in their own order
would move the figures beside a name in Hebrew or Arabic into each other's columns."""

AS_READ = "\x1b[8h"
"""The mode set again, which is the initial state of that recommendation."""


@contextmanager
def letters_in_their_cells(stream: TextIO | None) -> Iterator[None]:
    """While the block lasts, a terminal behind `stream` reorders nothing."""
    if stream is None or not stream.isatty():
        yield
        return
    _say(stream, AS_PUT)
    try:
        yield
    finally:
        _say(stream, AS_READ)


def _say(stream: TextIO, text: str) -> None:
    with suppress(OSError):  # it has hung up
        stream.write(text)
        stream.flush()
