"""Which words are subcommands and which are runs, and that help costs nothing."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from ddptop import __version__
from ddptop.cli.commands import COMMANDS, LOOK
from ddptop.cli.commands.base import Command
from ddptop.cli.main import choose_command, main
from ddptop.tui.theme import THEMES
from tests.made_up_run import write_recording


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        ([], "", []),
        (["train-k7qf"], "", ["train-k7qf"]),
        (["ls"], "ls", []),
        (["ls", "--json"], "ls", ["--json"]),
        (["--rate", "2", "replay", "f"], "replay", ["--rate", "2", "f"]),
        (["--theme", "ls"], "", ["--theme", "ls"]),
        (["--theme=x", "ls"], "ls", ["--theme=x"]),
        (["--ascii", "train", "ls"], "", ["--ascii", "train", "ls"]),
        (["--", "ls"], "", ["--", "ls"]),
        (["LS"], "", ["LS"]),
        (["--sort", "-late", "replay", "f"], "replay", ["--sort=-late", "f"]),
        (["replay", "f", "--sort", "-late"], "replay", ["f", "--sort=-late"]),
        (["--sort", "late", "--json"], "", ["--sort", "late", "--json"]),
    ],
)
def test_the_first_word_chooses(words: list[str], name: str, rest: list[str]) -> None:
    command, left = choose_command(words)
    assert (command.name, left) == (name, rest)


def test_version_of_the_command_and_of_the_module(ddptop) -> None:
    assert ddptop("--version").stdout == f"ddptop {__version__}\n"
    module = subprocess.run(
        [sys.executable, "-m", "ddptop", "-V"], capture_output=True, text=True, check=True
    )
    assert module.stdout == f"ddptop {__version__}\n"


def test_help_lists_every_command_with_examples_and_themes(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _help(capsys)
    for command in COMMANDS:
        assert f"  {command.name} " in shown
        own = _help(capsys, command.name)
        assert own.startswith(f"usage: ddptop {command.name}")
        assert all(f"  {example}" in own for example in command.examples)
        assert command.examples
    assert all(theme.name in " ".join(shown.split()) for theme in THEMES)
    assert "  ddptop train-k7qf --view timeline" in shown
    # A report has no screen: of the settings it takes one, and accepts the others.
    assert "--ascii" in _help(capsys, "report") and "--rate" not in _help(capsys, "report")


@pytest.mark.parametrize("columns", ["1", "2", "5"])
def test_a_terminal_of_one_column_gets_what_it_asks_for(
    home_here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Every command has its help made before it runs."""
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["ls"]) == 0
    assert "no runs" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0


