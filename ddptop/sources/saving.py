"""Saving a page as a file."""

from __future__ import annotations

import re
import time
from pathlib import Path

from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.protocol.outlets import write_text

MOST_NUMBERS = 100
"""Most files of one run in one second."""


def save_page(
    run: str, what: str, unix_s: float, text: str, suffix: str = ".txt", folder: Path | None = None
) -> Path:
    """Write `text` to a new file `ddptop-RUN-WHAT-TIME.txt` in `folder`, by default beside the recordings.

    Nothing is ever overwritten. Raises OSError where it cannot be written.
    """
    when = time.strftime("%Y%m%d-%H%M%S", time.localtime(unix_s))
    stem = f"ddptop-{re.sub(r'[^A-Za-z0-9._-]+', '_', run).strip('.')}-{what}-{when}"
    try:
        return _write_new(folder or state_directory(), stem, text, suffix)
    except RunDirectoryError as error:
        raise OSError(str(error)) from error


def _write_new(folder: Path, stem: str, text: str, suffix: str) -> Path:
    for number in range(1, MOST_NUMBERS):
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}-{number}{suffix}")
        try:
            # Exclusively: in a folder of many users the name could be a link that another user put there.
            with path.open("x", encoding="utf-8") as stream:
                write_text(stream, text)
        except FileExistsError:
            continue
        return path
    raise OSError(f"{folder} has {MOST_NUMBERS} such files already")
