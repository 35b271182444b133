"""What a terminal is asked for that Textual does not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

AS_PUT = "\x1b[8l"
"""Each letter stays in its cell: BDSM of ECMA-48 reset, as the terminal working group's BiDi recommendation
has it (VTE, mintty). Other terminals pass over it; those that set right-to-left words in their own order
would move the figures beside a name in Hebrew or Arabic into each other's columns."""

AS_READ = "\x1b[8h"
"""Where that recommendation begins."""


@contextmanager
def letters_in_their_cells(stream: TextIO | None) -> Iterator[None]:
    """While the block lasts, a terminal behind `stream` reorders nothing."""
    if stream is None or not stream.isatty():
        yield
        return
    _say(stream, AS_PUT)
    try:
        yield
    finally:
        _say(stream, AS_READ)


def _say(stream: TextIO, text: str) -> None:
    with suppress(OSError):  # it has hung up
        stream.write(text)
        stream.flush()
