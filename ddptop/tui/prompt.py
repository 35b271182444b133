"""The one-line prompts: a filter, a search, a place in a recording, a name out of the palette."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddptop.render.line import Line
from ddptop.render.text import clean_text, text_width

LONGEST = 80
"""Characters that a prompt takes: no filter and no step is longer."""


@dataclass
class Prompt:
    """Takes the place of the key line, and all keys, while it is open.

    The keys are edited here rather than by Textual's Input: focus moves later than keys come, so that
    a fast typist's `g 5 0 % Enter` would do something else.
    """

    purpose: Literal["filter", "search", "go to", "palette"]
    hint: str
    """Shown while nothing is typed."""
    text: str = ""
    at: int = 0
    """The chosen line of the palette."""

    def edit(self, key: str, character: str | None) -> None:
        """One key that is neither Enter nor Escape."""
        self.at = 0
        if key in ("backspace", "ctrl+h"):
            self.text = self.text[:-1]
        elif key == "ctrl+u":
            self.text = ""
        elif character is not None:
            self.paste(character)

    def move(self, lines: int, offered: int) -> None:
        """Choose another one of the lines that the palette offers."""
        self.at = min(max(0, self.at + lines), max(0, offered - 1))

    def paste(self, text: str) -> None:
        """Append what can be shown of a text."""
        self.text = (self.text + "".join(filter(str.isprintable, text)))[:LONGEST]


def prompt_line(prompt: Prompt, width: int, ascii_only: bool) -> Line:
    """What is asked, what was typed (its end, where it is long), and a cursor."""
    line = Line(f"{prompt.purpose}: ", "accent", ground="cursor")
    typed = clean_text(prompt.text, ascii_only)
    while typed and line.width + text_width(typed) >= width:
        typed = typed[1:]
    line.add(typed, "strong").add(" ", "badge")
    if not typed:
        line.add(f" {clean_text(prompt.hint, ascii_only)}", "dim")
    return line
