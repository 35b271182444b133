"""The main job as a person does it: training in one terminal, `ddptop` in another."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from ddptop.host.folders import state_path
from ddptop.tui.terminal import ScreenDriver
from tests.made_up_run import World, write, write_recording
from tests.processes import DDPTOP, DEADLINE_S, environment, until
from tests.tmux import Terminal, terminals

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")

SCRIPT = Path(__file__).parent / "training" / "scripts" / "paced.py"
STEPS = 200
LAUNCH = f"{sys.executable} -m ddptop.cli.launch --standalone --nproc-per-node 2"
LOOK = f"{sys.executable} -m ddptop.cli.main"
Make = Callable[[int, int], Terminal]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    env = environment(tmp_path) | {"LANG": "C.UTF-8"}
    env.pop("OLDPWD", None)
    with terminals(env, tmp_path) as factory:
        yield factory


def step_on(screen: str) -> int:
    found = re.search(r"step ([\d,]+)", screen)
    return int(found[1].replace(",", "")) if found else -1


def live_ranks(screen: str) -> int:
    return len(re.findall(r"^.{2,8}\b[01] .*● live", screen, re.MULTILINE))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def viewer_of(name: str) -> psutil.Process:
    found = [p for p in psutil.process_iter() if _words(p)[-2:] == ["ddptop.cli.main", name]]
    assert len(found) == 1, found
    return found[0]


def last_row(terminal: Terminal, rows: int) -> str:
    lines = terminal.screen().splitlines()
    return lines[rows - 1] if len(lines) >= rows else ""


def watch_it_move(terminal: Terminal, name: str) -> None:
    terminal.type(f"{LOOK} {name}")
    terminal.wait_for("LIVE")
    before = step_on(
        str(until(lambda: s if live_ranks(s := terminal.screen()) == 2 else "", "two live ranks"))
    )
    until(lambda: step_on(terminal.screen()) > before, f"a step after {before}")


@pytest.mark.slow
@needs_tmux
def test_training_in_one_terminal_and_the_screen_in_another(make: Make, tmp_path: Path) -> None:
    name = f"tmux{os.getpid()}"
    training, screen = make(100, 30), make(80, 24)
    training.type(f"{LAUNCH} --ddptop-name {name} {SCRIPT} {STEPS} . 110; echo exit code $?")
    training.wait_for("step 100")

    watch_it_move(screen, name)
    screen.press("q")
    screen.wait_for("ready>")
    watch_it_move(screen, name)  # attached again
    viewer_of(name).send_signal(signal.SIGKILL)
    screen.wait_for("Killed")
    screen = make(160, 50)
    watch_it_move(screen, name)
    viewer_of(name).send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()

    last = training.wait_for("exit code 0")
    assert [f"step {step}" for step in range(0, STEPS, 100)] == re.findall(r"^step \d+$", last, re.MULTILINE)
    assert re.search(rf"{STEPS} steps, recorded in", last.replace("\n", "")), last
    assert "missing" not in last
    screen.type("fg")  # goes on where it was stopped, and shows how things stand now
    screen.wait_for("FINISHED")


@needs_tmux
def test_every_size_is_survived_and_a_recording_is_played(make: Make, tmp_path: Path) -> None:
    name = f"size{os.getpid()}"
    recording = state_path(environment(tmp_path)) / f"{name}.ddptop"
    recording.parent.mkdir(parents=True, mode=0o700)
    world = World(2)  # even: no rank draws the cursor to itself
    ends = (world.bye(rank) for rank in range(2))
    write(recording, [world.run(), *world.introduce(), *world.steps(160), *ends, world.run("finished", 0)])
    screen = make(80, 24)
    screen.type(f"{LOOK} {name}")  # the run has ended: its recording, at the end
    screen.wait_for("step 159")
    for columns, rows in ((160, 50), (50, 24), (30, 6), (20, 5), (80, 24)):
        screen.resize(columns, rows)
        # The last row fits too, though the recording stands still and no new frame comes.
        until(lambda: "help" in last_row(screen, rows) or rows < 6, "a footer")  # noqa: B023
    screen.press("Home")
    screen.wait_for("no step yet")
    screen.press("g")
    screen.press("1", "2", "0", "Enter")
    screen.wait_for("step 120")
    screen.press("]")
    screen.wait_for("step 121")
    screen.press("?")
    screen.wait_for("help")
    screen.press("Escape")
    screen.press("End")
    screen.wait_for("step 159")
    through_all_views(screen)
    screen.press(":")
    screen.wait_for("palette")
    screen.type("ddptop-light")
    screen.wait_for("theme ddptop-light")
    screen.press("r")
    screen.wait_for("1 recording")
    screen.press("Enter")  # the same run, opened anew
    screen.wait_for("breakdown")  # the overview
    screen.press(">")
    screen.press("q")
    screen.wait_for("ready>")
    screen.type(f"{LOOK} config")
    assert re.search(r"theme +ddptop-light +remembered", screen.wait_for("file:"))


VIEWS = {
    "2": "zoom 1x",
    "3": "transfer only",
    "4": "ranks × last",
    "5": "newest first",
    "6": "overhead ─",
    "7": "nothing is stalled",
    "1": "breakdown",
}
"""A text that each view has in a terminal of 160x50."""


def through_all_views(screen: Terminal) -> None:
    """By their numbers, then a rank's page and two ranks compared; from 80x24 to 160x50 and back."""
    screen.resize(160, 50)
    for key, text in VIEWS.items():
        screen.press(key)
        screen.wait_for(text)
    screen.press("Enter")
    screen.wait_for(" > rank 0 ")
    screen.press("1")  # not Escape: with a key right after it the terminal reads Alt and that key
    screen.wait_for("breakdown")
    screen.press("c")
    screen.wait_for("rank 0 is marked")
    screen.press("Down")
    screen.press("c")
    screen.wait_for(" rank 0 and rank 1 ──")
    screen.resize(80, 24)
    screen.press("1")
    until(lambda: "help" in last_row(screen, 24), "the key line")


