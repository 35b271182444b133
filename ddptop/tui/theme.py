"""Colours: three themes of our own, and the style of every role in whatever theme is chosen.

The colours themselves are in `ddptop.render.colours`.
"""

from __future__ import annotations

from typing import get_args

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from ddptop.render.colours import CVD, DARK, LIGHT
from ddptop.render.line import Ground, Role

DEFAULT_THEME = "ddptop-dark"


def _make_theme(name: str, dark: bool, colours: dict[str, str]) -> Theme:
    return Theme(
        name=name,
        dark=dark,
        primary=colours["accent"],
        secondary=colours["forward"],
        accent=colours["accent"],
        success=colours["good"],
        warning=colours["warn"],
        error=colours["bad"],
        foreground=colours["text"],
        background=colours["background"],
        surface=colours["background"],
        panel=colours["cursor"],
        variables={f"ddptop-{role}": colour for role, colour in colours.items()},
    )


THEMES = (
    _make_theme("ddptop-dark", True, DARK),
    _make_theme("ddptop-light", False, LIGHT),
    _make_theme("ddptop-cvd", True, CVD),
)

_BORROWED: dict[Role, str] = {
    "text": "foreground", "strong": "foreground", "accent": "primary", "good": "success", "warn": "warning",
    "bad": "error", "data": "warning", "forward": "primary", "backward": "secondary", "transfer": "accent",
    "optimizer": "secondary", "sync": "accent", "badge": "warning",
}  # fmt: skip
"""Where a theme of Textual's own has a colour for a role."""

_FADED: dict[Role, float] = {
    "dim": 0.35, "faint": 0.55, "rule": 0.75, "wait": 0.7,
    "other": 0.4, "backward": 0.3, "optimizer": 0.15, "sync": 0.5,
}  # fmt: skip
"""Share of background in a borrowed colour, which keeps the lightness of the roles apart."""


_BASIC: dict[Role, str] = {
    "faint": "bright_black", "rule": "bright_black", "wait": "bright_black", "accent": "cyan",
    "match": "yellow", "good": "green", "warn": "yellow", "bad": "red", "data": "yellow",
    "forward": "bright_blue", "backward": "blue", "transfer": "cyan", "optimizer": "magenta",
    "sync": "bright_magenta",
}  # fmt: skip
"""Colours by name where a terminal has 16; all other roles have the terminal's default, which suits dark and
light ones. The nearest of the 16 would show a warning's orange as the red of a failure."""


def own_theme_for(theme: Theme) -> Theme:
    """The theme of ours that is as light or dark as this one."""
    return THEMES[0] if theme.dark else THEMES[1]


def in_colours(theme: Theme) -> Theme:
    """The theme itself, or one of ours where it leaves its colours to the terminal."""
    left_to_terminal = theme.name not in {our_theme.name for our_theme in THEMES} and getattr(
        theme, "ansi", False
    )
    return own_theme_for(theme) if left_to_terminal else theme


class Palette:
    """The style of every role on every ground, for one theme. Made once per theme, not per picture.

    `basic`: the terminal has 16 colours and chooses them. `plain`: no colour at all, as NO_COLOR asks for.
    """

    def __init__(self, theme: Theme, basic: bool = False, plain: bool = False) -> None:
        if basic or plain:
            style = _plain_style if plain else _basic_style
            self._styles = {
                (role, ground): style(role, ground) for role in get_args(Role) for ground in get_args(Ground)
            }
            return
        self._theme = theme
        system = theme.to_color_system().generate()
        self._background = Color.parse(system["background"])
        self._system = system
        grounds = {ground: self._find_ground(ground) for ground in get_args(Ground)}
        self._styles = {
            (role, ground): self._make_style(role, ground, behind)
            for role in get_args(Role)
            for ground, behind in grounds.items()
        }

    def style(self, role: Role, ground: Ground = "") -> Style:
        """For a piece of a line."""
        return self._styles[role, ground]

    def fill(self, ground: Ground) -> Style:
        """For the rest of a line."""
        return self._styles["text", ground]

    def _make_style(self, role: Role, ground: Ground, behind: Color) -> Style:
        if ground == "banner" or role == "badge":
            emphasis = self._find_named("banner", "warning")
            return Style(color=self._background.rich_color, bgcolor=emphasis.rich_color, bold=True)
        bold = role in ("strong", "bad", "accent", "match")
        colour = self._find_colour("warn" if role == "match" else role)
        # Underlined too, for terminals without colour.
        under = True if role == "match" else None
        return Style(color=colour.rich_color, bgcolor=behind.rich_color, bold=bold, underline=under)

    def _find_ground(self, ground: Ground) -> Color:
        return self._find_named("cursor", "panel") if ground == "cursor" else self._background

    def _find_colour(self, role: Role) -> Color:
        variable = self._theme.variables.get(f"ddptop-{role}")
        if variable is not None:
            return Color.parse(variable)
        return self._find_named(role, _BORROWED.get(role, "foreground")).blend(
            self._background, _FADED.get(role, 0.0)
        )

    def _find_named(self, name: str, borrowed: str) -> Color:
        variable = self._theme.variables.get(f"ddptop-{name}")
        try:
            return Color.parse(variable or self._system[borrowed])
        except ColorParseError:  # some themes of Textual use the terminal's colour
            return self._background.inverse


def _basic_style(role: Role, ground: Ground) -> Style:
    if ground == "banner" or role == "badge":
        return Style(color="black", bgcolor="yellow", bold=True)
    emphasis = role in ("strong", "bad", "accent", "match") or ground == "cursor"
    colour = _BASIC.get(role, "default")
    return Style(color=colour, bgcolor="default", bold=emphasis, underline=True if role == "match" else None)


_PALE = frozenset(("dim", "faint", "rule", "wait"))
"""Roles that are dimmed where there are no colours."""


def _plain_style(role: Role, ground: Ground) -> Style:
    if ground == "banner" or role == "badge":
        return Style(reverse=True, bold=True)
    emphasis = role in ("strong", "bad", "accent", "match") or ground == "cursor"
    return Style(
        bold=emphasis, dim=role in _PALE and not emphasis, underline=True if role == "match" else None
    )
