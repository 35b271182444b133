"""Warnings of torch in this process, received as they are shown.

`warnings.warn` gives each warning that the filters let through to `warnings._showwarnmsg`. Receiving them
there changes no filter, count, stack level or output. DDP's reducer writes its own warnings from C++ to
stderr, past Python: whether it has is known from its logging data.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ddptop.training.guard import guard, hide_frame

MOST = 32
"""Different warnings that one process reports: a text with a number in it must not fill the events."""

CHARACTERS = 300
"""Characters of one warning, which is shown in one line; stderr has the whole text."""

NEEDLESS_SEARCH = (
    "find_unused_parameters=True was specified in DDP constructor, "
    "but did not find any unused parameters in the forward pass."
)
"""What torch's reducer (2.6 to 2.15) writes after the first forward."""

_LIBRARIES = ("torch.", "ddptop.")
"""Modules whose warnings are about torch."""


class WarningLog:
    """The warnings of this process, each once; kept until there is a session to report them."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._unreported: list[str] = []
        self._report: Callable[[str], None] | None = None

    def add_warning(self, text: str) -> None:
        """Add the text of a warning."""
        if text in self._seen or len(self._seen) >= MOST:
            return
        self._seen.add(text)
        if self._report is None:
            self._unreported.append(text)
        else:
            self._report(text)

    def report_to(self, report: Callable[[str], None]) -> None:
        """Call `report`, in place of an earlier one, with the warnings so far and with all later ones."""
        self._report = report
        unreported, self._unreported = self._unreported, []
        for text in unreported:
            report(text)


collected = WarningLog()
"""The log of this process."""


def listen_to_warnings() -> None:
    """Receive what Python shows from now on; a second call does nothing."""
    original = getattr(warnings, "_showwarnmsg", None)
    if original is None or hasattr(original, "__wrapped__"):
        return
    show = getattr(warnings, "_showwarnmsg_impl", None)

    @functools.wraps(original)
    def _showwarnmsg(message: Any) -> None:
        try:
            # Another one under catch_warnings(record=True), which shows nothing.
            shown = getattr(warnings, "_showwarnmsg_impl", None) is show
            if shown and _warning_module().startswith(_LIBRARIES):
                collected.add_warning(_describe(message))
        except Exception as error:  # noqa: BLE001 - the training boundary: the message is the user's object
            guard.caught(error)
        try:
            original(message)
        except BaseException as error:
            hide_frame(error)
            raise

    warnings._showwarnmsg = _showwarnmsg  # type: ignore[attr-defined]  # private in CPython, the same in 3.6 to 3.14


def check_reducer(facts: Mapping[str, Any]) -> None:
    """Add the warnings of a model's reducer, which follow from its logging data once that has iterations."""
    searches = facts.get("find_unused_parameters") and not facts.get("static_graph")
    if searches and facts.get("iteration", 0) > 0 and facts.get("unused_parameter_size") == 0:
        collected.add_warning(f"UserWarning: {NEEDLESS_SEARCH}")


def _warning_module() -> str:
    """Name of the module that warns: the first one above `warnings` itself."""
    # Above this function and the wrapper that calls it.
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("warnings", "_py_warnings"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _describe(message: Any) -> str:
    """`UserWarning: its first line`, as stderr has it."""
    # torch adds the place in its C++ source, another one in each build.
    first = str(message.message).strip().partition("\n")[0].partition(" (Triggered internally")[0]
    text = f"{message.category.__name__}: {first}"
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
