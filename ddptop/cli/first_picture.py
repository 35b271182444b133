"""What the terminal shows until the screen is there: to import and start it takes a second on a busy machine.

The picture is written on the terminal's second page, on which the screen goes on. It needs nothing but the
standard library and the words, so it is there before numpy and Textual are imported.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType

from ddptop.protocol.outlets import safe_text

_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"
"""To the second page without a cursor, blank; and back."""

_STRONG, _PALE, _USUAL = "\x1b[1m", "\x1b[2m", "\x1b[0m"

INDENT = 3
"""Cells before the words: where the screen has them, behind signs that not every terminal has."""

_is_shown = False
_picture = ""


def show_first_page(waits_for: str) -> None:
    """Show what is waited for, where the screen will go on saying it."""
    global _is_shown, _picture  # a process has one terminal
    # The stream as Python opened it: Textual draws there, too.
    stream = sys.__stderr__
    if stream is None or not stream.isatty():
        return
    size = shutil.get_terminal_size()
    rows = [
        f"{_PALE}ddptop{_USUAL}",
        f"{' ' * INDENT}{_STRONG}{safe_text(waits_for)[: max(0, size.columns - INDENT)]}{_USUAL}",
    ]
    lines = (f"\x1b[{row};1H{text}" for row, text in enumerate(rows, 1))
    _picture = f"{_OPEN}{''.join(lines)}\x1b[{size.lines};1H"  # a progress bar may come at the foot
    _is_shown = True  # first: a signal may come while it is written
    # A shell without job control has it ignored, and would wait for a stopped process for ever.
    if _is_main_thread() and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _suspend)
    _write(_picture)


def leave_to_screen() -> None:
    """Leave the page to the screen, which draws over it and leaves it in the end."""
    global _is_shown
    _is_shown = False
    _stop_handling()


def remove_first_page() -> None:
    """Back to the first page, where no screen has come."""
    global _is_shown
    if _is_shown:
        _write(_CLOSE)
        _is_shown = False
        _stop_handling()


def _suspend(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-Z: the shell has its page, and `fg` shows the picture again."""
    # The shell gets its own page back before it prints.
    _write(_CLOSE)
    # SIGSTOP, which cannot be handled: this is where the process stops, and goes on after `fg`.
    os.kill(os.getpid(), signal.SIGSTOP)
    _write(_picture)


def _stop_handling() -> None:
    if _is_main_thread() and signal.getsignal(signal.SIGTSTP) is _suspend:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _is_main_thread() -> bool:
    """Python handles signals there alone."""
    return threading.current_thread() is threading.main_thread()


def _write(text: str) -> None:
    assert sys.__stderr__ is not None, "it is a terminal"
    with suppress(OSError):  # the terminal has gone: the screen notices
        os.write(sys.__stderr__.fileno(), text.encode("utf-8", "replace"))