CRASHING = """
import sys
from ddptop.cli.main import main
from ddptop.tui.app import DdptopApp
DdptopApp.action_filter = lambda self: 1 / 0
sys.exit(main())
"""


@needs_tmux
def test_a_signal_that_comes_while_the_screen_is_written_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Textual's handlers write at once, into a queue whose lock the interrupted code may hold."""
    calls: list[str] = []
    monkeypatch.setattr(LinuxDriver, "_sigcont_application", lambda driver, *_: calls.append("CONT"))
    monkeypatch.setattr(LinuxDriver, "_sigtstp_application", lambda driver, *_: calls.append("TSTP"))
    before = {number: signal.getsignal(number) for number in (signal.SIGCONT, signal.SIGTSTP)}

    async def signalled() -> None:
        ScreenDriver(App())
        for number in before:
            os.kill(os.getpid(), number)
        assert calls == []
        await asyncio.sleep(0)
        assert sorted(calls) == ["CONT", "TSTP"]

    try:
        asyncio.run(signalled())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_terminal_is_restored_on_every_way_out(make: Make, tmp_path: Path) -> None:
    write_recording(tmp_path / "run.ddptop")
    (tmp_path / "crashing.py").write_text(CRASHING)
    terminal = make(100, 30)
    terminal.type("stty -a > before")

    def opened(command: str = LOOK) -> None:
        terminal.type(f"clear; {command} replay run.ddptop; echo code $?.")
        terminal.wait_for("REPLAY")

    def restored(code: int) -> None:
        terminal.wait_for(f"code {code}.")
        assert terminal.modes() == "0 0 1"
        terminal.type("stty -a | diff before - && echo as before")
        terminal.wait_for("\nas before")

    def signalled(number: signal.Signals) -> None:
        viewer = terminal.foreground()
        assert viewer is not None
        os.kill(viewer, number)

    opened()
    terminal.press("/")  # an open prompt takes all other keys
    terminal.press("C-z")
    restored(128 + signal.SIGSTOP)
    terminal.type("clear; bg")  # it cannot have the terminal: stops again
    until(lambda: terminal.press("Enter") or "Stopped" in terminal.screen(), "stopped again")
    assert terminal.modes() == "0 0 1"
    terminal.type("clear; fg")
    terminal.wait_for("REPLAY")
    signalled(signal.SIGSTOP)  # gives the viewer no time to put anything back
    terminal.wait_for("Stopped")
    terminal.type("fg; echo code $?.")
    until(lambda: "Stopped" not in terminal.screen() and "REPLAY" in terminal.screen(), "the picture")
    terminal.press("C-c")
    restored(130)
    opened()
    terminal.press("q")
    restored(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT):
        opened()
        signalled(number)
        restored(128 + number)
    opened(f"{sys.executable} crashing.py")
    terminal.press("/")
    restored(1)
    crashed = terminal.screen().replace("\n", "")
    assert "ddptop: the screen has ended by an internal error: ZeroDivisionError" in crashed
    assert "crashing.py:5" in crashed and "Traceback" not in crashed
    opened()
    viewer = terminal.foreground()
    assert viewer is not None
    terminal.close()
    until(lambda: not psutil.pid_exists(viewer), "the end of the viewer")


