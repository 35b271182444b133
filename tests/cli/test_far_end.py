"""`ddptop --connect` to a far end that lies: one line says so, and it takes neither the core nor the keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ddptop.cli.connect import write_errors
from ddptop.cli.errors import Exit
from ddptop.sources import live, request_pace
from ddptop.sources.live import RemoteSource
from ddptop.sources.remote import PAUSE_S, Remote, RemoteLink
from tests.processes import DDPTOP, environment, run, until
from tests.test_terminal import needs_tmux
from tests.tmux import terminals
from tests.tui.hostile import ESCAPES

REPOSITORY = Path(__file__).parents[2]
FAR_END = Path(__file__).with_name("lying_far_end.py")


@pytest.fixture
def connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], RemoteSource]]:
    """A function that shows a far end of this mode; `starts` has when it was started."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    sources: list[RemoteSource] = []

    def connect(mode: str) -> RemoteSource:
        words = (sys.executable, str(FAR_END), mode, str(tmp_path / "starts"))
        remote = Remote(where="far", first=words, again=words)
        link = RemoteLink(remote, None)
        link.connect_first(None)
        sources.append(RemoteSource("a run", "far", link, lambda: RemoteLink(remote, "abcd")))
        sources[-1].start()
        return sources[-1]

    yield connect
    for source in sources:
        source.close()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("frames", "more frames arrive than were asked for"),
        ("beats", "beats without end"),
        ("rubbish", "no ddptop of this version"),
        ("nan", "unix_s"),
        ("infinity", "time_s"),
    ],
)
def test_what_no_far_end_sends_is_said_in_a_line(
    connected: Callable[[str], RemoteSource], mode: str, why: str
) -> None:
    source = connected(mode)
    until(lambda: why in (source.status() or ""), why)
    assert (source.status() or "").isprintable()
    assert source.failure() is None


def test_silence_does_not_replace_why_no_frame_can_be_read(
    connected: Callable[[str], RemoteSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def broken(link: RemoteLink) -> str | None:
        asked.append("nothing arrives from far")
        return asked[-1]

    monkeypatch.setattr(RemoteLink, "why_broken", broken)
    monkeypatch.setattr(live, "SILENT_S", 0.0)
    source = connected("nan")
    until(lambda: "unix_s" in (source.status() or ""), "a frame that is refused")
    refused_after = len(asked)
    until(lambda: len(asked) >= refused_after + 3, "a look at the connection, and its answer taken")
    assert "unix_s" in (source.status() or "")


@pytest.mark.parametrize(
    "mode", ["frames", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("rubbish", "beats"))]
)
def test_pauses_double_until_a_frame_has_been_good(
    connected: Callable[[str], RemoteSource], tmp_path: Path, mode: str
) -> None:
    connected(mode)
    starts = tmp_path / "starts"
    until(lambda: len(starts.read_text().splitlines()) >= 4, "three more connections")
    moments = [float(line) for line in starts.read_text().splitlines()[:4]]
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert all(pause >= PAUSE_S[0] * 2**number for number, pause in enumerate(pauses)), pauses


def test_a_sound_far_end_keeps_its_connection(
    connected: Callable[[str], RemoteSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_pace, "SLOWEST_S", 0.01)
    source = connected("sound")
    until(lambda: source.latest() is not None, "a frame")
    first = source.latest()
    until(lambda: source.latest() is not first, "another one")
    assert source.status() is None
    assert len((tmp_path / "starts").read_text().splitlines()) == 1


def test_what_it_prints_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    """What ssh asks comes the same way."""
    write_errors(f"Password:\r\n{ESCAPES}".encode())
    shown = capsys.readouterr().err
    assert all(line.isprintable() for line in shown.split("\n"))
    assert shown.startswith("Password:\n") and "title" in shown


@needs_tmux
@pytest.mark.parametrize("mode", ["frames", "beats", "infinity", "escapes"])
def test_the_screen_goes_on_and_q_ends_it(tmp_path: Path, mode: str) -> None:
    near = environment(tmp_path) | {"LANG": "C.UTF-8", "PYTHONPATH": str(REPOSITORY)}
    shown = {"frames": "more frames", "beats": "beats without", "infinity": "time_s", "escapes": "LIVE"}
    with terminals(near, tmp_path) as factory:
        terminal = factory(100, 24)
        words = [*DDPTOP, "--connect", "--", sys.executable, str(FAR_END), mode, str(tmp_path / "starts")]
        terminal.type(" ".join(words))
        terminal.wait_for(shown[mode])
        terminal.press("q")
        terminal.wait_for("ready>")
        assert terminal.title() != "title"


BUSY = """
import sys, threading
from ddptop.cli.main import main
from ddptop.sources.live import CollectorSource
receive = CollectorSource._receive_frames

def receive_one_frame(self, link):
    receive(self, link)
    if self._frame is not None:
        threading.Event().wait()

CollectorSource._receive_frames = receive_one_frame
sys.exit(main())
"""
"""The thread that reads from the far end takes one frame, and then does not end whatever it is told."""


@needs_tmux
def test_a_stuck_thread_keeps_nobody_from_leaving_a_far_run(tmp_path: Path) -> None:
    near = environment(tmp_path) | {"LANG": "C.UTF-8", "PYTHONPATH": str(REPOSITORY)}
    (tmp_path / "busy.py").write_text(BUSY)
    far = f"--connect -- {sys.executable} {FAR_END} sound {tmp_path / 'starts'}"
    with terminals(near, tmp_path) as factory:
        terminal = factory(100, 24)

        def end_by_sigterm() -> None:
            viewer = terminal.foreground()
            assert viewer is not None
            os.kill(viewer, signal.SIGTERM)

        ways: dict[int, Callable[[], object]] = {
            0: lambda: terminal.press("q"),
            128 + signal.SIGTERM: end_by_sigterm,
        }
        for code, leave in ways.items():
            terminal.type(f"clear; {sys.executable} busy.py {far}; echo code $?.")
            terminal.wait_for("LIVE")
            leave()
            terminal.wait_for(f"code {code}.")
            assert terminal.modes() == "0 0 1"


def test_once_ends_with_a_line_where_no_frame_can_be_read(tmp_path: Path) -> None:
    near = environment(tmp_path) | {"PYTHONPATH": str(REPOSITORY)}
    words = [*DDPTOP, "--once", "--connect", "--", sys.executable, str(FAR_END), "nan", str(tmp_path / "s")]
    done: subprocess.CompletedProcess[str] = run(words, near, tmp_path, cold=True)
    assert done.returncode == Exit.FAILED
    assert done.stderr.count("\n") == 1 and "unix_s" in done.stderr, done.stderr
