"""Settings of the screens: flags, then `DDPTOP_*`, then the configuration file, then what the screen itself
remembers of the last time, then the defaults.

What the screen remembers from one time to the next: a small file of the program's own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddptop.cli.errors import CliError, Exit
from ddptop.host.folders import (
    RunDirectoryError,
    home_folder,
    open_private,
    open_regular,
    state_directory,
    state_path,
    write_private,
)

if TYPE_CHECKING:
    from ddptop.tui.app import DdptopApp

FILE = "screen.json"

REMEMBERED = ("theme", "columns")
"""Settings that the screen remembers: what a person chooses on a page or in a list. What a single key or a
click changes, the order of ranks and the axis of the loss, is as usual the next time."""

LARGEST = 65_536
"""Bytes: more than that is not what was written here."""


def read_remembered(environ: Mapping[str, str]) -> dict[str, object]:
    """Settings by name; none where the file is not there or is not ours."""
    try:
        with os.fdopen(open_regular(state_path(environ) / FILE), encoding="utf-8") as stream:
            kept = json.loads(stream.read(LARGEST))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def remember_settings(app: DdptopApp, settings: Settings) -> None:
    """Write what was changed on the screen; the rest stays as it was. Raises OSError where it cannot be."""
    place = app.place
    newest = {
        "columns": ",".join(f"{'+' if shown else '-'}{title}" for title, shown in place.columns.items()),
    }
    changed: dict[str, object] = {
        name: value for name, value in newest.items() if value != getattr(settings, name)
    }
    if app.chosen_theme is not None:
        changed["theme"] = app.chosen_theme
    if not changed:
        return
    # Read again: another screen may have ended and written since this one began.
    kept = read_remembered(os.environ) | changed
    try:
        # Two screens may end at once: the file is whole at any moment.
        with open_private(state_directory()) as folder:
            write_private(folder, FILE, (json.dumps(kept, indent=1) + "\n").encode())
    except RunDirectoryError as error:
        raise OSError(str(error)) from error


MIN_RATE_HZ = 0.1
MAX_RATE_HZ = 30.0
"""A terminal shows no more, and each refresh costs the machine that trains 4-8 ms of CPU."""


ASCII_TERMINALS = frozenset({"linux", "vt52", "vt100", "vt102", "vt220", "vt320", "ansi", "cons25"})
"""Values of TERM, up to a dash, whose fonts lack the box-drawing and braille characters: the Linux console
has room for 256 or 512 characters, the older ones for fewer."""


def _parse_rate_hz(value: object) -> float:
    # A bool would pass for the number 1.
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            rate = float(value)
        except ValueError:
            rate = 0.0
        if MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
            return rate
    raise ValueError(f"{value!r} is no rate; give refreshes a second, {MIN_RATE_HZ:g} to {MAX_RATE_HZ:g}")


def _parse_word(value: object) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise ValueError(f"{value!r} is no name")


def _parse_bool(value: object) -> bool:
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


def _parse_bool_or_auto(value: object) -> str:
    word = str(value).strip().lower()
    try:
        return "auto" if word == "auto" else "on" if _parse_bool(value) else "off"
    except ValueError:
        raise ValueError(f"{value!r} is none of auto, on, off") from None


def _parse_folder(value: object) -> str:
    path = Path(_parse_word(value)).expanduser()
    if not path.is_dir():
        raise ValueError(f"{value!r} is no folder")
    return str(path.absolute())


def _parse_view(value: object) -> str:
    from ddptop.tui.all_views import VIEWS

    if value in VIEWS.numbered_names:
        return str(value)
    raise ValueError(f"{value!r} is no view; choose from {', '.join(VIEWS.numbered_names)}")


def _parse_sort(value: object) -> str:
    from ddptop.tui.views.rank_order import COLUMNS

    if isinstance(value, str):
        sign, name = value[: value.startswith("-")], value.removeprefix("-")
        name = {"move": "transfer", "score": "relative"}.get(name, name)  # names in earlier versions
        if name in COLUMNS:
            return sign + name
    raise ValueError(f"{value!r} is no column; choose from {', '.join(COLUMNS)}")


def _parse_columns(value: object) -> str:
    if isinstance(value, str) and all(word[1:] and word[0] in "+-" for word in value.split(",") if value):
        return value
    raise ValueError(f"{value!r} is no choice of columns; write +own,-loss: always own, never loss")


OWN_THEMES = ("ddptop-dark", "ddptop-light", "ddptop-cvd", "ddptop-contrast")
"""Named here too, for help and completion: asking Textual for them takes a quarter of a second."""


@dataclass(frozen=True)
class Setting:
    """What a setting is, beside its name and its default."""

    parse: Callable[[object], object]
    """Its value from a flag, a variable or the file. Raises ValueError."""
    help: str | None = None
    """Help of its flag; None: there is no flag."""
    metavar: str | None = None
    """Value in the help of its flag; None: the flag is a switch, which takes no value."""


def _declare_setting(default: Any, *declared: Any) -> Any:
    return field(default=default, metadata={"setting": Setting(*declared)})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a screen behaves. A name here is the name of the flag, of `DDPTOP_<NAME>` and of the file's key. A
    switch that is on has the flag `--no-<name>`."""

    rate: float = _declare_setting(
        4.0, _parse_rate_hz, "draw the screen so many times a second (default 4)", "HZ"
    )
    theme: str | None = _declare_setting(
        None, _parse_word, f"colour theme: {', '.join(OWN_THEMES)} or one of Textual's (press :)", "NAME"
    )
    """None: the screen's own default."""
    ascii: bool = _declare_setting(False, _parse_bool, "draw with ASCII characters only")
    color: bool = _declare_setting(True, _parse_bool)
    """Use colours; `NO_COLOR` turns them off."""
    mouse: bool = _declare_setting(True, _parse_bool, "leave the mouse to the terminal")
    """Take the mouse; without it the terminal's own selecting and copying works as ever."""
    bell: bool = _declare_setting(
        True, _parse_bool, "do not ring the bell at alerts, or set the window's title"
    )
    """Ring the terminal's bell at a new alert, and name run and alert in its title."""
    view: str = _declare_setting(
        "overview", _parse_view, "the first view: overview, timeline, buckets, heat, events ...", "NAME"
    )
    sort: str = _declare_setting(
        "rank", _parse_sort, "sort ranks by this column, such as late; -late: in reverse", "COLUMN"
    )
    columns: str = _declare_setting("", _parse_columns)
    """Columns of the tables that are always (`+own`) or never (`-loss`) shown, with commas; F2 chooses."""
    log: str = _declare_setting("auto", _parse_bool_or_auto)
    """The axis of the loss: `on` logarithmic, `off` linear, `auto`: by how far the loss spans."""
    save_to: str | None = _declare_setting(
        None, _parse_folder, "folder where the key s saves (default: beside the recordings)", "FOLDER"
    )
    """None: where the recordings are kept."""


