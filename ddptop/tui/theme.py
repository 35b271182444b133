"""Colours: three themes of our own, and the style of every role in whatever theme is chosen.

Phases differ in lightness as well as in hue, and in their glyphs. Wait has the least contrast:
work is seen first, and lost time looks empty. Red is for stalled, lost and failed alone.
"""

from __future__ import annotations

from typing import get_args

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from ddptop.render.line import Ground, Role

DEFAULT_THEME = "ddptop-dark"


def _theme(name: str, dark: bool, colours: dict[str, str]) -> Theme:
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


_DARK = {
    # The greys are so little coloured that terminals of 256 colours find them among their greys.
    "background": "#121316", "cursor": "#26292e", "banner": "#e6b450", "text": "#c8d0da", "strong": "#f0f4f8",
    "dim": "#8c94a0", "faint": "#646a74", "rule": "#383c43", "accent": "#7cc7ff", "good": "#7fd1a0",
    "warn": "#f2a65a", "bad": "#ff5c6c", "data": "#e8cf7a", "forward": "#79b8f2", "backward": "#3f7fc4",
    "wait": "#50555e", "transfer": "#4fd0c0", "optimizer": "#b79cf2", "other": "#8a93a0",
}  # fmt: skip

_LIGHT = {
    "background": "#fbfbf8", "cursor": "#e8e9ec", "banner": "#8a5a00", "text": "#2f3337", "strong": "#0b1017",
    "dim": "#5d6875", "faint": "#87919d", "rule": "#ccd3da", "accent": "#0b62ad", "good": "#17774a",
    "warn": "#a85208", "bad": "#c81e33", "data": "#a37b00", "forward": "#4a90d9", "backward": "#1d4f8c",
    "wait": "#b9c1ca", "transfer": "#0d8a80", "optimizer": "#7a55c7", "other": "#77808a",
}  # fmt: skip

_CVD = {
    # Okabe and Ito's palette (2008), which the common kinds of colour blindness keep apart.
    "background": "#101010", "cursor": "#2a2a2a", "banner": "#f0e442", "text": "#d0d0d0", "strong": "#ffffff",
    "dim": "#9a9a9a", "faint": "#6c6c6c", "rule": "#3a3a3a", "accent": "#56b4e9", "good": "#56b4e9",
    "warn": "#f0e442", "bad": "#d55e00", "data": "#e69f00", "forward": "#56b4e9", "backward": "#0072b2",
    "wait": "#565656", "transfer": "#009e73", "optimizer": "#cc79a7", "other": "#8f8f8f",
}  # fmt: skip

THEMES = (
    _theme("ddptop-dark", True, _DARK),
    _theme("ddptop-light", False, _LIGHT),
    _theme("ddptop-cvd", True, _CVD),
)

_BORROWED: dict[Role, str] = {
    "text": "foreground", "strong": "foreground", "accent": "primary", "good": "success", "warn": "warning",
    "bad": "error", "data": "warning", "forward": "primary", "backward": "secondary", "transfer": "accent",
    "optimizer": "secondary", "badge": "warning",
}  # fmt: skip
"""Where a theme of Textual's own has a colour for a role."""

_FADED: dict[Role, float] = {
    "dim": 0.35, "faint": 0.55, "rule": 0.75, "wait": 0.7,
    "other": 0.4, "backward": 0.3, "optimizer": 0.15,
}  # fmt: skip
"""Share of background in a borrowed colour, which keeps the lightness of the roles apart."""


_BASIC: dict[Role, str] = {
    "faint": "bright_black", "rule": "bright_black", "wait": "bright_black", "accent": "cyan",
    "match": "yellow", "good": "green", "warn": "yellow", "bad": "red", "data": "yellow",
    "forward": "bright_blue", "backward": "blue", "transfer": "cyan", "optimizer": "magenta",
}  # fmt: skip
"""Colours by name where a terminal has 16; all other roles have the terminal's default, which suits dark and
light ones. The nearest of the 16 would show a warning's orange as the red of a failure."""


def own_theme_for(theme: Theme) -> Theme:
    """The theme of ours that is as light or dark as this one."""
    return THEMES[0] if theme.dark else THEMES[1]


def in_colours(theme: Theme) -> Theme:
    """The theme; for one of Textual's that leaves its colours to the terminal, ours."""
    left_to_terminal = theme.name not in {own.name for own in THEMES} and getattr(theme, "ansi", False)
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
        grounds = {ground: self._ground(ground) for ground in get_args(Ground)}
        self._styles = {
            (role, ground): self._style(role, ground, behind)
            for role in get_args(Role)
            for ground, behind in grounds.items()
        }

    def style(self, role: Role, ground: Ground = "") -> Style:
        """For a piece of a line."""
        return self._styles[role, ground]

    def fill(self, ground: Ground) -> Style:
        """For the rest of a line."""
        return self._styles["text", ground]

    def _style(self, role: Role, ground: Ground, behind: Color) -> Style:
        if ground == "banner" or role == "badge":
            emphasis = self._named("banner", "warning")
            return Style(color=self._background.rich_color, bgcolor=emphasis.rich_color, bold=True)
        bold = role in ("strong", "bad", "accent", "match")
        colour = self._colour("warn" if role == "match" else role)
        # Underlined too, for terminals without colour.
        under = True if role == "match" else None
        return Style(color=colour.rich_color, bgcolor=behind.rich_color, bold=bold, underline=under)

    def _ground(self, ground: Ground) -> Color:
        return self._named("cursor", "panel") if ground == "cursor" else self._background

    def _colour(self, role: Role) -> Color:
        own = self._theme.variables.get(f"ddptop-{role}")
        if own is not None:
            return Color.parse(own)
        return self._named(role, _BORROWED.get(role, "foreground")).blend(
            self._background, _FADED.get(role, 0.0)
        )

    def _named(self, name: str, borrowed: str) -> Color:
        own = self._theme.variables.get(f"ddptop-{name}")
        try:
            return Color.parse(own or self._system[borrowed])
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
