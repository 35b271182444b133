"""The picture before the screen: it needs no slow import, and the screen or an error ends it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ddptop.cli import first_picture

LOOK = """
import sys
from argparse import Namespace
from types import SimpleNamespace
from ddptop.cli import first_picture
from ddptop.cli.commands.look import show_live
from ddptop.cli.show import Mode

def begin(waits_for):
    slow = ("numpy", "textual", "zmq", "ddptop.analysis", "ddptop.protocol.messages")
    print(waits_for, [name for name in slow if name in sys.modules])
    sys.exit(0)

first_picture.show_first_page = begin
show_live(SimpleNamespace(name="train-k7qf", collector_host=None), Namespace(), Mode.SCREEN)
"""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written to the terminal can be read from this descriptor."""
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "__stderr__", stream)
        yield reader
    os.close(reader)


def written(reader: int) -> str:
    """What the terminal got so far."""
    assert sys.__stderr__ is not None
    os.write(sys.__stderr__.fileno(), b"|")
    text = ""
    while not text.endswith("|"):
        text += os.read(reader, 4096).decode()
    return text[:-1]


def test_it_is_there_before_anything_slow_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "waiting for the first report of run train-k7qf []\n"


def test_it_says_what_is_waited_for_and_an_error_takes_it_back(terminal: int) -> None:
    first_picture.show_first_page("waiting for \x1b[2Jrun a")
    shown = written(terminal)
    assert shown.startswith("\x1b[?1049h") and "run a" in shown and "waiting for \x1b" not in shown
    assert shown.isascii(), "which signs the terminal has is not known yet"
    first_picture.remove_first_page()
    assert written(terminal).endswith("\x1b[?1049l")
    first_picture.remove_first_page()
    assert written(terminal) == "", "once"


def test_the_screen_leaves_the_page_by_itself(terminal: int) -> None:
    first_picture.show_first_page("looking for runs")
    first_picture.leave_to_screen()
    written(terminal)
    first_picture.remove_first_page()
    assert written(terminal) == ""


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_ctrl_z_is_as_before_once_it_is_gone(terminal: int, before: signal.Handlers) -> None:
    usual = signal.signal(signal.SIGTSTP, before)
    try:
        first_picture.show_first_page("waiting")
        ignored = signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN
        assert ignored == (before is signal.SIG_IGN)
        first_picture.remove_first_page()
        assert signal.getsignal(signal.SIGTSTP) is before
    finally:
        signal.signal(signal.SIGTSTP, usual)


def test_ctrl_z_gives_the_shell_its_page_and_fg_shows_the_picture_again(terminal: int) -> None:
    program = """
import signal
from ddptop.cli import first_picture

first_picture.show_first_page('waiting')
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stderr=sys.__stderr__) as process:
        try:
            read_until(terminal, "waiting")
            process.send_signal(signal.SIGTSTP)
            read_until(terminal, "\x1b[?1049l")
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            process.send_signal(signal.SIGCONT)
            read_until(terminal, "waiting")
        finally:
            process.kill()


def read_until(reader: int, text: str) -> None:
    """Read what the terminal gets until this is there."""
    deadline_s, shown = time.monotonic() + 60, ""
    while text not in shown:
        assert select.select([reader], [], [], deadline_s - time.monotonic())[0], shown
        shown += os.read(reader, 4096).decode()