SETTINGS: dict[str, Setting] = {declared.name: declared.metadata["setting"] for declared in fields(Settings)}


def flag_of(name: str) -> str:
    """The flag of a setting: `--save-to`, `--no-mouse`."""
    word = name.replace("_", "-")
    return f"--no-{word}" if getattr(Settings, name) is True else f"--{word}"


@dataclass(frozen=True)
class Configuration:
    """The settings in force, and for each of them who set it."""

    settings: Settings
    origins: Mapping[str, str]
    file: Path
    """Where the configuration file is looked for, there or not."""
    unknown: tuple[str, ...]
    """Keys of the file that mean nothing to this version."""


def load_settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    encoding: str | None = None,
) -> Configuration:
    """Resolve every setting. A flag that is None was not given.

    `encoding` is that of the terminal, by default stdout's. Raises CliError for a value that cannot be used.
    """
    environ = os.environ if environ is None else environ
    path = config_file(environ)
    in_file = read_toml(path)
    last_time = read_remembered(environ)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, setting in SETTINGS.items():
        variable = f"DDPTOP_{name.upper()}"
        # In this order: whoever is nearer to this one command wins.
        if (given := flags.get(name)) is not None:
            value, origin = given, flag_of(name)
        elif environ.get(variable):
            value, origin = environ[variable], variable
        elif name in in_file:
            value, origin = in_file[name], str(path)
        # A value that this version does not know is as if nothing was remembered.
        elif name in REMEMBERED and (kept := _remembered_value(name, last_time)) is not None:
            values[name], origins[name] = kept, "remembered"
            continue
        else:
            values[name], origins[name] = _default_value(name, getattr(Settings, name), environ, encoding)
            continue
        try:
            values[name], origins[name] = setting.parse(value), origin
        except ValueError as problem:
            raise CliError(f"{origin}: {problem}", Exit.USAGE) from None
    unknown = tuple(key for key in in_file if key not in values)
    return Configuration(Settings(**values), origins, path, unknown)


def config_file(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/ddptop/config.toml`, by default under `~/.config`."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    # The XDG specification has relative paths ignored.
    base = Path(folder) if folder.startswith("/") else (home_folder(environ) or Path("/")) / ".config"
    return base / "ddptop" / "config.toml"


def _remembered_value(name: str, last_time: Mapping[str, object]) -> object | None:
    """What was remembered, if this version can use it."""
    try:
        return SETTINGS[name].parse(last_time[name]) if name in last_time else None
    except ValueError:
        return None


def _default_value(
    name: str, value: object, environ: Mapping[str, str], encoding: str | None
) -> tuple[object, str]:
    if name == "color" and environ.get("NO_COLOR"):
        return False, "NO_COLOR"
    if name == "ascii":
        if environ.get("LC_ALL") in ("C", "POSIX"):  # Python writes UTF-8 there all the same
            return True, f"LC_ALL={environ['LC_ALL']}"
        if environ.get("TERM", "").split("-")[0] in ASCII_TERMINALS:
            return True, f"TERM={environ['TERM']}"
        encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
        if encoding.lower().replace("-", "").replace("_", "") != "utf8":
            return True, f"encoding {encoding}"
    return value, "default"


def read_toml(path: Path) -> dict[str, object]:
    """The keys of a TOML file; none where it is not there. Raises CliError for what cannot be read."""
    try:
        with os.fdopen(open_regular(path, follow=True), encoding="utf-8") as stream:
            text = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError:
        raise CliError(f"{path}: permission denied; make it readable or move it away", Exit.REFUSED) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise CliError(f"{path}: cannot be read ({problem}); correct it or move it away") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        keys: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise CliError(f"{path}: not valid TOML: {problem}", Exit.USAGE) from None
    return keys
