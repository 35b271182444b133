"""The marks that ranks leave in the run's folder as they come to their first process group, and past it.

Importing this module costs a rank next to nothing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ddptop.host.folders import NEW_FILE, open_regular

INITIALIZES = "ddptop-init-"

MET = "ddptop-met-"


def mark_initialization() -> None:
    """In a rank: note that it makes its first process group."""
    _leave_mark(INITIALIZES)


def mark_met() -> None:
    """In a rank: note that it has made its first process group, and so has met the others."""
    _leave_mark(MET)


def _leave_mark(prefix: str) -> None:
    directory = os.environ.get("DDPTOP_RUN_DIR")
    if directory and "RANK" in os.environ:
        with suppress(OSError):  # it has made one before, or the folder is gone
            os.close(open_regular(Path(directory) / f"{prefix}{os.getpid()}", NEW_FILE))
