"""The one-line prompts: a filter for ranks, a step to go to."""

from __future__ import annotations

import re
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Blur
from textual.message import Message
from textual.widgets import Input

_PLACE = re.compile(r"(?P<number>\d[\d,_ ]{0,20}(\.\d{1,9})?)\s*(?P<percent>%?)")


class Prompt(Input):
    """Takes the place of the key line while it is open."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "cancel", "close")]

    DEFAULT_CSS = """
    Prompt { layer: above; dock: bottom; display: none; height: 1; border: none; padding: 0 1; }
    Prompt:focus { border: none; background: $panel; }
    Prompt.-open { display: block; }
    """

    class Cancelled(Message):
        """The person changed their mind."""

    def __init__(self) -> None:
        super().__init__(select_on_focus=False)
        self.purpose = ""

    def open(self, purpose: str, hint: str, value: str = "") -> None:
        """Ask. `purpose` tells the answers apart."""
        self.purpose, self.placeholder = purpose, hint
        self.value = value
        self.cursor_position = len(value)
        self.add_class("-open")
        self.focus()

    def close(self) -> None:
        """Give the keys back."""
        self.purpose = ""
        self.remove_class("-open")
        self.screen.set_focus(None)

    def action_cancel(self) -> None:
        """Escape."""
        self.post_message(self.Cancelled())

    def on_blur(self, event: Blur) -> None:
        """A prompt that has lost the keys would be a trap."""
        if self.purpose:
            self.post_message(self.Cancelled())


def parse_place(text: str) -> tuple[int | None, float | None] | None:
    """`12,480` is a step, `50%` a share of the recording: (step, share), one of them None. None: neither."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        return None
    number = float(re.sub(r"[,_ ]", "", match["number"]))
    if match["percent"]:
        return (None, number / 100) if number <= 100 else None
    return (int(number), None) if number == int(number) else None
