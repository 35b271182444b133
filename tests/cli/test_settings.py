"""Which of flag, variable, file and default wins, and what a bad value is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddptop.cli.errors import CliError, Exit
from ddptop.cli.settings import Configuration, load


def resolve(home: Path, flags: dict[str, object] | None = None, **environ: str) -> Configuration:
    return load(flags or {}, {"XDG_CONFIG_HOME": str(home), **environ}, encoding="utf-8")


def write(home: Path, text: str) -> Path:
    path = home / "ddptop" / "config.toml"
    path.parent.mkdir()
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


def test_no_color(tmp_path: Path) -> None:
    found = resolve(tmp_path, NO_COLOR="1")
    assert (found.settings.color, found.origins["color"]) == (False, "NO_COLOR")
    assert resolve(tmp_path, NO_COLOR="").settings.color, "an empty NO_COLOR means nothing"


@pytest.mark.parametrize(("encoding", "ascii"), [("UTF-8", False), ("utf8", False), ("latin-1", True)])
def test_ascii_is_chosen_where_the_encoding_cannot_draw(tmp_path: Path, encoding: str, ascii: bool) -> None:
    found = load({}, {"XDG_CONFIG_HOME": str(tmp_path)}, encoding)
    assert found.settings.ascii is ascii
    assert found.origins["ascii"] == (f"encoding {encoding}" if ascii else "default")


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


def test_a_relative_configuration_folder_is_ignored() -> None:
    found = load({}, {"XDG_CONFIG_HOME": "here"}, "utf-8")
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