def test_a_process_that_ends_need_not_look_for_cycles(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(sys, "argv", ["ddptop", "config"])
    assert main(["config"]) == 0
    assert not frozen
    assert main() == 0
    assert frozen


def _help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main([*words, "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


LONGEST_EXAMPLE = 96
"""Columns of a line that a user is to copy; it cannot be broken."""


@pytest.mark.parametrize("command", [*COMMANDS, LOOK], ids=lambda command: command.name or "ddptop")
def test_help_fits_a_terminal_of_80_columns_and_its_examples_can_be_typed(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = _help(capsys, *([command.name] if command.name else []))
    examples = [f"  {line}" for line in command.examples]
    assert [line for line in text.splitlines() if len(line) > 80 and line not in examples] == []
    for line in examples:
        assert line in text
        assert re.search(r"[ (]ddptop( |$)", line), line
        assert len(line) <= LONGEST_EXAMPLE
    assert f"ddptop {command.name}".strip() in text.partition("examples:")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["--nonsense"],
        ["a", "b"],
        ["replay", "f", "--at", "soon"],
        ["replay", "f", "--at", "-1"],
        ["replay", "f", "--speed", "0"],
        ["replay", "f", "--speed", "nan"],
        ["ls", "extra"],
        ["demo", "--ranks", "0"],
        ["demo", "--steps", "many"],
        ["--watch", "--once"],
        ["replay", "f.ddptop", "--watch", "--json"],
        ["--on"],
        ["attach", "train.py"],
    ],
)
def test_wrong_usage_is_one_line_and_2(ddptop, words: list[str]) -> None:
    done = ddptop(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("ddptop: ")
    assert done.stderr.count("\n") == 1


HEAVY = ("torch", "textual", "zmq", "numpy")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["config"], ["ls"]])
def test_light_commands_load_nothing_heavy(home: dict[str, str], words: list[str]) -> None:
    code = (
        "import sys\nfrom ddptop.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=home, capture_output=True, encoding="utf-8", timeout=120)
    assert done.stderr.splitlines()[-1] == ""


NASTY = "\x1b]0;pwned\x07\x9b2Ja\u202eb.ddptop"


@pytest.mark.parametrize(
    "words", [["replay", NASTY], ["report", NASTY], [NASTY], ["config", "--rate", NASTY], ["ls", NASTY]]
)
def test_a_file_name_cannot_steer_the_terminal(
    words: list[str], tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    assert main(words) in (2, 3)
    told = capsys.readouterr()
    assert all(line.isprintable() for line in (told.out + told.err).splitlines())
    assert "pwned" in told.err or "x1b" in told.err


def test_where_no_thread_can_be_started_a_line_says_so(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    write_recording(tmp_path / "a.ddptop")
    monkeypatch.setattr("threading.Thread.start", refused)
    assert main(["replay", str(tmp_path / "a.ddptop"), "--watch"]) == 1
    assert capsys.readouterr().err.startswith("ddptop: no thread can be started")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["new.ddptop", "base.ddptop"], "ddptop check NEW --against BASE compares runs"),
        (["check", "new.ddptop", "base.ddptop"], "ddptop check NEW --against BASE compares runs"),
        (["run", "--at", "50", "--once"], "--at is of ddptop replay"),
        (["run", "--unknown"], "see ddptop --help"),
        (["show", "run"], "ddptop FILE a recording"),
        (["kill", "run"], "ddptop ends no training"),
    ],
)
def test_what_a_user_may_have_meant_is_said(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert hint in err


def test_a_script_in_place_of_a_run_is_told_its_launcher(
    home_here: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train.py", "--once"]) == 3
    assert capsys.readouterr().err == "ddptop: no run is called 'train.py'; ddptop-run train.py starts it\n"


class DroppedWith:
    """Python drops what is raised while it is deleted."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_whose_exception_python_drops_still_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def run(_options: object) -> int:
        DroppedWith(number)
        time.sleep(60)
        return 0

    command = SimpleNamespace(run=run, parse=lambda words: words)
    monkeypatch.setattr("ddptop.cli.main.choose_command", lambda words: (command, words))
    before = sys.unraisablehook, signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            code = main([])
        except SystemExit as end:
            code = end.code
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert code == 128 + number
    assert sys.unraisablehook is before[0]


HANDLED = """
import asyncio, signal
from ddptop.cli.main import main
from ddptop.tui.terminal import ended_by_signals

async def show() -> None:
    before = signal.getsignal(signal.SIGQUIT)
    with ended_by_signals(print):
        assert signal.getsignal(signal.SIGQUIT) is not before

asyncio.run(show())
raise SystemExit(main(["ls"]))
"""


@pytest.mark.parametrize("number", ["SIGABRT", "SIGTERM"])
def test_a_command_leaves_a_signal_alone_that_c_handles(home: dict[str, str], number: str) -> None:
    """`PYTHONFAULTHANDLER` has C handle SIGABRT, and some programs have it handle SIGTERM."""
    register = f"import faulthandler, signal; faulthandler.register(signal.{number})\n"
    code = HANDLED if number == "SIGABRT" else register + HANDLED
    command = [sys.executable, "-c", code]
    environment = home | {"PYTHONFAULTHANDLER": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == interrupted:
            os.kill(os.getpid(), signal.SIGINT)

interrupted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
from ddptop.cli.entry import main
sys.exit(main())
"""


@pytest.mark.parametrize("module", ["ddptop.cli.commands", "ddptop.cli.find", "numpy", "_datetime"])
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(
    home: dict[str, str], tmp_path, module: str
) -> None:
    """numpy's import makes an ImportError of a KeyboardInterrupt in that of datetime."""
    write_recording(tmp_path / "a.ddptop")
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module, "replay", str(tmp_path / "a.ddptop")]
    done = subprocess.run(command, env=home, capture_output=True, encoding="utf-8", timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
