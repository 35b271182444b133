"""q, Ctrl-C and SIGTERM end `python -m ddptop` whatever it reads, and the terminal is as before."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.made_up_run import a_run, write
from tests.processes import environment, until
from tests.recording import hostile_files
from tests.test_terminal import needs_tmux
from tests.tmux import Terminal, terminals

pytestmark = [pytest.mark.slow, needs_tmux]

REPOSITORY = Path(__file__).parents[1]
FAR_END = REPOSITORY / "tests" / "cli" / "lying_far_end.py"
DDPTOP = f"{sys.executable} -m ddptop"

WAITING = "waiting for the first report"

SHOWN = {
    "frames": "more frames",
    "beats": "beats without",
    "rubbish": "what answers",
    "infinity": "time_s",
    "nan": "unix_s",
    "escapes": "LIVE",
    "wide": "LIVE",
    "drip": "more frames",
    **dict.fromkeys(("endless", "errors"), WAITING),
}
"""By mode of the far end: what is on the screen then."""

LONG_BYTES = 1_500_000
"""Of a recording that takes some seconds to be read, before it is refused."""


WAYS = (0, 130, 143)
"""Exit codes after q, Ctrl-C and SIGTERM."""


def each_way_first(names: Iterable[str]) -> list[tuple[str, Sequence[int]]]:
    """The first of these is left in each way, every other one in one way, by turns."""
    return [(name, WAYS if number == 0 else WAYS[number % 3 :][:1]) for number, name in enumerate(names)]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    env = environment(tmp_path) | {"LANG": "C.UTF-8", "PYTHONPATH": str(REPOSITORY)}
    with terminals(env, tmp_path) as factory:
        yield factory(100, 24)


def ways_to_leave(terminal: Terminal) -> dict[int, Callable[[], object]]:
    """By exit code (`WAYS`)."""

    def terminate() -> None:
        process = terminal.foreground()
        assert process is not None
        os.kill(process, signal.SIGTERM)

    return {0: lambda: terminal.press("q"), 130: lambda: terminal.press("C-c"), 143: terminate}


def leave_by(
    terminal: Terminal, codes: Sequence[int], command: str, shown: str, *, screen: bool = True
) -> None:
    """Start the command and leave it once for each of these exit codes."""
    for code in codes:
        leave = ways_to_leave(terminal)[code]
        terminal.type(f"clear; {DDPTOP} {command}")
        if screen:
            until(lambda: terminal.modes().startswith("1"), "a screen")
        terminal.wait_for(shown)
        leave()
        until(lambda: terminal.foreground() is None, "the end of the command")
        terminal.type("echo code $?.")  # apart: a shell that gets Ctrl-C too leaves the rest of its line out
        terminal.wait_for(f"code {code}.")
        assert terminal.modes() == "0 0 1"
        assert "Traceback" not in terminal.screen()


@pytest.mark.parametrize(("mode", "codes"), each_way_first(SHOWN))
def test_beside_a_far_end_that_lies(
    terminal: Terminal, tmp_path: Path, mode: str, codes: Sequence[int]
) -> None:
    words = f"--connect -- {sys.executable} {FAR_END} {mode} {tmp_path / 'starts'}"
    leave_by(terminal, codes, words, SHOWN[mode])


@pytest.fixture(scope="module")
def long_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seconds of reading for every command but `replay`, which reads its end only."""
    path = tmp_path_factory.mktemp("long") / "run.ddptop"
    write(path, a_run(40_000, world=2))
    return path


@pytest.mark.parametrize(
    ("kind", "codes"),
    each_way_first(["tiny_blocks", "histories", "endless_chain", "false_syncs", "same_steps"]),
)
def test_while_a_hostile_recording_is_on_the_screen(
    terminal: Terminal, tmp_path: Path, kind: str, codes: Sequence[int]
) -> None:
    path = hostile_files.KINDS[kind](tmp_path / "run.ddptop", LONG_BYTES)
    leave_by(terminal, codes, f"replay {path.name}", "ddptop")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("report run.ddptop", 130),
        ("replay run.ddptop --once", 143),
        ("check run.ddptop --against run.ddptop", 130),
        ("export run.ddptop --to csv -o out --force", 143),
        ("export run.ddptop --to json -o out.jsonl --force", 130),
        ("merge run.ddptop other.ddptop -o merged.ddptop", 143),
    ],
)
def test_while_a_command_reads_a_long_recording(
    terminal: Terminal, tmp_path: Path, long_recording: Path, command: str, code: int
) -> None:
    """It says so first: after a second there is a bar."""
    verb = command.split()[0]
    if verb == "replay":
        hostile_files.KINDS["same_steps"](tmp_path / "run.ddptop", LONG_BYTES)
    else:
        shutil.copy(long_recording, tmp_path / "run.ddptop")
    shutil.copy(tmp_path / "run.ddptop", tmp_path / "other.ddptop")
    doing = {"export": "exporting run.ddptop [", "merge": "merging 2 recordings "}
    leave_by(terminal, [code], command, doing.get(verb, "reading run.ddptop ["), screen=False)
    assert {one.name for one in tmp_path.iterdir() if one.is_file()} == {"run.ddptop", "other.ddptop"}
