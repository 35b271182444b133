"""Which of flag, variable, file and default wins, and what a bad value is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ddptop.cli import settings
from ddptop.cli.commands import LOOK
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.settings import Configuration, load_settings
from ddptop.tui.app import DdptopApp
from ddptop.tui.runs import NoSource


def resolve(home: Path, flags: dict[str, object] | None = None, **environ: str) -> Configuration:
    folders = {"XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}
    return load_settings(flags or {}, folders | environ, encoding="utf-8")


def write(home: Path, text: str) -> Path:
    path = home / "ddptop" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    return path


def test_the_nearer_to_the_person_wins(tmp_path: Path) -> None:
    assert resolve(tmp_path).settings.rate == 4.0
    path = write(tmp_path, "rate = 2\n")
    found = resolve(tmp_path)
    assert (found.settings.rate, found.origins["rate"]) == (2.0, str(path))
    found = resolve(tmp_path, DDPTOP_RATE="3")
    assert (found.settings.rate, found.origins["rate"]) == (3.0, "DDPTOP_RATE")
    found = resolve(tmp_path, {"rate": "5"}, DDPTOP_RATE="3")
    assert (found.settings.rate, found.origins["rate"]) == (5.0, "--rate")


def test_a_variable_can_switch_off_what_the_file_switches_on(tmp_path: Path) -> None:
    write(tmp_path, "ascii = true\n")
    assert resolve(tmp_path).settings.ascii
    assert not resolve(tmp_path, DDPTOP_ASCII="0").settings.ascii


@pytest.mark.parametrize(
    ("text", "axis"),
    [("true", "on"), ("false", "off"), ("'auto'", "auto"), ("'on'", "on"), ("'decades'", None)],
)
def test_the_axis_of_the_loss_has_three_states(tmp_path: Path, text: str, axis: str | None) -> None:
    assert resolve(tmp_path).settings.log == "auto"
    write(tmp_path, f"log = {text}\n")
    if axis is None:
        with pytest.raises(CliError, match="none of auto, on, off"):
            resolve(tmp_path)
    else:
        assert resolve(tmp_path).settings.log == axis


def test_no_color(tmp_path: Path) -> None:
    found = resolve(tmp_path, NO_COLOR="1")
    assert (found.settings.color, found.origins["color"]) == (False, "NO_COLOR")
    assert resolve(tmp_path, NO_COLOR="").settings.color, "an empty NO_COLOR means nothing"


@pytest.mark.parametrize(("encoding", "ascii"), [("UTF-8", False), ("utf8", False), ("latin-1", True)])
def test_ascii_is_chosen_where_the_encoding_cannot_draw(tmp_path: Path, encoding: str, ascii: bool) -> None:
    found = load_settings({}, {"XDG_CONFIG_HOME": str(tmp_path)}, encoding)
    assert found.settings.ascii is ascii
    assert found.origins["ascii"] == (f"encoding {encoding}" if ascii else "default")


@pytest.mark.parametrize(
    ("environ", "ascii"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX"}, True),
        ({"LC_ALL": "C.UTF-8"}, False),
        ({"TERM": "vt100"}, True),
        ({"TERM": "linux"}, True),
        ({"TERM": "linux-16color"}, True),
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_ascii_is_chosen_where_the_terminal_or_the_locale_has_no_more(
    tmp_path: Path, environ: dict[str, str], ascii: bool
) -> None:
    found = resolve(tmp_path, **environ)
    [(name, value)] = environ.items()
    assert found.settings.ascii is ascii
    assert found.origins["ascii"] == (f"{name}={value}" if ascii else "default")
    assert not resolve(tmp_path, DDPTOP_ASCII="off", **environ).settings.ascii, "unless told"


def test_the_folder_to_save_to_must_be_there(tmp_path: Path) -> None:
    assert resolve(tmp_path, {"save_to": str(tmp_path)}).settings.save_to == str(tmp_path)
    with pytest.raises(CliError, match=r"--save-to: .* is no folder"):
        resolve(tmp_path, {"save_to": str(tmp_path / "gone")})


@pytest.mark.parametrize("rate", ["fast", "0", "-1", "31", "nan", "inf", ""])
def test_a_bad_rate_names_who_gave_it(tmp_path: Path, rate: str) -> None:
    with pytest.raises(CliError, match=r"--rate: .*0\.1 to 30") as caught:
        resolve(tmp_path, {"rate": rate})
    assert caught.value.code == Exit.USAGE


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rate = true", "no rate"),
        ("theme = 3", "no name"),
        ("ascii = 'maybe'", "neither"),
        ("rate =", "TOML"),
        ("view = 'rank'", "no view; choose from overview, timeline"),
        ("sort = 'size'", "no column; choose from rank, host"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(CliError, match=complaint) as caught:
        resolve(tmp_path)
    assert str(path) in str(caught.value)
    assert caught.value.code == Exit.USAGE


def test_unknown_keys_are_told_and_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path, "rat = 3\n")
    found = resolve(tmp_path)
    assert found.unknown == ("rat",)
    assert found.settings.rate == 4.0


def test_what_the_screen_remembers_comes_after_all_that_the_person_said(tmp_path: Path) -> None:
    kept = tmp_path / "ddptop" / "screen.json"
    path = write(tmp_path, "theme = 'nord'\n")
    kept.write_text(
        json.dumps(
            {"theme": "dracula", "sort": "-late", "log": True, "columns": "-loss", "rate": 9, "colour": 1}
        )
    )
    found = resolve(tmp_path)
    assert (found.settings.theme, found.origins["theme"]) == ("nord", str(path))
    assert (found.settings.sort, found.settings.log) == ("rank", "auto"), "earlier versions remembered these"
    assert (found.settings.columns, found.origins["columns"]) == ("-loss", "remembered")
    assert found.settings.rate == 4.0, "what a person sets in the file alone"
    assert resolve(tmp_path, {"sort": "loss"}).settings.sort == "loss"
    for text in ("", "[]", "{", "null"):
        kept.write_text(text)
        assert resolve(tmp_path).settings.columns == ""


def test_only_what_was_changed_on_the_screen_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = write(tmp_path, "# mine\ntheme = 'nord'\n")
    app = DdptopApp(NoSource())
    settings.remember_settings(app, resolve(tmp_path).settings)
    assert not (tmp_path / "ddptop" / "screen.json").exists()
    app.place.sort, app.place.inverted, app.place.charts.log_loss = "late", True, True
    settings.remember_settings(app, resolve(tmp_path).settings)
    assert not (tmp_path / "ddptop" / "screen.json").exists(), "a key and a click are for this time"
    app.place.columns = {"loss": False}
    settings.remember_settings(app, resolve(tmp_path).settings)
    app.use_theme("ddptop-light")
    settings.remember_settings(app, resolve(tmp_path).settings)
    kept = json.loads((tmp_path / "ddptop" / "screen.json").read_text())
    assert kept == {"columns": "-loss", "theme": "ddptop-light"}
    assert path.read_text() == "# mine\ntheme = 'nord'\n", "the person's own file is theirs"
    assert {file.name for file in path.parent.iterdir()} == {"config.toml", "screen.json"}


def test_no_mouse(tmp_path: Path) -> None:
    look = LOOK.parser().parse_args(["--no-mouse"])
    assert not resolve(tmp_path, vars(look)).settings.mouse
    assert resolve(tmp_path, vars(look)).origins["mouse"] == "--no-mouse"
    assert resolve(tmp_path, vars(LOOK.parser().parse_args([]))).settings.mouse


def test_a_relative_configuration_folder_is_ignored() -> None:
    found = load_settings({}, {"XDG_CONFIG_HOME": "here"}, "utf-8")
    assert found.file == Path("~/.config/ddptop/config.toml").expanduser()


def test_the_command_shows_values_and_origins(ddptop, tmp_path: Path) -> None:
    write(tmp_path / "config", "theme = 'dusk'\nrat = 1\n")
    shown = ddptop("config", "--rate", "8", DDPTOP_ASCII="1")
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["rate", "8.0", "--rate"] in lines
    assert ["ascii", "on", "DDPTOP_ASCII"] in lines
    assert ["theme", "dusk", str(tmp_path / "config/ddptop/config.toml")] in lines
    assert "unknown keys: rat" in shown.stderr
    as_json = json.loads(ddptop("config", "--json").stdout)
    assert as_json["settings"]["color"] == {"value": True, "from": "default"}


def test_the_command_is_told_of_a_bad_value(ddptop) -> None:
    refused = ddptop("config", "--rate", "fast")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "ddptop").mkdir()
    for name in ("config.toml", "screen.json"):
        os.mkfifo(tmp_path / "ddptop" / name)
    with pytest.raises(CliError, match="no regular file"):
        resolve(tmp_path)
    (tmp_path / "ddptop" / "config.toml").unlink()
    assert resolve(tmp_path).settings.rate == 4.0
    (tmp_path / "dotfiles.toml").write_text("rate = 2\n")
    (tmp_path / "ddptop" / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert resolve(tmp_path).settings.rate == 2.0
