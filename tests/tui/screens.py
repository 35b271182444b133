"""The text of a screen as it is on a terminal, and golden files of it that a person can read in a diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.render.line import combine_roles

if TYPE_CHECKING:
    from rich.segment import Segment

    from ddptop.tui.app import DdptopApp

GOLDEN = Path(__file__).parent / "golden"


def text_of(app: DdptopApp) -> str:
    """What the compositor would put on the terminal, without colours and blanks at line ends."""
    # Private, but the one place that holds the picture as text (textual 1.0 to 8.2).
    strips = app.screen._compositor.render_strips()
    # A cell in two shades of one area is solid: in text its sign alone would be a gap.
    shades = app.shown_palette.style(combine_roles("area", "edge"))

    def letters(segment: Segment) -> str:
        style = segment.style
        two_shades = style is not None and (style.color, style.bgcolor) == (shades.color, shades.bgcolor)
        return "█" * len(segment.text) if two_shades and shades.color != shades.bgcolor else segment.text

    return "\n".join("".join(map(letters, strip)).rstrip() for strip in strips) + "\n"


def check(name: str, text: str) -> None:
    """Compare with `golden/NAME.txt`; `UPDATE_GOLDEN=1` writes it instead."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; UPDATE_GOLDEN=1 rewrites it"


def unboxed(text: str) -> list[str]:
    """The lines of a screen without the sides of the box around a page."""
    return [line.removeprefix("│").removesuffix("│").rstrip() for line in text.splitlines()]
