"""`ddptop RUN` as a process against a real collector: a run is shown before any rank has reported."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from ddptop.host.installation import install_command
from ddptop.host.runs import create_run_directory
from tests.made_up_run import write_recording
from tests.processes import until

DEADLINE_S = 120
NAME = "train-k7qf"


@pytest.fixture
def collector(live_run, home: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The collector of a run that waits for its ranks; a line on its stdin ends it."""
    directory = create_run_directory("aa11")
    words = ["--run-dir", str(directory), "--run-id", "aa11", "--name", NAME, "--record", "off"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ddptop.collector", *words, "--script", "train.py"],
        env=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert b"ready" in process.stdout.readline()
    yield process
    if process.poll() is None:
        finish(process)
    process.stdout.close()


def finish(collector: subprocess.Popen[bytes]) -> None:
    """Tell it that the launcher is done, and wait for its end."""
    assert collector.stdin is not None
    with collector.stdin:
        collector.stdin.write(b'{"exit_code": 0}\n')
    collector.wait(DEADLINE_S)


def watch(home: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ddptop.cli.main", NAME]
    return subprocess.Popen(
        command, env=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, encoding="utf-8"
    )


def test_the_state_is_told_before_any_rank_reports(ddptop, collector) -> None:
    done = ddptop(NAME, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert shown["source"] == "live"
    assert shown["run"]["state"] == "waiting"
    assert shown["group"]["step"] is None
    done = ddptop("--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"ddptop {NAME}   ○ WAITING")
    assert ddptop("ls").stdout.splitlines()[1].split()[:2] == ["live", NAME]


def test_watch_ends_with_the_run(collector, home: dict[str, str]) -> None:
    with watch(home) as watching:
        assert watching.stdout is not None
        assert "waiting" in watching.stdout.readline()
        finish(collector)
        assert "finished" in watching.stdout.read().splitlines()[-1]
    assert watching.returncode == 0


def test_watch_is_interrupted(collector, home: dict[str, str]) -> None:
    with watch(home) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
    assert watching.returncode == 130


def test_metrics_are_served_and_written_until_the_run_ends(
    collector, home: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    command, path = [sys.executable, "-m", "ddptop.cli.main", "metrics", NAME], tmp_path / "ddptop.prom"
    serving = subprocess.Popen(
        [*command, "--listen", "0"], env=home, stderr=subprocess.PIPE, encoding="utf-8"
    )
    writing = subprocess.Popen([*command, "--textfile", str(path)], env=home)
    with serving, writing:
        assert serving.stderr is not None
        address = serving.stderr.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:")
        until(lambda: "ddptop_up 1.0" in urlopen(address, timeout=DEADLINE_S).read().decode(), "served")
        until(lambda: path.exists() and "ddptop_up 1.0" in path.read_text(), "written")
        finish(collector)
        assert (serving.wait(DEADLINE_S), writing.wait(DEADLINE_S)) == (0, 0)
    assert "ddptop_up 0.0" in path.read_text()


def test_metrics_that_cannot_be_had_are_one_line(collector, home: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddptop.cli.main", "metrics", NAME]

    def said(*words: str, hidden: str = "") -> str:
        hide = f"import sys; sys.modules[{hidden!r}] = None; " if hidden else ""
        code = f"{hide}from ddptop.cli.main import main; raise SystemExit(main())"
        line = [sys.executable, "-c", code, "metrics", NAME] if hidden else command
        done = subprocess.run(
            [*line, *words], env=home, capture_output=True, encoding="utf-8", timeout=DEADLINE_S
        )
        assert done.returncode == 1 and done.stdout == "", done
        return done.stderr

    named = f"metrics need the package prometheus_client: {install_command('metrics')}"
    assert said("--listen", "0", hidden="prometheus_client") == f"ddptop: {named}\n"
    otlp = said("--otlp", "http://127.0.0.1:1", hidden="opentelemetry")
    assert otlp.endswith(f": {install_command('otlp')}\n") and otlp.count("\n") == 1
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = f"ddptop: port {port} of 127.0.0.1: Address already in use\n"
        assert said("--listen", str(port)) == in_use
    missing = tmp_path / "no" / "file"
    assert said("--textfile", str(missing)) == f"ddptop: {missing}: No such file or directory\n"
    os.mkfifo(pipe := tmp_path / "pipe")  # as /dev/null, which a test had better not try
    refused = f"ddptop: {pipe}: is a device or a pipe, which is not replaced\n"
    assert said("--textfile", str(pipe)) == refused and pipe.is_fifo()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, words: list[str], environ: dict[str, str], rows: int, columns: int) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-m", "ddptop.cli.main", *words]
        self.process = subprocess.Popen(
            command, env=environ, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.shown = b""

    def wait_for(self, text: bytes) -> None:
        """Read until the text was written."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read()

    def end(self) -> int:
        """Read until the command ends, and return its exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self.master], [], [], 0.1)[0]:
            with suppress(OSError):  # EIO: nobody has the other side any more
                self.shown += os.read(self.master, 65536)

    def close(self) -> None:
        """Leave nothing behind, whatever the test made of it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal(home: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    """Starts `ddptop ARGUMENTS` on a terminal."""
    opened: list[Terminal] = []

    def start(*words: str, rows: int = 24, columns: int = 80, **environ: str) -> Terminal:
        opened.append(Terminal(list(words), home | environ, rows, columns))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), pytest.param(5, 20, marks=pytest.mark.slow)])
def test_the_screen_opens_and_closes(collector, terminal, rows: int, columns: int) -> None:
    screen = terminal(NAME, rows=rows, columns=columns)
    screen.wait_for(b"quit")
    os.write(screen.master, b"q")
    assert screen.end() == 0
    assert b"Traceback" not in screen.shown


def test_the_screen_opens_over_a_recording(terminal, tmp_path: Path) -> None:
    path = tmp_path / "train-a2a2.ddptop"
    write_recording(path)
    screen = terminal("replay", str(path))
    screen.wait_for(b"train-a2a2")
    os.write(screen.master, b"q")
    assert screen.end() == 0
    assert b"Traceback" not in screen.shown


def test_an_unknown_theme_is_one_line(terminal, tmp_path: Path) -> None:
    path = tmp_path / "train-a2a2.ddptop"
    write_recording(path)
    screen = terminal("replay", str(path), "--theme", "mud")
    assert screen.end() == 2
    _, _, said = screen.shown.rpartition(b"\x1b[?1049l")  # behind the picture of what is waited for
    assert said.startswith(b"ddptop: there is no theme 'mud'")
    assert said.count(b"\n") == 1


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(collector, terminal) -> None:
    screen = terminal(NAME, TERM="dumb")
    screen.wait_for(b"waiting")
    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 130
    assert b"\x1b" not in screen.shown
