"""The settings of a screen, for the palette: which change at once, and how they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.tui.keys import Do, PaletteEntry

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ScreenSetting:
    """A setting by its name in the configuration file. `theme`, `sort` and `columns` have entries of their
    own in the palette."""

    name: str
    help: str
    values: tuple[str, ...] = ()
    """What can be chosen while the screen is open; empty: it is read at the start only."""

    @property
    def where(self) -> str:
        """Where a setting is set for good, in words."""
        return f"{self.name} in config.toml or DDPTOP_{self.name.upper()}"


SCREEN_SETTINGS = (
    ScreenSetting("rate", "pictures a second", ("1", "2", "4", "8")),
    ScreenSetting("ascii", "draw with ASCII characters only", ("on", "off")),
    ScreenSetting("bell", "ring at a new alert, and name it in the window's title", ("on", "off")),
    ScreenSetting("log", "scale of the loss: automatic, logarithmic, linear", ("auto", "on", "off")),
    ScreenSetting("color", "colours; NO_COLOR turns them off, too"),
    ScreenSetting("mouse", "take the mouse, or leave it to the terminal"),
    ScreenSetting("view", "the first view"),
    ScreenSetting("save_to", "folder where s saves"),
)

BY_NAME = {setting.name: setting for setting in SCREEN_SETTINGS}


def list_settings() -> Iterator[PaletteEntry]:
    """An entry for each value that can be chosen, and one for each setting that is read at the start."""
    for setting in SCREEN_SETTINGS:
        for value in setting.values or ("",):
            name = f"setting {setting.name} {value}".rstrip()
            yield PaletteEntry(name, setting.help, "", Do.SETTING(setting.name, value))


def describe_change(name: str, value: str) -> str:
    """What is said after a choice; without a value how it is made."""
    setting = BY_NAME[name]
    if not value:
        return f"{name} is read at the start: {setting.where}"
    return f"{name}: {value} until you leave · {setting.where} keeps it"
