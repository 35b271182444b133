"""What torch warns of in this process, heard as it is shown.

`warnings.warn` gives each warning that the filters let through to `warnings._showwarnmsg`. Listening there
changes no filter, count, stack level or output. What DDP's reducer warns of by itself goes past Python, from
C++ to stderr: there the reducer's own facts say that it has.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ddptop.training.guard import guard, hide_frame

MOST = 32
"""Different warnings of one process that are told: a text with a number in it must not fill the events."""

CHARACTERS = 300
"""Of one warning: it stands in a line, and stderr has the rest."""

NEEDLESS_SEARCH = (
    "find_unused_parameters=True was specified in DDP constructor, "
    "but did not find any unused parameters in the forward pass."
)
"""The words of torch's reducer (2.6 to 2.13), which it writes after the first forward."""

_OF_TORCH = ("torch.", "ddptop.")
"""Modules that warn of what torch will do, or of what it lacks."""


class Hearing:
    """The warnings of this process, each once; kept until there is somebody to tell them to."""

    def __init__(self) -> None:
        self._heard: set[str] = set()
        self._untold: list[str] = []
        self._say: Callable[[str], None] | None = None

    def hear(self, text: str) -> None:
        """Take a warning in words."""
        if text in self._heard or len(self._heard) >= MOST:
            return
        self._heard.add(text)
        if self._say is None:
            self._untold.append(text)
        else:
            self._say(text)

    def tell_to(self, say: Callable[[str], None]) -> None:
        """Call `say` with what was heard and with all that comes; instead of whom it was told to before."""
        self._say = say
        untold, self._untold = self._untold, []
        for text in untold:
            say(text)


hearing = Hearing()
"""Of this process."""


def listen() -> None:
    """Hear what Python shows from now on; a second call does nothing."""
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None or hasattr(original, "__wrapped__"):
        return
    show = getattr(warnings, "_showwarnmsg_impl", None)

    @functools.wraps(original)
    def _showwarnmsg(message: Any) -> None:
        try:
            kept_back = (
                getattr(warnings, "_showwarnmsg_impl", None) is not show
            )  # catch_warnings(record=True)
            if not kept_back and _warner().startswith(_OF_TORCH):
                hearing.hear(_in_words(message))
        except Exception as error:  # noqa: BLE001 - the training boundary: the message is the user's object
            guard.caught(error)
        try:
            original(message)
        except BaseException as error:
            hide_frame(error)
            raise

    warnings._showwarnmsg = _showwarnmsg  # type: ignore[attr-defined]  # CPython's own door, 3.6 to 3.14


def hear_reducer(facts: Mapping[str, Any]) -> None:
    """What torch's logger tells of a DDP model, once iterations were told: what has its reducer warned of?"""
    searches = facts.get("find_unused_parameters") and not facts.get("static_graph")
    if searches and facts.get("iteration", 0) > 0 and facts.get("unused_parameter_size") == 0:
        hearing.hear(f"UserWarning: {NEEDLESS_SEARCH}")


def _warner() -> str:
    """Name of the module that warns: the first one above `warnings` itself."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("warnings", "_py_warnings"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _in_words(message: Any) -> str:
    """`UserWarning: its first line`, as stderr has it."""
    first = str(message.message).strip().partition("\n")[0].partition(" (Triggered internally")[0]
    text = f"{message.category.__name__}: {first}"
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
