"""Colours: the themes of our own, and the style of every role in whatever theme is chosen.

The colours themselves are in `ddptop.render.colours`.
"""

from __future__ import annotations

from typing import cast, get_args

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from ddptop.render.colours import LIGHT, THEMES_OF_ROLES
from ddptop.render.line import Ground, Role
from ddptop.render.phases import find_plain_letters

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


THEMES = tuple(_make_theme(name, roles is not LIGHT, roles) for name, roles in THEMES_OF_ROLES.items())

_BORROWED: dict[Role, str] = {
    "text": "foreground", "strong": "foreground", "accent": "primary", "good": "success", "warn": "warning",
    "bad": "error", "data": "warning", "forward": "primary", "backward": "primary", "transfer": "success",
    "optimizer": "secondary", "sync": "accent", "torch": "success", "badge": "warning", "wait": "warning",
    "area": "primary", "work": "primary", "edge": "foreground", "heat0": "primary", "heat1": "primary",
    "heat2": "primary", "heat3": "warning",
}  # fmt: skip
"""Where a theme of Textual's own has a colour for a role."""

_FADED: dict[Role, float] = {
    "dim": 0.35, "faint": 0.55, "rule": 0.75, "data": 0.45, "area": 0.75, "work": 0.5, "edge": 0.3,
    "other": 0.5, "backward": 0.5, "transfer": 0.45, "optimizer": 0.1, "sync": 0.3,
    "heat0": 0.85, "heat1": 0.6, "heat2": 0.25, "heat3": 0.3,
}  # fmt: skip
"""Share of background in a borrowed colour, which keeps the lightness of the roles apart."""


_BASIC: dict[Role, str] = {
    "faint": "bright_black", "rule": "bright_black", "wait": "yellow", "accent": "cyan",
    "match": "yellow", "good": "green", "warn": "yellow", "bad": "red", "data": "green",
    "forward": "bright_blue", "backward": "blue", "transfer": "cyan", "optimizer": "magenta",
    "sync": "bright_magenta", "torch": "bright_green", "other": "bright_black", "area": "blue",
    "work": "blue", "edge": "white", "heat1": "blue", "heat2": "bright_blue", "heat3": "bright_yellow",
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
            self._pair_style = _plain_pair if plain else _basic_pair
            self._plain = plain
            return
        self._plain = False
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
        self._pair_style = self._make_pair

    def style(self, role: Role, ground: Ground = "") -> Style:
        """The style of a piece of a line."""
        style = self._styles.get((role, ground))
        if style is None:  # of two colours: few of the possible pairs are ever drawn
            front, _, behind = role.partition("/")
            on_ground = self._styles.get((cast("Role", front), cast("Ground", behind)))
            style = on_ground or self._pair_style(cast("Role", front), cast("Role", behind))
            self._styles[role, ground] = style
        return style

    def letters(self, text: str, role: Role) -> str:
        """The text of a piece, as it is shown in these colours."""
        return find_plain_letters(text, role) if self._plain else text

    def fill(self, ground: Ground) -> Style:
        """The style of the rest of a line."""
        return self._styles["text", ground]

    def _make_style(self, role: Role, ground: Ground, behind: Color) -> Style:
        if ground == "banner" or role == "badge":
            emphasis = self._find_named("banner", "warning")
            return Style(color=self._background.rich_color, bgcolor=emphasis.rich_color, bold=True)
        if ground == "opened":
            accent = self._find_colour("accent")
            return Style(color=self._background.rich_color, bgcolor=accent.rich_color, bold=True)
        bold = role in ("strong", "bad", "accent", "match")
        if ground == "cursor" and role == "faint":
            role = "dim"  # the ground of the line under the cursor is lighter, or darker
        colour = self._find_colour("warn" if role == "match" else role)
        # Underlined too, for terminals without colour.
        under = True if role == "match" else None
        return Style(color=colour.rich_color, bgcolor=behind.rich_color, bold=bold, underline=under)

    def _make_pair(self, front: Role, behind: Role) -> Style:
        ground = self._find_colour(behind)
        if front == "ink":
            inks = (self._background, self._find_colour("strong"))
            ink = max(inks, key=lambda colour: contrast(colour, ground))
            return Style(color=ink.rich_color, bgcolor=ground.rich_color, bold=True)
        return Style(color=self._find_colour(front).rich_color, bgcolor=ground.rich_color)

    def _find_ground(self, ground: Ground) -> Color:
        return self._find_named(ground, "panel") if ground in ("cursor", "word") else self._background

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


def contrast(one: Color, other: Color) -> float:
    """The ratio of two colours' luminances by WCAG 2: 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Color) -> float:
    """Relative luminance of an sRGB colour, 0 to 1."""
    linear = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _basic_pair(front: Role, behind: Role) -> Style:
    ground = _BASIC.get(behind, "default")
    return Style(color="black" if front == "ink" else _BASIC.get(front, "default"), bgcolor=ground)


def _basic_style(role: Role, ground: Ground) -> Style:
    if ground == "banner" or role == "badge":
        return Style(color="black", bgcolor="yellow", bold=True)
    if ground == "opened":
        return Style(color="black", bgcolor="cyan")
    emphasis = role in ("strong", "bad", "accent", "match") or ground == "cursor"
    colour = _BASIC.get(role, "default")
    return Style(color=colour, bgcolor="default", bold=emphasis, underline=True if role == "match" else None)


_PALE = frozenset(("dim", "faint", "rule", "area", "heat0"))
"""Roles that are dimmed where there are no colours."""


def _plain_style(role: Role, ground: Ground) -> Style:
    if ground in ("banner", "key", "opened") or role == "badge":
        return Style(reverse=True, bold=True)
    emphasis = role in ("strong", "bad", "accent", "match") or ground == "cursor"
    return Style(
        bold=emphasis, dim=role in _PALE and not emphasis, underline=True if role == "match" else None
    )


def _plain_pair(front: Role, behind: Role) -> Style:
    """The style of a cell without colours: its sign alone tells what it is."""
    return _plain_style("strong" if front == "ink" else front, "")
