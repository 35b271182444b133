"""Where text leaves ddptop for a terminal, a page, a file or another tool: each of these functions cleans it.

Texts of others are cleaned where they enter (`protocol/decoding.py`, `frames/codec.py`). Here everything is
cleaned once more, so that a text that was missed there sets no title, moves no cursor and reverses no
letters. What writes in a way of its own, and why, is in `tests/architecture/test_outlets.py`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO

from ddptop.protocol.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ANSI_COLOURS = {"good": "32", "warn": "33", "bad": "1;31", "head": "1"}
"""By what a text means: the only escape sequences that a text may have, with the one that ends them."""

# Whole sequences of ours only: an escape character that begins any other one is removed.
_COLOUR = re.compile(rf"(\x1b\[(?:0|{'|'.join(ANSI_COLOURS.values())})m)")


def safe_text(text: str, *, color: bool = False) -> str:
    """The text without control, escape and bidirectional characters; line breaks stay, tabs become spaces.

    `color`: the codes of ANSI_COLOURS stay too.
    """
    if text.replace("\n", "").isprintable():
        return text
    if color:
        parts = _COLOUR.split(text)
        # `split` with a group: every second part is a code of ours.
        return "".join(part if number % 2 else safe_text(part) for number, part in enumerate(parts))
    return "\n".join(map(printable, text.split("\n")))


def safe_data(data: Any) -> Any:
    """The data with safe texts and names, for JSON: who decodes it may print it."""
    if isinstance(data, str):
        return safe_text(data)
    if isinstance(data, dict):
        return {safe_data(name): safe_data(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [safe_data(item) for item in data]
    return data


def print_text(
    text: object = "",
    *,
    file: TextIO | None = None,
    end: str = "\n",
    flush: bool = False,
    color: bool = False,
) -> None:
    # The end is part of the text, so that a line is one write: two processes on one terminal do not mix
    # theirs.
    """Print one text, made safe, by default to stdout. `color`: as in `safe_text`. Raises OSError."""
    cleaned, stream = safe_text(f"{text}{end}", color=color), file or sys.stdout
    if stream is sys.stderr:
        _print_on_stderr(cleaned)
    else:
        print(cleaned, end="", file=stream, flush=flush)


def print_json(data: Mapping[str, Any], *, indent: int | None = 2, allow_nan: bool = False) -> None:
    """Print JSON on stdout. Raises OSError, and ValueError for NaN without `allow_nan`."""
    print(json.dumps(safe_data(data), indent=indent, allow_nan=allow_nan))


def print_over(text: str) -> None:
    """Replace the present line of the terminal on stderr; an empty text erases it."""
    _print_on_stderr(f"\r\x1b[K{printable(text)}")


def _print_on_stderr(text: str) -> None:
    """Print without a buffer. Raises OSError, and ValueError where stderr is closed. On a disk that is full,
    where collectors and agents have their log, the text is dropped.

    A stream keeps what it could not write and tries again at the end of the process. Python then exits with
    code 120: a text of ours would change the exit code of a training whose stderr nobody reads any more.
    """
    stream = sys.stderr
    if type(stream) is not TextIOWrapper:  # a script has put something of its own in its place
        print(text, end="", file=stream, flush=True)
        return
    descriptor = stream.fileno()
    # What others have printed leaves first, or the lines would change places.
    stream.flush()
    unwritten = text.encode(stream.encoding, stream.errors or "backslashreplace")
    while unwritten:
        # The system may write only a part, as to a pipe that is nearly full.
        try:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return


def write_text(file: Path | TextIO, text: str) -> None:
    """Write all of a text file, or a part of an open one. Raises OSError."""
    # A Path; an open file has `write` only.
    if hasattr(file, "write_text"):
        file.write_text(safe_text(text), encoding="utf-8")
    else:
        file.write(safe_text(text))