BUSY = """
import sys, threading
from ddptop.cli.main import main
from ddptop.sources.showing import Showing
Showing._wait_for_next = lambda self: threading.Event().wait()
sys.exit(main())
"""
"""The replay's thread shows one frame, and then does not end whatever it is told."""


@needs_tmux
def test_a_thread_that_is_busy_keeps_nobody_from_leaving(make: Make, tmp_path: Path) -> None:
    write_recording(tmp_path / "run.ddptop")
    (tmp_path / "busy.py").write_text(BUSY)
    terminal = make(100, 30)

    def end(number: signal.Signals) -> None:
        viewer = terminal.foreground()
        assert viewer is not None
        os.kill(viewer, number)

    ways: dict[int, Callable[[], object]] = {
        0: lambda: terminal.press("q"),
        130: lambda: terminal.press("C-c"),
        128 + signal.SIGTERM: lambda: end(signal.SIGTERM),
        128 + signal.SIGHUP: lambda: end(signal.SIGHUP),
    }
    for code, leave in ways.items():
        terminal.type(f"clear; {sys.executable} busy.py replay run.ddptop; echo code $?.")
        terminal.wait_for("REPLAY")
        leave()
        terminal.wait_for(f"code {code}.")
        assert terminal.modes() == "0 0 1"


NO_TORCH = """
import sys
sys.modules["torch"] = None
from ddptop.cli.main import main
sys.exit(main())
"""


@needs_tmux
def test_the_demo_without_torch_offers_the_one_that_needs_none(make: Make, tmp_path: Path) -> None:
    (tmp_path / "no_torch.py").write_text(NO_TORCH)
    for answer, outcome in (("n", "code 1."), ("", "SIMULATED")):
        terminal = make(80, 24)  # its own: an answer typed before the question is there would be lost
        terminal.type(f"clear; {sys.executable} no_torch.py demo; echo code $?.")
        asked = "".join(terminal.wait_for("ranks instead").split())  # a long path breaks the lines anywhere
        assert "needstorch" in asked and "ddptopdemo--simulate8" in asked
        terminal.type(answer)
        terminal.wait_for(outcome)
    terminal.press("q")
    terminal.wait_for("code 0.")


