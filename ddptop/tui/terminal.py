"""The terminal below the screen: whether it is there, signals that end the screen, stopping and going on, its
bell and its title.

`ScreenDriver` adjusts Textual's driver for Linux and macOS (8.2), and uses its private names `_file`,
`_loop`, `_writer_thread`, `_must_signal_resume` and those of its handlers of signals and of its input thread.

`letters_in_their_cells` sets a terminal mode that Textual does not, and `title_given_back` keeps the title of
the window.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import signal
import sys
import termios
import threading
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from ddptop.protocol.texts import printable
from ddptop.render.text import clean_text
from ddptop.sources.threads import ENDING_SIGNALS

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

ENDING = (signal.SIGINT, *ENDING_SIGNALS, signal.SIGQUIT, signal.SIGABRT)
"""At these signals the screen ends orderly, with 128 + the signal's number, and the terminal is restored.

Some supervisors send SIGQUIT or SIGABRT. A library's own `abort()` still ends the process."""


class LastingStream:
    """The stream of a terminal. Writing to it never fails: what is written to a closed terminal is
    dropped.

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


X10_MOUSE = re.compile(rb"\x1b\[M[\s\S]{3}")
"""A mouse report of the oldest form: button, column and line are a byte each, with 32 added."""

X10_MOUSE_BEGUN = re.compile(rb"\x1b\[M[\s\S]{0,2}\Z")


class InputDecoder:
    """The bytes that a terminal sends, as the text that Textual's parser takes.

    Bytes that are no UTF-8 are left out: a key of a Latin-1 terminal. So are mouse reports of the oldest
    form. A terminal sends them that has lost the mode of the newer ones, as after a tmux client attached
    again. From column 96 on they are no UTF-8, and before that their bytes could be taken for keys.
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("ignore")
        self._unfinished_report = b""

    def decode(self, received: bytes) -> str:
        """The text of these bytes; a mouse report that is not complete waits for its end."""
        received = X10_MOUSE.sub(b"", self._unfinished_report + received)
        begun = X10_MOUSE_BEGUN.search(received)
        self._unfinished_report = received[begun.start() :] if begun else b""
        return self._decoder.decode(received[: begun.start()] if begun else received)


READ_BYTES = 4096

INPUT_WAIT_S = 0.1
"""At most so long the input thread waits before it looks whether the screen has ended."""


class ScreenDriver(LinuxDriver):
    """Textual's driver, which also survives a closed terminal and SIGSTOP (no process can prepare for
    that)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self._file is not None  # without stderr no screen is opened
        self._file = cast("Any", LastingStream(self._file))

    def _run_input_thread(self) -> None:
        """Read the terminal; an internal error ends the screen as one of its main thread does."""
        try:
            self.run_input_thread()
        except Exception as error:  # noqa: BLE001  (the app ends with it)
            self._app.call_later(self._app._handle_exception, error)

    def run_input_thread(self) -> None:
        """Read what the terminal sends until the screen ends. What is no text or no key is left out.

        Textual's method ends the screen at a byte that is no UTF-8, and at a key code of the kitty protocol
        that is no character.
        """
        parser, decoder = XTermParser(self._debug), InputDecoder()
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                text = ""
                if selector.select(INPUT_WAIT_S):
                    try:
                        received = os.read(self.fileno, READ_BYTES)
                    except OSError:
                        received = b""
                    if not received:  # the terminal has gone: the app notices, and ends the screen
                        self.exit_event.wait(INPUT_WAIT_S)
                    text = decoder.decode(received)
                # Letter by letter: the keys behind one that the parser fails on are keys, too.
                for character in (*text, None):
                    try:
                        for event in parser.tick() if character is None else parser.feed(character):
                            self.process_message(event)
                    except (ArithmeticError, LookupError, ValueError):
                        parser = _new_parser(parser, self._debug)

    # Textual's own handlers write to the terminal at once: a signal that comes while the screen is
    # being written would wait for ever for the lock of the queue that it has interrupted. So the event loop
    # calls them.

    def _sigtstp_application(self, *_: object) -> None:
        """SIGTSTP: stop, with the terminal as it was."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def _sigcont_application(self, *_: object) -> None:
        """SIGCONT: go on."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(super()._sigcont_application)

    def resume_application_mode(self) -> None:
        """After SIGCONT: take the terminal again.

        After SIGSTOP the terminal still has the screen's modes, or the shell has changed them: they are put
        back first, or Textual would keep the screen's modes as those to restore at the end.
        """
        if self._writer_thread is not None and self._writer_thread.is_alive():
            self.suspend_application_mode()
            self._must_signal_resume = True  # the picture is drawn again
        super().resume_application_mode()


def _new_parser(failed: XTermParser, debug: bool) -> XTermParser:
    """A parser in place of one that has failed, with what that one knew of the terminal."""
    parser = XTermParser(debug)
    parser.mouse_pixels = failed.mouse_pixels
    parser.terminal_size, parser.terminal_pixel_size = failed.terminal_size, failed.terminal_pixel_size
    return parser


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
    # None is a handler of C, such as faulthandler's of SIGABRT: Python could not put it back.
    handled = [number for number in ENDING if before[number] not in (signal.SIG_IGN, None)]
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
    _write_to(stream, AS_PUT)
    try:
        yield
    finally:
        _write_to(stream, AS_READ)


KEEP_TITLE, GIVE_TITLE_BACK = "\x1b[22;2t", "\x1b[23;2t"
"""xterm's window operations: the title goes onto a stack of the terminal's, and comes back from it."""


@contextmanager
def title_given_back(stream: TextIO | None) -> Iterator[None]:
    """After the block, the window of a terminal behind `stream` has the title that it had before."""
    if stream is None or not stream.isatty():
        yield
        return
    _write_to(stream, KEEP_TITLE)
    try:
        yield
    finally:
        _write_to(stream, GIVE_TITLE_BACK)


BELL = "\a"

AGAIN_S = 60.0
"""An alert that comes back within this time rings no second time."""


class Attention:
    """Bell and title of a live run, for somebody who looks at another window."""

    def __init__(self) -> None:
        self._last_s: dict[tuple[str, int | None], float] = {}
        """When an alert was seen last, by kind and, of stragglers, by rank."""
        self._title = ""

    def see(self, frame: Frame) -> str:
        """What to write to the terminal, often nothing. Alerts of the first frame ring no bell."""
        if frame.source == "replay":
            return ""
        now_s, first = frame.unix_s, not self._title
        keys = [(alert.kind, alert.rank if alert.kind == "straggler" else None) for alert in frame.alerts]
        rings = any(now_s - self._last_s.get(key, -AGAIN_S) > AGAIN_S for key in keys) and not first
        self._last_s.update((key, now_s) for key in keys)
        name = clean_text(frame.run.name)
        title = f"ddptop {name}: {keys[0][0].replace('_', ' ')}" if keys else f"ddptop {name}"
        title = printable(title)
        changed, self._title = title != self._title, title
        return (BELL if rings else "") + (f"\x1b]2;{title}\x1b\\" if changed else "")


def _write_to(stream: TextIO, text: str) -> None:
    with suppress(OSError):  # it has hung up
        stream.write(text)
        stream.flush()