@needs_tmux
def test_the_demo_s_screen_is_there_before_torch_and_can_be_left(make: Make, tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("import time\nwhile True:\n    time.sleep(0.1)\n")
    terminal = make(80, 24)
    terminal.type(f"clear; PYTHONPATH={tmp_path} {LOOK} demo; echo code $?.")
    terminal.wait_for("importing torch · 0 of 2 ranks have reported")
    terminal.press("q")
    terminal.wait_for("code 0.")
    assert not list((tmp_path / "r" / "ddptop").iterdir())


UNREADABLE = (
    b"\x1b[M\x20\xe9\xa1",  # a mouse report of X10 at column 201
    b"\x1b[M\x20qq",  # the same at column 81: its bytes are no keys
    b"\xe9",  # a key of a Latin-1 terminal
    b"\xff\xfe\x80",
    b"\x1b[99999999999;5u",  # kitty's protocol, of no character
)
"""What a terminal may send that is neither text nor a key."""


class Pty:
    """A viewer of `run.ddptop` in a terminal that sends what the test writes, bytes of any kind."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (30, 100))
        self.viewer = subprocess.Popen(
            [*command, "replay", "run.ddptop"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(folder),
            cwd=folder,
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.shown = bytearray()
        """What the viewer has written since the last key."""

    def press(self, sent: bytes) -> None:
        """Send these bytes."""
        self.shown.clear()
        os.write(self._ours, sent)

    def wait_for(self, text: bytes) -> None:
        """Wait until the viewer has written `text`."""

        def written() -> bool:
            with suppress(OSError):  # nothing new, or the viewer has ended
                self.shown.extend(os.read(self._ours, 65536))
            return text in self.shown

        until(written, f"{text!r} in {bytes(self.shown)!r}")

    def close(self) -> None:
        """End the viewer."""
        os.close(self._ours)
        self.viewer.kill()
        self.viewer.wait()


def test_what_is_no_key_is_ignored(tmp_path: Path) -> None:
    """With Textual's driver, such bytes end the screen with a traceback and exit code 0."""
    write_recording(tmp_path / "run.ddptop")
    terminal = Pty(DDPTOP, tmp_path)
    try:
        terminal.wait_for(b"REPLAY")
        for sent in UNREADABLE:
            terminal.press(sent)
        terminal.press(UNREADABLE[-1] + b"?")  # at once: the key behind it counts
        terminal.wait_for(b"on the page before this")
        terminal.press(b"q")
        terminal.wait_for(b"\x1b[?1049l")
        assert terminal.viewer.wait(DEADLINE_S) == 0
    finally:
        terminal.close()


def test_an_error_of_the_thread_that_reads_keys_ends_the_screen_as_any_other(tmp_path: Path) -> None:
    write_recording(tmp_path / "run.ddptop")
    (tmp_path / "crashing.py").write_text(
        CRASHING.replace("tui.app import DdptopApp", "tui.terminal import InputDecoder").replace(
            "DdptopApp.action_filter = lambda self:", "InputDecoder.decode = lambda self, received:"
        )
    )
    terminal = Pty((sys.executable, "crashing.py"), tmp_path)
    try:
        terminal.wait_for(b"REPLAY")
        terminal.press(b"5")
        terminal.wait_for(b"the screen has ended by an internal error: ZeroDivisionError")
        assert b"\x1b[?1049l" in terminal.shown and b"Traceback" not in terminal.shown
        assert terminal.viewer.wait(DEADLINE_S) == 1
    finally:
        terminal.close()


def test_a_viewer_whose_terminal_goes_without_a_hang_up_ends(tmp_path: Path) -> None:
    """Textual reads a terminal that is gone in a tight loop: a viewer was once found at 60% CPU like that."""
    recording = tmp_path / "run.ddptop"
    write_recording(recording)
    ours, theirs = pty.openpty()
    viewer = subprocess.Popen(
        [*DDPTOP, "replay", str(recording)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(tmp_path),
        start_new_session=True,  # no controlling terminal, so no SIGHUP
    )
    os.close(theirs)
    try:
        seen = bytearray()
        until(lambda: seen.extend(os.read(ours, 65536)) or b"REPLAY" in seen, "the screen")
        os.close(ours)
        assert viewer.wait(DEADLINE_S) == 0
    finally:
        viewer.kill()
        viewer.wait()
